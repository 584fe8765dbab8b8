//! Quantised weights times quantised activations.
//!
//! For output `n` of row `m`, over the weight's groups `g` in rising order:
//! ```text
//! dot = Σ code·act − zero·Σ act                  exact, in integers
//! sum = fma(dot, scale_w[g] · scale_a[g], sum)
//! sum = fma(min_w[g], scale_a[g]·Σ act, sum)     types with a minimum
//! ```
//! Activations are bytes, or words of two bytes for weights that ask for them (the logits' do):
//! then
//! `dot = 256·dot_high + dot_low`, still exact.
//!
//! One chain per output, in a lane of its own: it does not know how many rows ride along, which
//! thread computes it or how wide the registers are. That is where batch invariance comes from.
//!
//! Weights stream in panels of sixteen outputs (see [`crate::packed`]); a panel's group is unpacked
//! once for up to [`ROWS`] rows.

use crate::acts::{ACT_BLOCK, ActView};
use crate::lanes::{Lanes, WIDTH, store_first};
use crate::packed::{QuantLayout, QuantView};

/// Rows that share one unpacking of the weights.
pub(crate) const ROWS: usize = 8;

/// Repeats a body for rows `0..R`, each with its row as a constant: the compiler then keeps the
/// rows'
/// sums in registers, where a loop of this size would keep them on the stack.
macro_rules! unroll_rows {
    ($n:ident, $r:ident, $body:block) => {
        unroll_rows!(@ $n, $r, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $n:ident, $r:ident, $body:block, $($row:literal)*) => {
        $(if $row < $n {
            let $r = $row;
            $body
        })*
    };
}

/// A layout's facts as constants, so that each gets its own straight loop.
pub(crate) trait Format {
    const NIBBLES: bool;
    const WIDE_CODES: bool;
    const GROUPS_OF_16: bool;
    const MIN: bool;
    const F32_SCALES: bool;

    const SCALE_BYTES: usize = if Self::F32_SCALES { 64 } else { 32 };
    const GROUPS: usize = if Self::GROUPS_OF_16 { 2 } else { 1 };
    const CODE_BYTES: usize = if Self::NIBBLES { 256 } else { 512 };
    /// Scales and minima of a block of 32 columns, before its codes.
    const HEAD_BYTES: usize = Self::SCALE_BYTES * Self::GROUPS * if Self::MIN { 2 } else { 1 };
    const BLOCK_BYTES: usize = Self::HEAD_BYTES + Self::CODE_BYTES;
}

/// Where a tile's results go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) data: *mut f32,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Add to what is there instead of replacing it.
    pub(crate) add: bool,
}

// SAFETY: ops hold the borrow of the output while kernels run; threads write disjoint panels.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

macro_rules! formats {
    ($($name:ident: $nibbles:literal $wide:literal $g16:literal $min:literal $f32:literal;)*) => {
        $(
            struct $name;
            impl Format for $name {
                const NIBBLES: bool = $nibbles;
                const WIDE_CODES: bool = $wide;
                const GROUPS_OF_16: bool = $g16;
                const MIN: bool = $min;
                const F32_SCALES: bool = $f32;
            }
        )*

        /// Computes outputs `panels` of all rows.
        ///
        /// # Safety
        /// As [`Lanes`]; `panels` lies within the weight, `acts` has `n_rows` quantised rows of the
        /// weight's width, and `out` has room for `n_rows` rows of the weight's outputs.
        #[inline(always)]
        pub(crate) unsafe fn matmul<V: Lanes>(
            w: QuantView,
            panels: std::ops::Range<usize>,
            acts: ActView,
            n_rows: usize,
            out: Output,
        ) {
            // SAFETY: forwarded contract; the layout decides the format it was packed with.
            unsafe {
                match (w.layout, w.words) {
                    $(
                        (QuantLayout::$name, false) => {
                            all_panels::<V, $name, false>(w, panels, acts, n_rows, out)
                        }
                        (QuantLayout::$name, true) => {
                            all_panels::<V, $name, true>(w, panels, acts, n_rows, out)
                        }
                    )*
                }
            }
        }

        impl QuantLayout {
            /// Bytes of thirty-two columns of a panel.
            pub(crate) fn block_bytes(self) -> usize {
                match self { $(QuantLayout::$name => $name::BLOCK_BYTES,)* }
            }

            /// Bytes of those before the codes.
            pub(crate) fn head_bytes(self) -> usize {
                match self { $(QuantLayout::$name => $name::HEAD_BYTES,)* }
            }

            pub(crate) fn nibbles(self) -> bool {
                match self { $(QuantLayout::$name => $name::NIBBLES,)* }
            }

            pub(crate) fn f32_scales(self) -> bool {
                match self { $(QuantLayout::$name => $name::F32_SCALES,)* }
            }
        }
    };
}

formats! {
    // name       nibbles wide  g16   min   f32 scales
    Nibble:       true    false false false false;
    NibbleMin:    true    false false true  false;
    NibbleMinF32: true    false false true  true;
    Nibble16F32:  true    false true  false true;
    Nibble16MinF32: true  false true  true  true;
    Byte:         false   false false false false;
    ByteWide:     false   true  false false false;
    ByteMin:      false   false false true  false;
    ByteMinF32:   false   false false true  true;
    Byte16F32:    false   false true  false true;
}

/// # Safety
/// As [`matmul`].
#[inline(always)]
unsafe fn all_panels<V: Lanes, F: Format, const WORDS: bool>(
    w: QuantView,
    panels: std::ops::Range<usize>,
    acts: ActView,
    n_rows: usize,
    out: Output,
) {
    for panel in panels {
        let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
        let mut row = 0;
        // SAFETY: `panel` is within the weight, rows stay below `n_rows`; the caller vouches for
        // the buffers behind both.
        unsafe {
            while row + ROWS <= n_rows {
                tile::<V, F, WORDS, ROWS>(w, panel, n_outputs, acts, row, out);
                row += ROWS;
            }
            while row + 2 <= n_rows {
                tile::<V, F, WORDS, 2>(w, panel, n_outputs, acts, row, out);
                row += 2;
            }
            if row < n_rows {
                tile::<V, F, WORDS, 1>(w, panel, n_outputs, acts, row, out);
            }
        }
    }
}

/// `R` rows of one panel.
///
/// # Safety
/// As [`matmul`], for rows `row..row + R`.
#[inline(always)]
unsafe fn tile<V: Lanes, F: Format, const WORDS: bool, const R: usize>(
    w: QuantView,
    panel: usize,
    n_outputs: usize,
    acts: ActView,
    row: usize,
    out: Output,
) {
    let n_blocks = w.n_cols / ACT_BLOCK;
    // SAFETY: the panel's blocks and the rows' activations lie within their buffers, as the caller
    // vouches; `n_outputs <= 16` elements are written per row.
    unsafe {
        let mut weights = w.data.add(panel * n_blocks * F::BLOCK_BYTES);
        let first = ActBytes {
            high: acts.bytes.add(row * w.n_cols),
            low: acts.low_bytes.add(row * w.n_cols),
        };
        let metas = acts.blocks.add(row * n_blocks);
        let mut sums = [V::splat(0.0); R];
        for block in 0..n_blocks {
            let codes = load_block::<V, F>(weights.add(F::HEAD_BYTES));
            for g in 0..F::GROUPS {
                let scale = load_scale::<V, F>(weights, g);
                let min = if F::MIN { load_scale::<V, F>(weights, F::GROUPS + g) } else { scale };
                let codes = &codes[8 / F::GROUPS * g..8 / F::GROUPS * (g + 1)];
                unroll_rows!(R, r, {
                    let meta = *metas.add(r * n_blocks + block);
                    let acts = first.at(r * w.n_cols + block * ACT_BLOCK + 16 * g);
                    let act_sum =
                        if F::GROUPS_OF_16 { meta.sums[g] } else { meta.sums[0] + meta.sums[1] };
                    // Types with a minimum have no zero point.
                    let start = if F::MIN { 0 } else { -w.zero * act_sum };
                    let dot = dot_group::<V, F, WORDS>(codes, acts, start);
                    sums[r] = dot.mul_add(scale.mul(V::splat(meta.scale)), sums[r]);
                    if F::MIN {
                        let scaled_sum = if F::GROUPS_OF_16 {
                            meta.scale * act_sum as f32
                        } else {
                            meta.scaled_sum
                        };
                        sums[r] = min.mul_add(V::splat(scaled_sum), sums[r]);
                    }
                });
            }
            weights = weights.add(F::BLOCK_BYTES);
        }
        for (r, sum) in sums.into_iter().enumerate() {
            finish::<V>(sum, out, (row + r) * out.stride + panel * WIDTH, n_outputs);
        }
    }
}

/// The eight code vectors of thirty-two columns: vector `i` holds columns `4i..4i + 4`.
///
/// # Safety
/// As [`Lanes`]; `from` holds a block's codes.
#[inline(always)]
unsafe fn load_block<V: Lanes, F: Format>(from: *const u8) -> [V::Codes; 8] {
    // SAFETY: a block has four (nibbles) or eight vectors of sixty-four bytes.
    unsafe {
        let mut codes = [V::load_codes(from); 8];
        for i in 0..4 {
            if F::NIBBLES {
                (codes[i], codes[i + 4]) = V::split_nibbles(V::load_codes(from.add(64 * i)));
            } else {
                codes[i] = V::load_codes(from.add(64 * i));
                codes[i + 4] = V::load_codes(from.add(64 * (i + 4)));
            }
        }
        codes
    }
}

/// # Safety
/// As [`Lanes`]; `head` starts a block and `index` names one of its scale or minimum vectors.
#[inline(always)]
unsafe fn load_scale<V: Lanes, F: Format>(head: *const u8, index: usize) -> V {
    // SAFETY: the block's head holds that many vectors.
    unsafe {
        let at = head.add(index * F::SCALE_BYTES);
        if F::F32_SCALES { V::load(at.cast()) } else { V::load_f16(at.cast()) }
    }
}

/// A row's activation bytes: of words, the high and the low ones.
#[derive(Clone, Copy)]
struct ActBytes {
    high: *const i8,
    low: *const i8,
}

impl ActBytes {
    /// # Safety
    /// `offset` lies within the row.
    #[inline(always)]
    unsafe fn at(self, offset: usize) -> ActBytes {
        // SAFETY: forwarded contract; `low` covers the same row as `high`.
        unsafe { ActBytes { high: self.high.add(offset), low: self.low.add(offset) } }
    }
}

/// One group's dot product plus `start`, in all sixteen lanes.
///
/// # Safety
/// As [`Lanes`]; `acts` has as many bytes as the group.
#[inline(always)]
unsafe fn dot_group<V: Lanes, F: Format, const WORDS: bool>(
    codes: &[V::Codes],
    acts: ActBytes,
    start: i32,
) -> V {
    // SAFETY: register operations, and `acts` read within the group.
    unsafe {
        let start = V::int_splat(start);
        let dot = if WORDS {
            let high = dot_bytes::<V, F>(codes, acts.high, V::int_splat(0));
            V::int_join(high, dot_bytes::<V, F>(codes, acts.low, start))
        } else {
            dot_bytes::<V, F>(codes, acts.high, start)
        };
        V::int_to_f32(dot)
    }
}

/// # Safety
/// As [`dot_group`].
#[inline(always)]
unsafe fn dot_bytes<V: Lanes, F: Format>(
    codes: &[V::Codes],
    acts: *const i8,
    start: V::Int,
) -> V::Int {
    // SAFETY: register operations, and `acts` read within the group.
    unsafe {
        // Two chains hide the latency of the integer dot product; integer sums are exact.
        let (mut even, mut odd) = (start, V::int_splat(0));
        for (i, &code) in codes.iter().enumerate() {
            if i % 2 == 0 {
                even = dot4::<V, F>(even, code, acts.add(4 * i));
            } else {
                odd = dot4::<V, F>(odd, code, acts.add(4 * i));
            }
        }
        V::int_add(even, odd)
    }
}

/// # Safety
/// As [`Lanes::dot4`].
#[inline(always)]
unsafe fn dot4<V: Lanes, F: Format>(sum: V::Int, codes: V::Codes, acts: *const i8) -> V::Int {
    // SAFETY: forwarded contract.
    unsafe {
        if F::WIDE_CODES {
            V::dot4::<true>(sum, codes, acts)
        } else {
            V::dot4::<false>(sum, codes, acts)
        }
    }
}

/// # Safety
/// As [`Lanes`]; `out` has `n_outputs` elements at `at`.
#[inline(always)]
pub(crate) unsafe fn finish<V: Lanes>(sum: V, out: Output, at: usize, n_outputs: usize) {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        let to = out.data.add(at);
        let value =
            if out.add { sum.add(crate::lanes::load_first(to, n_outputs, 0.0)) } else { sum };
        store_first(value, to, n_outputs);
    }
}
