//! A panel's codes turned into tiles of bf16 weights.
//!
//! Where codes have four bits, a table of a group's sixteen possible weights is looked up. What is
//! stored as a vector and read back in parts (scales) must be stored well ahead: such a read waits
//! until the store has left the processor's queue.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::kernels::format::{Codes, EXCESS, Format, Panel, RAISED};
use crate::kernels::matmul::Ahead;
use crate::lanes::avx512::Avx512Lanes;
use crate::lanes::{Lanes, WIDTH};

/// Blocks whose scales are in flight between conversion and use, and how far apart the two are.
pub(super) const HEADS: usize = 16;
const HEADS_LAG: usize = 8;

/// The scales and offsets of a block's sixteen outputs, for each of its groups.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Heads {
    scales: [Numbers; 2],
    offsets: [Numbers; 2],
}

/// One for each output, once they are filled in.
type Numbers = MaybeUninit<[f32; WIDTH]>;

impl Heads {
    pub(super) const NONE: Heads =
        Heads { scales: [MaybeUninit::uninit(); 2], offsets: [MaybeUninit::uninit(); 2] };

    /// # Safety
    /// `block` lies within the panel; the machine has AVX-512.
    #[inline(always)]
    unsafe fn fill<F: Format>(&mut self, parts: Panel, block: usize) {
        for g in 0..F::GROUPS {
            // SAFETY: forwarded contract.
            unsafe {
                let group = block * F::GROUPS + g;
                let (scale, mut offset) = parts.scale_and_offset::<Avx512Lanes, F>(group);
                if F::IS_RAISED {
                    offset = scale.mul(Avx512Lanes::splat(-EXCESS));
                }
                scale.store(self.scales[g].as_mut_ptr().cast());
                offset.store(self.offsets[g].as_mut_ptr().cast());
            }
        }
    }
}

/// Turns a panel's codes into bf16 weights, block after block.
pub(super) struct Unpacker<'a> {
    pub(super) parts: Panel,
    pub(super) ahead: Ahead,
    n_blocks: usize,
    heads: &'a mut [Heads; HEADS],
}

impl<'a> Unpacker<'a> {
    pub(super) fn new(parts: Panel, n_blocks: usize, heads: &'a mut [Heads; HEADS]) -> Self {
        Unpacker { parts, ahead: Ahead::new(parts), n_blocks, heads }
    }

    /// Before the first block.
    ///
    /// # Safety
    /// The panel has the format; the machine has AVX-512.
    #[inline(always)]
    pub(super) unsafe fn start<F: Format>(&mut self) {
        for block in 0..HEADS_LAG.min(self.n_blocks) {
            // SAFETY: the block lies within the panel.
            unsafe { self.heads[block].fill::<F>(self.parts, block) };
        }
    }

    /// A block's sixteen outputs of thirty-two columns, with something else after each quarter.
    ///
    /// # Safety
    /// As [`start`](Self::start), which was called before the first block; blocks come in order
    /// and lie within the panel; `to` has room for a tile.
    #[inline(always)]
    pub(super) unsafe fn unpack<F: Format>(
        &mut self,
        block: usize,
        to: *mut u16,
        between: impl Between,
    ) {
        // SAFETY: forwarded contract.
        unsafe {
            let ahead = block + HEADS_LAG;
            if ahead < self.n_blocks {
                self.heads[ahead % HEADS].fill::<F>(self.parts, ahead);
            }
            let codes = self.parts.codes.add(block * F::CODE_BYTES);
            self.ahead.ask::<Avx512Lanes, F>();
            let heads = &self.heads[block % HEADS];
            unpack_quarter::<F>(codes, heads, 0, to);
            between.after::<0>();
            unpack_quarter::<F>(codes, heads, 1, to);
            between.after::<1>();
            unpack_quarter::<F>(codes, heads, 2, to);
            between.after::<2>();
            unpack_quarter::<F>(codes, heads, 3, to);
            between.after::<3>();
        }
    }
}

/// What is done between the quarters of a block that is unpacked.
///
/// The quarter is a constant, since tiles have names, not numbers: which one is meant would be
/// looked up for every quarter otherwise.
pub(super) trait Between: Copy {
    /// # Safety
    /// As that of what implements it.
    unsafe fn after<const QUARTER: usize>(self);

    /// All of it at once.
    ///
    /// # Safety
    /// As [`after`](Self::after).
    #[inline(always)]
    unsafe fn all(self) {
        // SAFETY: forwarded contract.
        unsafe {
            self.after::<0>();
            self.after::<1>();
            self.after::<2>();
            self.after::<3>();
        }
    }
}

/// Nothing is done.
impl Between for () {
    #[inline(always)]
    unsafe fn after<const QUARTER: usize>(self) {}
}

/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn unpack_quarter<F: Format>(codes: *const u8, heads: &Heads, quarter: usize, to: *mut u16) {
    // SAFETY: forwarded contract.
    unsafe {
        match F::CODES {
            Codes::Nibbles => unpack_nibbles::<F>(codes, heads, quarter, to),
            _ => unpack_bytes::<F>(codes, heads, quarter, to),
        }
    }
}

/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn unpack_nibbles<F: Format>(codes: *const u8, heads: &Heads, quarter: usize, to: *mut u16) {
    // SAFETY: a block has four vectors of codes, each with those of four outputs.
    unsafe {
        let halves = _mm512_load_si512(codes.add(64 * quarter).cast());
        for j in 0..4 {
            let output = 4 * quarter + j;
            let shifts = _mm512_load_si512(SHIFTS.0[j].as_ptr().cast());
            put_nibbles::<F>(halves, shifts, heads, output, to.add(output * 32));
        }
    }
}

/// For each nibble of a half word, where the bits begin whose third to sixth are the nibble: the
/// same place for both bytes of the half word, counted within eight bytes.
static SHIFTS: Shifts = Shifts({
    let mut shifts = [[0; 64]; 4];
    let mut i = 0;
    while i < 256 {
        let (nibble, byte) = (i / 64, i % 64);
        shifts[nibble][byte] = ((byte % 8 / 2 * 16 + 4 * nibble + 62) % 64) as u8;
        i += 1;
    }
    shifts
});

#[repr(align(64))]
struct Shifts([[u8; 64]; 4]);

/// One output's weights, looked up in the table of what each code stands for.
///
/// # Safety
/// As [`Unpacker::unpack`]; `to` has room for thirty-two.
#[inline(always)]
unsafe fn put_nibbles<F: Format>(
    halves: __m512i,
    shifts: __m512i,
    heads: &Heads,
    output: usize,
    to: *mut u16,
) {
    // SAFETY: forwarded contract.
    unsafe {
        // A float's upper half is its bf16: bytes 2 and 3 of each four of the table.
        let bits = _mm512_multishift_epi64_epi8(shifts, halves);
        let (code, upper) = (_mm512_set1_epi16(0x3c3c), _mm512_set1_epi16(0x0302));
        const AND_OR: i32 = 0xea;
        let index = _mm512_ternarylogic_epi32::<AND_OR>(bits, code, upper);
        let mut weights = _mm512_permutexvar_epi8(index, table(heads, 0, output));
        if F::GROUPS == 2 {
            let table = table(heads, 1, output);
            const LAST_HALF: u64 = 0xffff_ffff_0000_0000;
            weights = _mm512_mask_permutexvar_epi8(weights, LAST_HALF, index, table);
        }
        _mm512_store_si512(to.cast(), weights);
    }
}

/// What the sixteen codes of an output stand for, not yet cut to bf16.
///
/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn table(heads: &Heads, group: usize, output: usize) -> __m512i {
    // SAFETY: register operations, and reads within `heads`.
    unsafe {
        let codes = _mm512_setr_ps(
            -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
        );
        let scale = _mm512_set1_ps(heads.scales[group].assume_init_ref()[output]);
        let offset = _mm512_set1_ps(heads.offsets[group].assume_init_ref()[output]);
        _mm512_castps_si512(_mm512_fmadd_ps(codes, scale, offset))
    }
}

/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn unpack_bytes<F: Format>(codes: *const u8, heads: &Heads, quarter: usize, to: *mut u16) {
    for output in 4 * quarter..4 * quarter + 4 {
        // SAFETY: a block has thirty-two bytes for each output.
        unsafe {
            let codes = _mm256_load_si256(codes.add(32 * output).cast());
            let codes = _mm512_castsi256_si512(codes);
            let scale = spread::<F>(&heads.scales, output);
            let offset = spread::<F>(&heads.offsets, output);
            let even = byte_weights::<F>(codes, &SPREAD.0[0], scale, offset);
            let odd = byte_weights::<F>(codes, &SPREAD.0[1], scale, offset);
            // The even weights' upper halves below those of the odd ones.
            const LOWER: u64 = 0x3333_3333_3333_3333;
            let upper = _mm512_load_si512(UPPER.0.as_ptr().cast());
            let both = _mm512_mask_shuffle_epi8(odd, LOWER, even, upper);
            _mm512_store_si512(to.add(32 * output).cast(), both);
        }
    }
}

/// Which byte goes to the second of each four: the even columns, and the odd ones.
static SPREAD: Spread = Spread({
    let mut spread = [[0; 64]; 2];
    let mut i = 0;
    while i < 16 {
        spread[0][4 * i + 1] = 2 * i as u8;
        spread[1][4 * i + 1] = 2 * i as u8 + 1;
        i += 1;
    }
    spread
});

#[repr(align(64))]
struct Spread([[u8; 64]; 2]);

/// The upper half of each four bytes of sixteen.
static UPPER: Bytes = Bytes({
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        bytes[i] = (i / 4 * 4 % 16 + 2 + i % 2) as u8;
        i += 1;
    }
    bytes
});

#[repr(align(64))]
struct Bytes([u8; 64]);

/// An output's scale (or offset) for each of its sixteen even (or odd) columns.
///
/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn spread<F: Format>(heads: &[Numbers; 2], output: usize) -> __m512 {
    // SAFETY: register operations.
    unsafe {
        let first = _mm512_set1_ps(heads[0].assume_init_ref()[output]);
        match F::GROUPS {
            2 => {
                let second = _mm512_set1_ps(heads[1].assume_init_ref()[output]);
                _mm512_mask_blend_ps(0xff00, first, second)
            }
            _ => first,
        }
    }
}

/// Sixteen bytes' weights, not yet cut to bf16.
///
/// # Safety
/// The machine has AVX-512 with VBMI.
#[inline(always)]
unsafe fn byte_weights<F: Format>(
    codes: __m512i,
    spread: &[u8; 64],
    scale: __m512,
    offset: __m512,
) -> __m512i {
    // SAFETY: register operations, and a read of `spread`.
    unsafe {
        const SECOND: u64 = 0x2222_2222_2222_2222;
        let places = _mm512_load_si512(spread.as_ptr().cast());
        let raised = _mm512_castps_si512(_mm512_set1_ps(RAISED));
        let bits = _mm512_mask_permutexvar_epi8(raised, SECOND, places, codes);
        let mut floats = _mm512_castsi512_ps(bits);
        if !F::IS_RAISED {
            floats = _mm512_sub_ps(floats, _mm512_set1_ps(EXCESS));
        }
        _mm512_castps_si512(_mm512_fmadd_ps(floats, scale, offset))
    }
}
