//! The kernels of each instruction set, as a table of function pointers chosen once.

use std::ops::Range;

use crate::acts::{ActView, ActViewMut, KeptAs};
use crate::isa::Isa;
use crate::kernels::attention::{AttentionArgs, AttentionScratch, AttentionTask, NoTiles, Tiles};
#[cfg(target_arch = "x86_64")]
use crate::kernels::attention_amx::AmxTiles;
use crate::kernels::kv::{Bf16, Element, F16, FreshKv, Int8, PerDtype};
use crate::kernels::matmul::Output;
use crate::kernels::rows::{Alone, Norm, RowsToActs};
use crate::kernels::{attention, kv, matmul, matmul_exact, matmul_int, reduce, rows};
#[cfg(target_arch = "x86_64")]
use crate::kernels::{
    attention_bytes::Bytes, matmul_amx, matmul_int_amx, matmul_int_blocks, together::Together,
};
use crate::packed::MatrixView;
#[cfg(target_arch = "x86_64")]
use crate::{
    kernels::matmul_amx::{GateSink, ResidualSink, TopSink},
    kernels::matmul_int_blocks::{Paired, Pairs, Vnni},
    lanes::avx512::Avx512Lanes,
    packed::CodedView,
};

type Attend = unsafe fn(
    &AttentionArgs,
    &AttentionTask,
    Option<&AttentionTask>,
    *const u32,
    &mut AttentionScratch,
);
#[cfg(target_arch = "x86_64")]
type GatedMatmul = unsafe fn([CodedView; 2], Range<usize>, ActView, Range<usize>, GateSink);
#[cfg(target_arch = "x86_64")]
pub(crate) type FindTops = unsafe fn(CodedView, Range<usize>, ActView, Range<usize>, TopSink);
#[cfg(target_arch = "x86_64")]
type AddToResidual = unsafe fn(CodedView, Range<usize>, ActView, Range<usize>, ResidualSink);
type StoreKv = unsafe fn(FreshKv, usize, usize, usize);

/// One instruction set's kernels. Each pointer's contract is that of the generic kernel it names;
/// the table itself may be used only on a machine that has the instruction set.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) matmul: unsafe fn(MatrixView, Range<usize>, ActView, Range<usize>, Output),
    /// Panels that products take together.
    pub(crate) panels: usize,
    /// Two products whose results meet in a gate, where there is a kernel for it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) gated_matmul: Option<GatedMatmul>,
    /// The largest outputs of a product, where there is a kernel for it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) find_tops: Option<FindTops>,
    /// A product that is added to a residual stream in tiles, where there is a kernel for it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) add_to_residual: Option<AddToResidual>,
    pub(crate) attend: PerDtype<Attend>,
    /// Queries of an attention task at most.
    pub(crate) queries: usize,
    pub(crate) store_kv: PerDtype<StoreKv>,
    pub(crate) rms_norm: unsafe fn(*const f32, *const f32, f32, usize, *mut f32),
    /// Rows that become activations together.
    pub(crate) rows_to_acts: usize,
    pub(crate) norm_acts: unsafe fn(Norm, *const f32, *mut f32, ActViewMut, Range<usize>),
    pub(crate) put_acts: unsafe fn(*const f32, ActViewMut, Range<usize>),
    pub(crate) gated: unsafe fn(*mut f32, *const f32, usize, bool),
    pub(crate) rope: unsafe fn(*mut f32, *const f32, *const f32, usize),
    pub(crate) add: unsafe fn(*mut f32, *const f32, usize),
    pub(crate) softcap: unsafe fn(*mut f32, usize, f32),
    pub(crate) max: fn(&[f32]) -> f32,
    pub(crate) argmax: fn(&[f32]) -> usize,
    pub(crate) sum_exp: fn(&[f32], f32) -> f32,
    pub(crate) is_sound: fn(&[f32]) -> bool,
}

impl Kernels {
    /// The table for an instruction set that [`Isa::require`] has granted.
    pub(crate) fn of(isa: Isa) -> &'static Kernels {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => &amx::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni => &vnni::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::KERNELS,
            _ => &scalar::KERNELS,
        }
    }
}

/// Stamps out the entry points of one instruction set: the generic kernels over its lanes, inlined
/// into functions that carry its target features.
macro_rules! entries {
    (
        $isa:ident, ($lanes:ty, $tiles:ty), ($coded:ident, $ints:expr, $panels:expr),
        ($to_acts:ty, $put:expr),
        ($gated:expr, $tops:expr, $residual:expr) $(, $features:literal)?
    ) => {
        #[allow(
            clippy::missing_safety_doc,
            clippy::undocumented_unsafe_blocks,
            reason = "the contracts are those of the generic kernels; see `Kernels`"
        )]
        mod $isa {
            use super::*;

            type V = $lanes;

            pub(super) static KERNELS: Kernels = Kernels {
                matmul,
                panels: $panels,
                #[cfg(target_arch = "x86_64")]
                gated_matmul: $gated,
                #[cfg(target_arch = "x86_64")]
                find_tops: $tops,
                #[cfg(target_arch = "x86_64")]
                add_to_residual: $residual,
                attend: PerDtype {
                    f16: attend::<F16>,
                    bf16: attend::<Bf16>,
                    int8: attend::<Int8>,
                },
                queries: <$tiles>::QUERIES,
                store_kv: PerDtype {
                    f16: store_kv::<F16>,
                    bf16: store_kv::<Bf16>,
                    int8: store_kv::<Int8>,
                },
                rms_norm,
                rows_to_acts: <$to_acts>::ROWS,
                norm_acts,
                put_acts,
                gated,
                rope,
                add,
                softcap,
                max: |x| unsafe { max(x.as_ptr(), x.len()) },
                argmax: |x| unsafe { argmax(x.as_ptr(), x.len()) },
                sum_exp: |x, max| unsafe { sum_exp(x.as_ptr(), x.len(), max) },
                is_sound: |x| unsafe { is_sound(x.as_ptr(), x.len()) },
            };

            $(#[target_feature(enable = $features)])?
            unsafe fn matmul(
                w: MatrixView,
                panels: Range<usize>,
                acts: ActView,
                rows: Range<usize>,
                out: Output,
            ) {
                unsafe {
                    match w {
                        MatrixView::Coded(w) => $coded::matmul::<V>(w, panels, acts, rows, out),
                        MatrixView::Ints(w) => $ints(w, panels, acts, rows, out),
                        MatrixView::Exact(w) => {
                            matmul_exact::matmul::<V>(w, panels, acts, rows, out)
                        }
                    }
                }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn attend<E: Element>(
                args: &AttentionArgs,
                task: &AttentionTask,
                next: Option<&AttentionTask>,
                tables: *const u32,
                scratch: &mut AttentionScratch,
            ) {
                unsafe { attention::attend::<V, E, $tiles>(args, task, next, tables, scratch) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn store_kv<E: Element>(
                fresh: FreshKv,
                slot: usize,
                n_kv_heads: usize,
                head_dim: usize,
            ) {
                unsafe { kv::store_kv::<V, E>(fresh, slot, n_kv_heads, head_dim) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn rms_norm(x: *const f32, w: *const f32, eps: f32, n: usize, out: *mut f32) {
                unsafe { rows::rms_norm::<V>(x, w, eps, n, out) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn norm_acts(
                norm: Norm,
                x: *const f32,
                normed: *mut f32,
                acts: ActViewMut,
                rows: Range<usize>,
            ) {
                unsafe {
                    if <$to_acts>::norm_ints(norm, x, acts, rows.clone()) {
                        return;
                    }
                    for (i, row) in rows.clone().enumerate() {
                        let (n, at) = (acts.n_cols, i * acts.n_cols);
                        let factor = rows::norm_later::<V>(x.add(at), norm, n, normed.add(at));
                        *acts.factors.add(row) = factor;
                    }
                    put_acts(normed, acts, rows);
                }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn put_acts(x: *const f32, acts: ActViewMut, rows: Range<usize>) {
                unsafe {
                    if acts.forms.has_whole_ints() {
                        <$to_acts>::put_ints(x, acts, rows.clone());
                    }
                    $put(x, acts, rows)
                }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn gated(gate: *mut f32, up: *const f32, n: usize, gelu: bool) {
                unsafe { rows::gated::<V>(gate, up, n, gelu) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn rope(x: *mut f32, cos: *const f32, sin: *const f32, half: usize) {
                unsafe { rows::rope::<V>((x, x), cos, sin, half) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn add(x: *mut f32, y: *const f32, n: usize) {
                unsafe { rows::add::<V>(x, y, n) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn softcap(x: *mut f32, n: usize, cap: f32) {
                unsafe { rows::softcap::<V>(x, n, cap) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn max(x: *const f32, n: usize) -> f32 {
                unsafe { reduce::max::<V>(x, n) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn argmax(x: *const f32, n: usize) -> usize {
                unsafe { reduce::argmax::<V>(x, n) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn sum_exp(x: *const f32, n: usize, max: f32) -> f32 {
                unsafe { reduce::sum_exp::<V>(x, n, max) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn is_sound(x: *const f32, n: usize) -> bool {
                unsafe { reduce::is_sound::<V>(x, n) }
            }
        }
    };
}

entries!(
    scalar,
    (crate::lanes::scalar::ScalarLanes, NoTiles),
    (matmul, matmul_int::matmul::<V>, 1),
    (Alone<V>, rows::put_acts::<V>),
    (None, None, None)
);
#[cfg(target_arch = "x86_64")]
entries!(
    avx2,
    (crate::lanes::avx2::Avx2Lanes, NoTiles),
    (matmul, matmul_int_blocks::matmul::<Paired<V>>, <V as Pairs>::PANELS),
    (Alone<V>, rows::put_acts::<V>),
    (None, None, None),
    "avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
entries!(
    avx512,
    (crate::lanes::avx512::Avx512Lanes, NoTiles),
    (matmul, matmul_int_blocks::matmul::<Paired<V>>, <V as Pairs>::PANELS),
    (Together, rows::put_acts::<V>),
    (Some(gated_by_pairs), Some(tops_by_pairs), None),
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
entries!(
    vnni,
    (crate::lanes::avx512::Avx512Lanes, Bytes),
    (matmul, matmul_int_blocks::matmul::<Vnni>, <V as Pairs>::PANELS),
    (Together, rows::put_acts::<V>),
    (Some(gated_with_vnni), Some(tops_with_vnni), None),
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);
#[cfg(target_arch = "x86_64")]
entries!(
    amx,
    (crate::lanes::avx512::Avx512Lanes, AmxTiles),
    (matmul_amx, matmul_int_amx::matmul::<V>, 1),
    (Together, put_tiles_and_bytes),
    (Some(gated_on_tiles), Some(tops_on_tiles), Some(residual_on_tiles)),
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c"
);

/// # Safety
/// As [`matmul_amx::put_tiles`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")]
unsafe fn put_tiles_and_bytes(x: *const f32, acts: ActViewMut, rows: Range<usize>) {
    // SAFETY: forwarded contract.
    unsafe {
        if matches!(acts.forms.ints, Some((_, KeptAs::Sixteenths))) {
            matmul_int_amx::put_bytes(x, acts, rows.clone());
        }
        matmul_amx::put_tiles(x, acts, rows);
    }
}

/// # Safety
/// As [`matmul_amx::find_tops`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma,f16c")]
unsafe fn tops_on_tiles(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: TopSink,
) {
    // SAFETY: forwarded contract.
    unsafe { matmul_amx::find_tops(w, panels, acts, rows, to) }
}

/// # Safety
/// As [`matmul_amx::add_to_residual`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma,f16c")]
unsafe fn residual_on_tiles(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: ResidualSink,
) {
    // SAFETY: forwarded contract.
    unsafe { matmul_amx::add_to_residual(w, panels, acts, rows, to) }
}

/// # Safety
/// As [`matmul_amx::gated`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma,f16c")]
unsafe fn gated_on_tiles(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: GateSink,
) {
    // SAFETY: forwarded contract.
    unsafe { matmul_amx::gated(weights, panels, acts, rows, to) }
}

/// # Safety
/// As [`matmul_int_blocks::gated`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn gated_with_vnni(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: GateSink,
) {
    // SAFETY: forwarded contract.
    unsafe { matmul_int_blocks::gated::<Vnni>(weights, panels, acts, rows, to) }
}

/// # Safety
/// As [`matmul_int_blocks::find_tops`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tops_with_vnni(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: TopSink,
) {
    // SAFETY: forwarded contract.
    unsafe { matmul_int_blocks::find_tops::<Vnni>(w, panels, acts, rows, to) }
}

/// # Safety
/// As [`matmul_int_blocks::gated`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn gated_by_pairs(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: GateSink,
) {
    // SAFETY: forwarded contract.
    unsafe { matmul_int_blocks::gated::<Paired<Avx512Lanes>>(weights, panels, acts, rows, to) }
}

/// # Safety
/// As [`matmul_int_blocks::find_tops`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn tops_by_pairs(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: TopSink,
) {
    // SAFETY: forwarded contract.
    unsafe { matmul_int_blocks::find_tops::<Paired<Avx512Lanes>>(w, panels, acts, rows, to) }
}
