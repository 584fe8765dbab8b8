//! Kernels that work on one row at a time: norm, quantisation, rope, activations.

use crate::acts::{ACT_BLOCK, ActBlock, ActViewMut};
use crate::lanes::{Lanes, WIDTH, load_first, store_first, sum_lanes, to_array};
use crate::math::{ROUNDER, gelu_tanh, run_len, silu, tanh};

/// `out = x / rms(x) * weight`.
///
/// # Safety
/// As [`Lanes`]; all three hold `n` elements; `out` may be `x`.
#[inline(always)]
pub(crate) unsafe fn rms_norm<V: Lanes>(
    x: *const f32,
    weight: *const f32,
    eps: f32,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: runs stay below `n`.
    unsafe {
        let mut squares = V::splat(0.0);
        for i in (0..n).step_by(WIDTH) {
            let count = run_len(i, n);
            let v = load_first::<V>(x.add(i), count, 0.0);
            squares = v.mul_add(v, squares);
        }
        let scale = V::splat(1.0 / (sum_lanes(squares) / n as f32 + eps).sqrt());
        for i in (0..n).step_by(WIDTH) {
            let count = run_len(i, n);
            let v = load_first::<V>(x.add(i), count, 0.0).mul(scale);
            let w = load_first::<V>(weight.add(i), count, 0.0);
            store_first(v.mul(w), out.add(i), count);
        }
    }
}

/// Quantises one row into bytes with a scale per 32 values.
///
/// # Safety
/// As [`Lanes`]; `x` and `bytes` hold `n` elements, `n` a multiple of 32, `blocks` `n / 32`.
#[inline(always)]
pub(crate) unsafe fn quantize<V: Lanes>(
    x: *const f32,
    n: usize,
    bytes: *mut i8,
    blocks: *mut ActBlock,
) {
    for block in 0..n / ACT_BLOCK {
        // SAFETY: block by block within `n`.
        unsafe {
            let at = block * ACT_BLOCK;
            let halves = [V::load(x.add(at)), V::load(x.add(at + WIDTH))];
            let largest = largest_of::<V>(halves);
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            for (half, v) in halves.into_iter().enumerate() {
                v.mul(V::splat(inverse)).store_rounded_i8(bytes.add(at + half * WIDTH));
            }
            let scale = largest / 127.0;
            let sums = [sum_bytes(bytes.add(at)), sum_bytes(bytes.add(at + WIDTH))];
            let scaled_sum = scale * (sums[0] + sums[1]) as f32;
            *blocks.add(block) = ActBlock { scale, scaled_sum, sums };
        }
    }
}

/// Quantises one row into 16-bit words, kept as two signed bytes, with a scale per 32 values.
///
/// # Safety
/// As [`quantize`], with `low` as `high`.
#[inline(always)]
pub(crate) unsafe fn quantize_words<V: Lanes>(
    x: *const f32,
    n: usize,
    (high, low): (*mut i8, *mut i8),
    blocks: *mut ActBlock,
) {
    /// Largest word: its high byte is 127.
    const LARGEST: f32 = 127.0 * 256.0;
    for block in 0..n / ACT_BLOCK {
        // SAFETY: block by block within `n`.
        unsafe {
            let at = block * ACT_BLOCK;
            let halves = [V::load(x.add(at)), V::load(x.add(at + WIDTH))];
            let largest = largest_of::<V>(halves);
            let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
            let mut sums = [0; 2];
            for (half, v) in halves.into_iter().enumerate() {
                for (i, x) in to_array(v.mul(V::splat(inverse))).into_iter().enumerate() {
                    let word = i32::from((x + ROUNDER).to_bits() as i16);
                    let top = (word + 128) >> 8;
                    *high.add(at + half * WIDTH + i) = top as i8;
                    *low.add(at + half * WIDTH + i) = (word - 256 * top) as i8;
                    sums[half] += word;
                }
            }
            let scale = largest / LARGEST;
            let scaled_sum = scale * (sums[0] + sums[1]) as f32;
            *blocks.add(block) = ActBlock { scale, scaled_sum, sums };
        }
    }
}

/// The largest magnitude of two vectors.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn largest_of<V: Lanes>(halves: [V; 2]) -> f32 {
    // SAFETY: register operations only.
    unsafe {
        let zero = V::splat(0.0);
        let [a, b] = halves;
        a.max(zero.sub(a)).max(b.max(zero.sub(b))).max_lane()
    }
}

/// Sum of sixteen bytes.
///
/// # Safety
/// `bytes` holds sixteen.
#[inline(always)]
unsafe fn sum_bytes(bytes: *const i8) -> i32 {
    let mut sum = 0;
    for i in 0..WIDTH {
        // SAFETY: within the sixteen.
        sum += i32::from(unsafe { *bytes.add(i) });
    }
    sum
}

/// Fills in row `row` of `acts` from `x` (which may be that row itself), in the forms asked for.
///
/// # Safety
/// As [`Lanes`]; `x` holds a row, `row` lies within `acts`.
#[inline(always)]
pub(crate) unsafe fn put_acts<V: Lanes>(x: *const f32, acts: ActViewMut, row: usize) {
    let n = acts.n_cols;
    // SAFETY: the row lies within the buffers.
    unsafe {
        let blocks = acts.blocks.add(row * (n / ACT_BLOCK));
        if acts.forms.bytes {
            quantize::<V>(x, n, acts.bytes.add(row * n), blocks);
        }
        if acts.forms.words {
            let bytes = (acts.bytes.add(row * n), acts.low_bytes.add(row * n));
            quantize_words::<V>(x, n, bytes, blocks);
        }
        let floats = acts.floats.add(row * n);
        if acts.forms.floats && !std::ptr::eq(x, floats) {
            std::ptr::copy_nonoverlapping(x, floats, n);
        }
    }
}

/// `gate = act(gate) * up`.
///
/// # Safety
/// As [`Lanes`]; both hold `n` elements.
#[inline(always)]
pub(crate) unsafe fn gated<V: Lanes>(gate: *mut f32, up: *const f32, n: usize, gelu: bool) {
    for i in (0..n).step_by(WIDTH) {
        let count = run_len(i, n);
        // SAFETY: runs stay below `n`.
        unsafe {
            let g = load_first::<V>(gate.add(i), count, 0.0);
            let u = load_first::<V>(up.add(i), count, 0.0);
            let g = if gelu { gelu_tanh(g) } else { silu(g) };
            store_first(g.mul(u), gate.add(i), count);
        }
    }
}

/// Rotates the pairs `(x[i], x[i + half])` of one head by the angles whose cosines and sines are
/// given.
///
/// # Safety
/// As [`Lanes`]; `x` holds `2 * half` elements, `cos` and `sin` `half`.
#[inline(always)]
pub(crate) unsafe fn rope<V: Lanes>(x: *mut f32, cos: *const f32, sin: *const f32, half: usize) {
    for i in (0..half).step_by(WIDTH) {
        let count = run_len(i, half);
        // SAFETY: runs stay below `half`.
        unsafe {
            let a = load_first::<V>(x.add(i), count, 0.0);
            let b = load_first::<V>(x.add(half + i), count, 0.0);
            let c = load_first::<V>(cos.add(i), count, 0.0);
            let s = load_first::<V>(sin.add(i), count, 0.0);
            let zero = V::splat(0.0);
            store_first(a.mul_add(c, zero.sub(b.mul(s))), x.add(i), count);
            store_first(b.mul_add(c, a.mul(s)), x.add(half + i), count);
        }
    }
}

/// `x += y`.
///
/// # Safety
/// As [`Lanes`]; both hold `n` elements.
#[inline(always)]
pub(crate) unsafe fn add<V: Lanes>(x: *mut f32, y: *const f32, n: usize) {
    for i in (0..n).step_by(WIDTH) {
        let count = run_len(i, n);
        // SAFETY: runs stay below `n`.
        unsafe {
            let sum = load_first::<V>(x.add(i), count, 0.0).add(load_first(y.add(i), count, 0.0));
            store_first(sum, x.add(i), count);
        }
    }
}

/// `x = cap * tanh(x / cap)`.
///
/// # Safety
/// As [`Lanes`]; `x` holds `n` elements.
#[inline(always)]
pub(crate) unsafe fn softcap<V: Lanes>(x: *mut f32, n: usize, cap: f32) {
    for i in (0..n).step_by(WIDTH) {
        let count = run_len(i, n);
        // SAFETY: runs stay below `n`.
        unsafe {
            let v = softcap_lanes(load_first::<V>(x.add(i), count, 0.0), cap);
            store_first(v, x.add(i), count);
        }
    }
}

/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn softcap_lanes<V: Lanes>(x: V, cap: f32) -> V {
    // SAFETY: register operations only.
    unsafe { tanh(x.div(V::splat(cap))).mul(V::splat(cap)) }
}
