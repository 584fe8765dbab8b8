//! The product of [`super::matmul_int`] a block of weights at a time, to the bit: half words two by
//! two, or bytes four by four ([`ints`]).
//!
//! With AVX-512 three panels go together, so that an activation that is read meets 48 outputs. A
//! block of theirs is unpacked once for all rows; eight rows at a time then have their sums of
//! products in registers. AVX2 has room for a panel and four rows. What becomes of their sums is in
//! [`sink`].

mod ints;
mod pairs;
pub(crate) mod rough;
mod sink;

use std::arch::asm;
use std::ops::Range;

use ints::{Ints, MAX_STEPS, RAISED, Set, Words};
pub(crate) use ints::{Paired, Products, Vnni};
pub(crate) use pairs::Pairs;
use sink::{Product, RowTops, Sink};

use crate::acts::{ActView, IntScale, KeptAs, TILE_ROWS};
use crate::aligned::LINE;
use crate::kernels::format::{Format, Panel, with_int_format};
use crate::kernels::matmul::{Ahead, Output, unroll_rows};
use crate::kernels::matmul_amx::{GateSink, TileTops, TopSink};
use crate::kernels::matmul_int::{self, MAX_GROUPS, Scales};
use crate::lanes::{Lanes, WIDTH};
use crate::packed::CodedView;

/// Panels of a gated product that go together: those of a block of activations, of both weights.
pub(crate) const GATED: usize = 4;

/// Rows for which half words are met as everywhere.
pub(crate) const FEW: usize = 2;

/// Rows for which a block is unpacked once.
pub(crate) const ROWS: usize = 64;

/// Computes outputs `panels` of `rows`.
///
/// # Safety
/// As [`super::matmul_int::matmul`], on a machine that has what `I` multiplies with.
#[inline(always)]
pub(crate) unsafe fn matmul<I: Products>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
) {
    // SAFETY: forwarded contract.
    unsafe {
        if rows.len() <= FEW && !are_bytes(acts) {
            // Each panel's sums stay in registers, and nothing is stored on the way.
            return matmul_int::matmul::<<I::Words as Ints>::V>(w, panels, acts, rows, out);
        }
        multiply::<I>([w, w], panels, acts, rows, Sink::Rows(out));
    }
}

fn are_bytes(acts: ActView) -> bool {
    matches!(acts.forms.ints, Some((_, KeptAs::Bytes)))
}

/// Computes activations `panels` of `rows`: the gate of the first weight's outputs, times the
/// second's.
///
/// # Safety
/// As [`matmul`], for two weights of one layout and shape, whole blocks of outputs, and room for
/// them in `to`; the rows begin with a tile.
#[inline(always)]
pub(crate) unsafe fn gated<I: Products>(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: GateSink,
) {
    // SAFETY: forwarded contract.
    unsafe { multiply::<I>(weights, panels, acts, rows, Sink::Gate(to)) }
}

/// Finds the largest of outputs `panels` of each of `rows`.
///
/// # Safety
/// As [`matmul`], for at most [`ROWS`] rows, and tops for each of their tiles.
#[inline(always)]
pub(crate) unsafe fn find_tops<I: Products>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: TopSink,
) {
    let (n, mut tops) = (rows.len(), RowTops::new(rows.start));
    // SAFETY: forwarded contract.
    unsafe {
        multiply::<I>([w, w], panels, acts, rows, Sink::Tops(&raw mut tops));
        let n_tiles = n.div_ceil(TILE_ROWS);
        tops.put(n, std::slice::from_raw_parts_mut::<TileTops>(to.tops, n_tiles));
    }
}

/// # Safety
/// As [`matmul`] for the same weight twice and rows as sink, [`gated`] for a gate, [`find_tops`]
/// for tops, [`rough::bound`] for bounds.
#[inline(always)]
unsafe fn multiply<I: Products>(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    sink: Sink,
) {
    let layout = weights[0].layout;
    // SAFETY: forwarded contract; the layout names the format the weight was packed with.
    unsafe {
        if are_bytes(acts) {
            with_int_format!(layout, all_panels::<I::Bytes>(weights, panels, acts, rows, sink));
        } else {
            with_int_format!(layout, all_panels::<I::Words>(weights, panels, acts, rows, sink));
        }
    }
}

/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn all_panels<I: Ints, F: Format>(
    [w, up]: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    sink: Sink,
) {
    for first in rows.clone().step_by(ROWS) {
        let rows = first..rows.end.min(first + ROWS);
        let product = |panel| Product { panel, n_outputs: w.n_rows, rows: rows.clone(), acts };
        let mut panel = panels.start;
        // SAFETY: the caller vouches for panels and rows.
        unsafe {
            if I::V::PANELS == 3 && matches!(sink, Sink::Gate(_)) {
                for panel in panels.clone().step_by(GATED / 2) {
                    let [a, b, c, d] = [(w, 0), (w, 1), (up, 0), (up, 1)];
                    let parts = [a, b, c, d].map(|(w, nth)| w.panel(panel + nth));
                    some_panels::<I, F, GATED, 2>(parts, w.panel.n_blocks, product(panel), sink);
                }
                continue;
            }
            while I::V::PANELS == 3 && panel + 3 <= panels.end {
                let parts = [0, 1, 2].map(|nth| w.panel(panel + nth));
                some_panels::<I, F, 3, 1>(parts, w.panel.n_blocks, product(panel), sink);
                panel += 3;
            }
            if I::V::PANELS == 3 && panel + 2 <= panels.end {
                let parts = [0, 1].map(|nth| w.panel(panel + nth));
                some_panels::<I, F, 2, 1>(parts, w.panel.n_blocks, product(panel), sink);
                panel += 2;
            }
            while panel < panels.end {
                let parts = [w.panel(panel)];
                some_panels::<I, F, 1, 1>(parts, w.panel.n_blocks, product(panel), sink);
                panel += 1;
            }
        }
    }
}

/// A block of `P` panels, and the sums of the rows it meets.
#[repr(C, align(64))]
struct Scratch<const P: usize> {
    codes: [[[u8; LINE]; P]; MAX_STEPS],
    scales: [[GroupScales; P]; MAX_GROUPS],
    sums: [[[f32; WIDTH]; P]; ROWS],
}

/// Scales, as much to take off as they make of [`RAISED`], and minima.
type GroupScales = [[f32; WIDTH]; 3];

/// The product of `P` panels, of `S` weights, with at most [`ROWS`] rows.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn some_panels<I: Ints, F: Format, const P: usize, const S: usize>(
    parts: [Panel; P],
    n_blocks: usize,
    product: Product,
    sink: Sink,
) {
    // SAFETY: forwarded contract.
    unsafe {
        match I::SET {
            Set::Avx2 => with_avx2::<I, F, P, S>(parts, n_blocks, product, sink),
            Set::Avx512 => with_avx512::<I, F, P, S>(parts, n_blocks, product, sink),
            Set::Vnni => with_vnni::<I, F, P, S>(parts, n_blocks, product, sink),
        }
    }
}

/// [`all_blocks`], compiled for some instructions.
macro_rules! doors {
    ($($name:ident: $features:literal;)*) => {$(
        /// # Safety
        /// As [`some_panels`].
        #[target_feature(enable = $features)]
        unsafe fn $name<I: Ints, F: Format, const P: usize, const S: usize>(
            parts: [Panel; P],
            n_blocks: usize,
            product: Product,
            sink: Sink,
        ) {
            // SAFETY: forwarded contract.
            unsafe { all_blocks::<I, F, P, S>(parts, n_blocks, product, sink) }
        }
    )*};
}

doors! {
    with_avx2: "avx2,fma,f16c";
    with_avx512: "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c";
    with_vnni: "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";
}

/// # Safety
/// As [`some_panels`].
#[inline(always)]
unsafe fn all_blocks<I: Ints, F: Format, const P: usize, const S: usize>(
    parts: [Panel; P],
    n_blocks: usize,
    product: Product,
    sink: Sink,
) {
    let mut scratch = std::mem::MaybeUninit::<Scratch<P>>::uninit();
    let scratch = scratch.as_mut_ptr();
    let (acts, rows) = (product.acts, product.rows.clone());
    // SAFETY: the panels' blocks and the rows' activations lie within their buffers, as the caller
    // vouches; what is read of the scratch was written before.
    unsafe {
        let sums = (&raw mut (*scratch).sums).cast::<[[f32; WIDTH]; P]>();
        sums.write_bytes(0, rows.len());
        let mut ahead = [Ahead::new(parts[0]); S];
        for (s, ahead) in ahead.iter_mut().enumerate() {
            *ahead = Ahead::new(parts[s * P / S]);
        }
        let rows_asked = rows.len().div_ceil(n_blocks);
        for block in 0..n_blocks {
            sink.ask::<P>(&product, block * rows_asked..(block + 1) * rows_asked);
            for (p, parts) in parts.into_iter().enumerate() {
                ahead[p * S / P].ask::<I::V, F>();
                unpack::<I, F, P>(parts, block, p, scratch);
            }
            // Where rows take longer, the processor looks ahead itself.
            if I::SET == Set::Vnni && rows.len() <= ROWS / 2 {
                for parts in parts {
                    parts.ask::<I::V, F>(block + 1);
                }
            }
            for first in rows.clone().step_by(acts.tile_rows) {
                let n = acts.tile_rows.min(rows.end - first);
                for group in 0..F::GROUPS {
                    let xs = Xs::new::<I, F>(acts, first, (block, group));
                    add_tile::<I, F, P>(xs, n, first - rows.start, scratch);
                }
            }
        }
        I::hand_on(sums, product, sink);
    }
}

/// Unpacks a block of panel `p` of the scratch's.
///
/// # Safety
/// `block` lies within the panel, `p` within the scratch; the machine has the instructions.
#[inline(always)]
unsafe fn unpack<I: Ints, F: Format, const P: usize>(
    parts: Panel,
    block: usize,
    p: usize,
    scratch: *mut Scratch<P>,
) {
    // SAFETY: forwarded contract.
    unsafe {
        for group in 0..F::GROUPS {
            let Scales { scale, min } = Scales::<I::V>::load::<F>(parts, block * F::GROUPS + group);
            let to = &raw mut (*scratch).scales[group][p];
            scale.store((&raw mut (*to)[0]).cast());
            scale.mul(I::V::splat(-RAISED)).store((&raw mut (*to)[1]).cast());
            min.store((&raw mut (*to)[2]).cast());
        }
        let to = (&raw mut (*scratch).codes[0][p]).cast();
        I::unpack::<F, P>(parts.codes.add(block * F::CODE_BYTES), to);
    }
}

/// A group of a block of a tile of rows.
#[derive(Clone, Copy)]
struct Xs {
    group: usize,
    /// Of the whole block.
    ints: *const u8,
    units: *const f32,
    /// Where there are two groups.
    sums: *const f32,
    tile_rows: usize,
}

impl Xs {
    /// # Safety
    /// A tile begins with `row`; all three lie within the activations.
    #[inline(always)]
    unsafe fn new<I: Ints, F: Format>(
        acts: ActView,
        row: usize,
        (block, group): (usize, usize),
    ) -> Xs {
        let ActView { n_blocks, tile_rows, .. } = acts;
        let at = row * n_blocks + block * tile_rows;
        // SAFETY: forwarded contract.
        unsafe {
            let ints = acts.ints.add(at * I::ROW_BYTES);
            let units = acts.int_scales.add(at * IntScale::FIELDS);
            let (ints, units) = (in_register(ints.cast_mut()), in_register(units.cast_mut()));
            let sums = match F::GROUPS {
                1 => std::ptr::null(),
                _ => acts.half_sums.add(at * MAX_GROUPS + group * tile_rows),
            };
            Xs { group, ints, units, sums, tile_rows }
        }
    }

    /// # Safety
    /// The row lies within the tile.
    #[inline(always)]
    unsafe fn scale<F: Format>(&self, row: usize) -> IntScale {
        // SAFETY: forwarded contract.
        unsafe {
            match F::GROUPS {
                1 => IntScale::read(self.units.add(row), self.tile_rows),
                _ => IntScale::of_half(self.units.add(row), self.sums.add(row)),
            }
        }
    }

    /// The same without the first `n` rows.
    ///
    /// # Safety
    /// There are as many.
    #[inline(always)]
    unsafe fn after<I: Ints>(self, n: usize) -> Xs {
        // SAFETY: forwarded contract.
        unsafe {
            let (ints, units) = (self.ints.add(n * I::ROW_BYTES), self.units.add(n));
            Xs { ints, units, sums: self.sums.wrapping_add(n), ..self }
        }
    }
}

/// Adds the products of a group with `n` rows of a tile to their sums, which are `nth` and on.
///
/// # Safety
/// As [`matmul`], for these rows; the scratch holds the block.
#[inline(always)]
unsafe fn add_tile<I: Ints, F: Format, const P: usize>(
    xs: Xs,
    n: usize,
    nth: usize,
    scratch: *mut Scratch<P>,
) {
    // Four panels, and words beside half words, leave room for fewer.
    let most = match (P, I::stretches::<F>()) {
        (GATED, 1) => 6,
        (GATED, _) => 2,
        (_, n_stretches) => I::V::SUMS / n_stretches,
    };
    // SAFETY: forwarded contract.
    unsafe {
        let mut row = 0;
        while most == 8 && row + 8 <= n {
            add_rows::<I, F, P, 8>(xs.after::<I>(row), nth + row, scratch);
            row += 8;
        }
        while most == 6 && row + 6 <= n {
            add_rows::<I, F, P, 6>(xs.after::<I>(row), nth + row, scratch);
            row += 6;
        }
        while most >= 4 && row + 4 <= n {
            add_rows::<I, F, P, 4>(xs.after::<I>(row), nth + row, scratch);
            row += 4;
        }
        while row + 2 <= n {
            add_rows::<I, F, P, 2>(xs.after::<I>(row), nth + row, scratch);
            row += 2;
        }
        if row < n {
            add_rows::<I, F, P, 1>(xs.after::<I>(row), nth + row, scratch);
        }
    }
}

/// [`add_tile`] for the first `R` of some rows.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn add_rows<I: Ints, F: Format, const P: usize, const R: usize>(
    xs: Xs,
    nth: usize,
    scratch: *mut Scratch<P>,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let dots = dots_of::<I, F, P, R>(xs, scratch);
        let sums = (&raw mut (*scratch).sums).cast::<[f32; WIDTH]>().add(nth * P);
        let sums = in_register(sums);
        let kept = Kept::new::<I, F>(&raw const (*scratch).scales[xs.group]);
        unroll_rows!(R, r, {
            let x = xs.scale::<F>(r);
            for (p, dots) in dots[r].into_iter().enumerate() {
                let sum = sums.add(r * P + p).cast();
                kept.add::<I, F>(p, dots, x, I::V::load(sum)).store(sum);
            }
        });
    }
}

/// What scales a group's sums: in registers, as far as raised sums leave any, or in the scratch.
struct Kept<V, const P: usize> {
    scales: [V; P],
    raised: [V; P],
    scratch: *const [GroupScales; P],
}

/// Whether there is a register for the scales of the `p`th of `P` panels.
const fn has_register<const P: usize>(p: usize) -> bool {
    P < GATED || p < 2
}

/// # Safety
/// For all methods: as [`add_rows`].
#[allow(clippy::missing_safety_doc, reason = "see above")]
impl<V: Pairs, const P: usize> Kept<V, P> {
    #[inline(always)]
    unsafe fn new<I: Ints<V = V>, F: Format>(scratch: *const [GroupScales; P]) -> Kept<V, P> {
        // SAFETY: forwarded contract.
        unsafe {
            let nothing = [V::splat(0.0); P];
            let mut kept = Kept { scales: nothing, raised: nothing, scratch };
            for p in 0..P {
                if I::are_raised::<F>() {
                    kept.raised[p] = kept.read(p, 1).kept();
                    if has_register::<P>(p) {
                        kept.scales[p] = kept.read(p, 0).kept();
                    }
                }
            }
            kept
        }
    }

    #[inline(always)]
    unsafe fn read(&self, p: usize, nth: usize) -> V {
        // SAFETY: forwarded contract.
        unsafe { V::load((&raw const (*self.scratch)[p][nth]).cast()) }
    }

    /// `sum` with the products of panel `p` added to it.
    #[inline(always)]
    unsafe fn add<I: Ints<V = V>, F: Format>(
        &self,
        p: usize,
        dots: V::Words,
        x: IntScale,
        sum: V,
    ) -> V {
        // SAFETY: forwarded contract.
        unsafe {
            let min = self.read(p, 2);
            if I::are_raised::<F>() {
                let scale = if has_register::<P>(p) { self.scales[p] } else { self.read(p, 0) };
                let scaled = V::of_bits(dots).mul_add(scale, self.raised[p]);
                return Scales { scale, min }.add_scaled::<F>(scaled, x, sum);
            }
            let (dots, scales) = (V::from_words(dots), Scales { scale: self.read(p, 0), min });
            if I::ARE_CENTRED && !F::MIN {
                return scales.add_centred(dots, x, sum);
            }
            scales.add_dot::<F>(dots, x, sum)
        }
    }
}

/// The products of a group with the first `R` of some rows, raised or not.
///
/// # Safety
/// As [`add_rows`].
#[inline(always)]
unsafe fn dots_of<I: Ints, F: Format, const P: usize, const R: usize>(
    xs: Xs,
    scratch: *const Scratch<P>,
) -> [[Words<I>; P]; R] {
    let n_steps = I::steps::<F>();
    // With VNNI, the first products may as well be added to zeros, or what sums are raised by.
    let n_apart = usize::from(I::SET != Set::Vnni);
    // SAFETY: forwarded contract.
    unsafe {
        let mut dots = [[I::V::splat_words(0); P]; R];
        let first_step = xs.group * n_steps * I::stretches::<F>();
        for stretch in 0..I::stretches::<F>() {
            let mut sums = [[I::V::splat_words(0); P]; R];
            if I::are_raised::<F>() {
                unroll_rows!(R, r, {
                    sums[r] = [beginning_of::<I, F>(xs.scale::<F>(r)); P];
                });
            }
            let first = first_step + stretch * n_steps;
            if n_apart > 0 {
                add_step::<I, P, R, true>(xs, scratch, first, &mut sums);
            }
            for step in first + n_apart..first + n_steps {
                add_step::<I, P, R, false>(xs, scratch, step, &mut sums);
            }
            unroll_rows!(R, r, {
                for p in 0..P {
                    dots[r][p] = I::add_stretch::<F>(dots[r][p], sums[r][p], stretch);
                }
            });
        }
        dots
    }
}

/// What raised sums of a group begin with: the bits of [`RAISED`], less what codes have too much.
///
/// # Safety
/// As [`add_rows`].
#[inline(always)]
unsafe fn beginning_of<I: Ints, F: Format>(x: IntScale) -> Words<I> {
    // SAFETY: register operations only.
    unsafe {
        let raised = I::V::splat(RAISED);
        if I::ARE_CENTRED || F::MIN {
            return raised.bits();
        }
        I::V::splat(x.sum).kept().mul_add(I::V::splat(-f32::from(F::CENTRE)), raised).bits()
    }
}

/// A step's products, which are the first or added to those before.
///
/// # Safety
/// As [`add_rows`].
#[inline(always)]
unsafe fn add_step<I: Ints, const P: usize, const R: usize, const IS_FIRST: bool>(
    xs: Xs,
    scratch: *const Scratch<P>,
    step: usize,
    sums: &mut [[Words<I>; P]; R],
) {
    // SAFETY: forwarded contract.
    unsafe {
        let mut codes = [I::V::splat_words(0); P];
        for (p, codes) in codes.iter_mut().enumerate() {
            *codes = I::V::load_words((&raw const (*scratch).codes[step][p]).cast());
        }
        let ints = xs.ints.add(4 * step % I::ROW_BYTES);
        unroll_rows!(R, r, {
            let x = ints.add(r * I::ROW_BYTES).cast::<i32>().read_unaligned();
            let x = I::V::splat_words(x);
            for p in 0..P {
                sums[r][p] = if IS_FIRST {
                    I::products(codes[p], x)
                } else {
                    I::add_products(sums[r][p], codes[p], x)
                };
            }
        });
    }
}

/// The same pointer, in a register of its own. As the scratch's plus something the compiler would
/// have it as a sum of two, and an operation that reads memory there is two operations; and as one
/// of a loop's it would be kept up to date in memory, once for each number of rows.
#[inline(always)]
fn in_register<T>(mut at: *mut T) -> *mut T {
    // SAFETY: nothing is done, and nothing read.
    unsafe { asm!("/* {0} */", inout(reg) at, options(pure, readonly, nostack, preserves_flags)) };
    at
}
