//! Sixteen lanes in plain Rust: the meaning of every kernel, and its oracle.

use half::{bf16, f16};

use super::{Lanes, WIDTH};

#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalarLanes([f32; WIDTH]);

#[inline(always)]
fn map2(a: ScalarLanes, b: ScalarLanes, f: impl Fn(f32, f32) -> f32) -> ScalarLanes {
    ScalarLanes(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

// SAFETY: plain code runs everywhere; every pointer access stays within the sixteen elements (or
// sixty-four bytes, or four activations) that the trait's contract asks the caller to provide.
unsafe impl Lanes for ScalarLanes {
    type Int = [i32; WIDTH];
    type Codes = [u8; 4 * WIDTH];

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
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller provides sixteen elements.
        let bits = unsafe { from.cast::<[u16; WIDTH]>().read_unaligned() };
        Self(bits.map(|b| bf16::from_bits(b).to_f32()))
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
    unsafe fn int_splat(x: i32) -> Self::Int {
        [x; WIDTH]
    }

    #[inline(always)]
    unsafe fn int_add(a: Self::Int, b: Self::Int) -> Self::Int {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn int_join(high: Self::Int, low: Self::Int) -> Self::Int {
        std::array::from_fn(|i| 256 * high[i] + low[i])
    }

    #[inline(always)]
    unsafe fn int_to_f32(x: Self::Int) -> Self {
        Self(x.map(|i| i as f32))
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(self, n_biased: Self) -> Self {
        map2(self, n_biased, |x, n| {
            f32::from_bits(x.to_bits().wrapping_add(n.to_bits().wrapping_shl(23)))
        })
    }

    #[inline(always)]
    unsafe fn load_codes(from: *const u8) -> Self::Codes {
        // SAFETY: the caller provides sixty-four bytes.
        unsafe { from.cast::<[u8; 4 * WIDTH]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn split_nibbles(packed: Self::Codes) -> (Self::Codes, Self::Codes) {
        (packed.map(|b| b & 15), packed.map(|b| b >> 4))
    }

    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(
        mut sum: Self::Int,
        codes: Self::Codes,
        acts: *const i8,
    ) -> Self::Int {
        // SAFETY: the caller provides four activations.
        let acts = unsafe { acts.cast::<[i8; 4]>().read_unaligned() };
        for (lane, total) in sum.iter_mut().enumerate() {
            for (i, &act) in acts.iter().enumerate() {
                *total += i32::from(codes[4 * lane + i]) * i32::from(act);
            }
        }
        sum
    }

    #[inline(always)]
    unsafe fn store_rounded_i8(self, to: *mut i8) {
        // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the sum.
        let bytes = self.0.map(|x| (x + 12_582_912.0).to_bits() as i8);
        // SAFETY: the caller provides room for sixteen bytes.
        unsafe { to.cast::<[i8; WIDTH]>().write_unaligned(bytes) };
    }
}
