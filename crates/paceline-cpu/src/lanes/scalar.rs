//! Sixteen lanes in plain Rust: the meaning of every kernel, and its oracle.

use half::f16;

use super::{Lanes, WIDTH};

#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalarLanes([f32; WIDTH]);

#[inline(always)]
fn map2(a: ScalarLanes, b: ScalarLanes, f: impl Fn(f32, f32) -> f32) -> ScalarLanes {
    ScalarLanes(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

// SAFETY: plain code runs everywhere; every pointer access stays within the sixteen elements that
// the trait's contract asks the caller to provide.
unsafe impl Lanes for ScalarLanes {
    type Words = [u32; WIDTH];

    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; WIDTH])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller provides sixteen elements; the read asks for no alignment.
        Self(unsafe { from.cast::<[f32; WIDTH]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller provides room for sixteen elements.
        unsafe { to.cast::<[f32; WIDTH]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller provides sixteen elements.
        let bits = unsafe { from.cast::<[u16; WIDTH]>().read_unaligned() };
        Self(bits.map(|b| f16::from_bits(b).to_f32()))
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        let bits = self.0.map(|x| f16::from_f32(x).to_bits());
        // SAFETY: the caller provides room for sixteen elements.
        unsafe { to.cast::<[u16; WIDTH]>().write_unaligned(bits) };
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        map2(self, other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        map2(self, other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        map2(self, other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        map2(self, other, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], addend.0[i])))
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        map2(self, other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        map2(self, other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn keep_first(self, n: usize, fill: f32) -> Self {
        Self(std::array::from_fn(|i| if i < n { self.0[i] } else { fill }))
    }

    #[inline(always)]
    unsafe fn keep(self, lanes: u16, fill: f32) -> Self {
        Self(std::array::from_fn(|i| if lanes >> i & 1 == 1 { self.0[i] } else { fill }))
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(self, n_biased: Self) -> Self {
        map2(self, n_biased, |x, n| {
            f32::from_bits(x.to_bits().wrapping_add(n.to_bits().wrapping_shl(23)))
        })
    }

    #[inline(always)]
    unsafe fn minus_inverse(self) -> Self {
        Self(self.0.map(|x| f32::from_bits(super::BITS_OF_MINUS_ONE.wrapping_sub(x.to_bits()))))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller provides sixteen elements.
        Self(unsafe { from.cast::<[i8; WIDTH]>().read_unaligned() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn round_bf16(self) -> Self {
        Self(self.0.map(super::round_to_bf16))
    }

    #[inline(always)]
    unsafe fn round_weight(self) -> Self {
        Self(self.0.map(|x| f32::from_bits(x.to_bits().wrapping_add(0x8000) & 0xffff_0000)))
    }

    #[inline(always)]
    unsafe fn cut_to_bf16(self) -> Self {
        Self(self.0.map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        let bits = self.0.map(|x| (x.to_bits() >> 16) as u16);
        // SAFETY: the caller provides room for sixteen elements.
        unsafe { to.cast::<[u16; WIDTH]>().write_unaligned(bits) };
    }

    #[inline(always)]
    unsafe fn load_words(from: *const u8) -> Self::Words {
        // SAFETY: the caller provides sixteen words.
        unsafe { from.cast::<[u32; WIDTH]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn splat_words(number: i32) -> Self::Words {
        [number as u32; WIDTH]
    }

    #[inline(always)]
    unsafe fn halves<const SHIFT: u32>(words: Self::Words, mask: u16) -> Self::Words {
        let mask = u32::from(mask) << 16 | u32::from(mask);
        words.map(|word| word >> SHIFT & mask)
    }

    #[inline(always)]
    unsafe fn signed_bytes<const ODD: bool>(words: Self::Words) -> Self::Words {
        words.map(|word| {
            let bytes = word.to_le_bytes().map(|byte| i16::from(byte as i8));
            let first = usize::from(ODD);
            super::word_of([bytes[first], bytes[first + 2]]) as u32
        })
    }

    #[inline(always)]
    unsafe fn add_products(sums: Self::Words, halves: Self::Words, pair: [i16; 2]) -> Self::Words {
        let [low, high] = pair.map(i32::from);
        let product = |i: usize| {
            let (a, b) = (halves[i] as i16, (halves[i] >> 16) as i16);
            (i32::from(a) * low + i32::from(b) * high) as u32
        };
        std::array::from_fn(|i| sums[i].wrapping_add(product(i)))
    }

    #[inline(always)]
    unsafe fn from_words(words: Self::Words) -> Self {
        Self(words.map(|word| word as i32 as f32))
    }

    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        // SAFETY: the caller provides room for sixteen elements.
        unsafe { to.cast::<[i16; WIDTH]>().write_unaligned(self.0.map(|x| x as i16)) };
    }

    #[inline(always)]
    unsafe fn max_magnitude(self) -> f32 {
        f32::from_bits(self.0.map(|x| x.abs().to_bits()).into_iter().fold(0, u32::max))
    }

    #[inline(always)]
    unsafe fn nibble<const SHIFT: u32>(words: Self::Words) -> Self {
        Self(words.map(|word| (word >> SHIFT & 15) as f32 - 8.0))
    }

    #[inline(always)]
    unsafe fn low_bf16(words: Self::Words) -> Self {
        Self(words.map(|word| f32::from_bits(word << 16)))
    }

    #[inline(always)]
    unsafe fn high_bf16(words: Self::Words) -> Self {
        Self(words.map(|word| f32::from_bits(word & 0xffff_0000)))
    }
}
