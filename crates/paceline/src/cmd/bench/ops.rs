//! The ops that `kernels` measures, each with its work and something to run.

use std::fmt;
use std::rc::Rc;

use anyhow::{Result, ensure};
use paceline::Isa;
use paceline_cpu::ops::{
    Attention, AttentionSeq, Gate, KvLayer, LateRows, MatmulJob, Rope, RopeStore,
};
use paceline_cpu::quant::{Rng, TensorType, random_row};
use paceline_cpu::{
    ActDtype, ActForms, Acts, Aligned, Cpu, KV_BLOCK, KvDtype, PackedMatrix, RawMatrix,
};

use super::ceiling::Work;
use crate::cli::{KernelsArgs, UsageError};

/// What most quantised models are of, as far as activations have to do with it.
pub(super) const USUAL_TYPE: TensorType = TensorType::Q4_0;
/// Attention's shape: that of small models.
pub(super) const HEAD_DIM: usize = 64;
const N_HEADS: usize = 32;
const N_KV_HEADS: usize = 8;
/// Tokens each sequence looks back at.
const LOOK_BACK: usize = 256;
const N_VOCAB: usize = 49_152;
/// Rows of logits an engine holds at once.
const LOGIT_ROWS: usize = 32;
const EPS: f32 = 1e-5;
const SPREAD: f32 = 0.02;
const FLOAT_BYTES: f64 = size_of::<f32>() as f64;

/// Something to run, over and over.
pub(super) struct Case {
    pub(super) op: String,
    pub(super) n_rows: usize,
    /// Of one call.
    pub(super) work: Work,
    /// Bytes that all calls in turn read.
    pub(super) set_bytes: f64,
    pub(super) run: Box<dyn FnMut(&mut Cpu)>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("op", &self.op).finish_non_exhaustive()
    }
}

/// Products with each type of weights and each number of rows. As many matrices take turns as
/// fill the working set, so that weights come from where a model's would.
pub(super) fn matmuls(
    cpu: &mut Cpu,
    args: &KernelsArgs,
    types: &[TensorType],
) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for &ty in types {
        let (outputs, inputs) = (args.outputs as usize, args.inputs as usize);
        let kernels = (cpu.isa(), args.act_dtype(cpu.isa(), ty));
        let matrices = matrices(kernels, ty, outputs, inputs, args.working_set.0)?;
        for &n_rows in &args.rows {
            cases.push(matmul(cpu, Rc::clone(&matrices), n_rows as usize));
        }
    }
    Ok(cases)
}

fn matrices(
    (isa, acts): (Isa, ActDtype),
    ty: TensorType,
    n_rows: usize,
    n_cols: usize,
    set_bytes: u64,
) -> Result<Rc<[PackedMatrix]>> {
    let Some(row_bytes) = ty.row_bytes(n_cols) else {
        let block = ty.block_len();
        let message = format!("rows of {n_cols} inputs are not whole blocks of {block} ({ty})");
        return Err(UsageError(message).into());
    };
    let mut data = Vec::with_capacity(row_bytes * n_rows);
    let mut rng = Rng::new(1);
    (0..n_rows).for_each(|_| random_row(ty, &mut rng, SPREAD, n_cols, &mut data));
    let raw = RawMatrix { ty, n_rows, n_cols, data: &data };
    let n = (set_bytes / data.len() as u64).max(1);
    ensure!(
        n <= 1 << 20,
        UsageError("the working set is too large for such small matrices".into())
    );
    let packed = (0..n).map(|_| PackedMatrix::pack(raw, isa, acts, |row| row));
    Ok(packed.collect::<Result<_, _>>()?)
}

fn matmul(cpu: &mut Cpu, matrices: Rc<[PackedMatrix]>, n_rows: usize) -> Case {
    let first = &matrices[0];
    let (outputs, inputs) = (first.n_rows(), first.n_cols());
    let mut acts = Acts::new(n_rows, inputs);
    acts.shape(n_rows, inputs, first.act_forms());
    cpu.acts_from(&random(n_rows * inputs), &mut acts);
    let mut out = Aligned::zeros(n_rows * outputs);
    let n_macs = (n_rows * outputs * inputs) as f64;
    let (op, n_bytes) = (format!("product {}", first.tensor_type()), first.n_bytes() as f64);
    let set_bytes = n_bytes * matrices.len() as f64;
    let mut turn = 0;
    let run = Box::new(move |cpu: &mut Cpu| {
        turn = (turn + 1) % matrices.len();
        let job = MatmulJob { weight: &matrices[turn], out: &mut out, add: false };
        cpu.matmul(&acts, [job]);
    });
    Case { op, n_rows, work: Work { n_bytes, n_ops: 2.0 * n_macs }, set_bytes, run }
}

/// Everything but products.
pub(super) fn others(cpu: &mut Cpu, args: &KernelsArgs) -> Vec<Case> {
    let rows = args.rows.iter().map(|&n| n as usize);
    let width = args.inputs as usize;
    let forms = forms((cpu.isa(), args.act_dtype(cpu.isa(), USUAL_TYPE)), width);
    let mut cases = Vec::new();
    for dtype in KvDtype::ALL {
        cases.extend(rows.clone().map(|n| decode_attention(cpu, dtype, n)));
        cases.push(prompt_attention(cpu, dtype));
    }
    cases.extend(rows.clone().map(|n| norm(n, width, forms)));
    cases.extend(rows.clone().map(|n| gate(n, width, forms)));
    cases.extend(rows.filter(|&n| n <= LOGIT_ROWS).chain([LOGIT_ROWS]).map(|n| argmax(cpu, n)));
    cases
}

fn forms(kernels: (Isa, ActDtype), width: usize) -> ActForms {
    let ty = if width.is_multiple_of(32) { USUAL_TYPE } else { TensorType::F32 };
    let matrices = matrices(kernels, ty, 16, width, 0);
    matrices.map_or_else(|_| ActForms::default(), |matrices| matrices[0].act_forms())
}

/// `n_rows` sequences, one row each, that look back at as many tokens.
fn decode_attention(cpu: &mut Cpu, dtype: KvDtype, n_rows: usize) -> Case {
    let n_blocks = LOOK_BACK / KV_BLOCK;
    let seqs = (0..n_rows).map(|row| AttentionSeq {
        first_row: row,
        n_rows: 1,
        first_block: row * n_blocks,
        n_blocks,
    });
    let (seqs, positions) = (seqs.collect(), vec![LOOK_BACK as u32 - 1; n_rows]);
    let case = attention(cpu, dtype, seqs, positions, (n_rows * LOOK_BACK) as f64);
    Case { op: format!("attention {dtype}, decode"), ..case }
}

/// One prompt, every row of which looks back at those before it.
fn prompt_attention(cpu: &mut Cpu, dtype: KvDtype) -> Case {
    let n_blocks = LOOK_BACK / KV_BLOCK;
    let seq = AttentionSeq { first_row: 0, n_rows: LOOK_BACK, first_block: 0, n_blocks };
    let n_pairs = (LOOK_BACK * (LOOK_BACK + 1) / 2) as f64;
    let case = attention(cpu, dtype, vec![seq], (0..LOOK_BACK as u32).collect(), n_pairs);
    Case { op: format!("attention {dtype}, prompt"), ..case }
}

/// `n_pairs` counts rows times the tokens each looks at.
fn attention(
    cpu: &mut Cpu,
    dtype: KvDtype,
    seqs: Vec<AttentionSeq>,
    positions: Vec<u32>,
    n_pairs: f64,
) -> Case {
    let n_rows = positions.len();
    let n_blocks: usize = seqs.iter().map(|seq| seq.n_blocks).sum();
    let mut kv = filled_kv(cpu, dtype, n_blocks);
    let tables: Vec<u32> = (0..n_blocks as u32).collect();
    let width = N_HEADS * HEAD_DIM;
    let queries = random(n_rows * width);
    let mut out = vec![0.0; n_rows * width];
    let kv_bytes = kv.n_bytes() as f64;
    // Scores and weighted values: two multiply-adds for each element of a query.
    let n_ops = 4.0 * n_pairs * width as f64;
    let run = Box::new(move |cpu: &mut Cpu| {
        let attention = Attention {
            queries: &queries,
            out: &mut out,
            positions: &positions,
            seqs: &seqs,
            tables: &tables,
            n_heads: N_HEADS,
            scale: 0.125,
            softcap: None,
            window: None,
            late: LateRows::default(),
        };
        cpu.attention(attention, &mut kv);
    });
    let work = Work { n_bytes: kv_bytes, n_ops };
    Case { op: String::new(), n_rows, work, set_bytes: kv_bytes, run }
}

/// Pages with numbers in all slots: pages never written would all be one page of zeros.
fn filled_kv(cpu: &mut Cpu, dtype: KvDtype, n_blocks: usize) -> KvLayer {
    let mut kv = KvLayer::new(dtype, n_blocks, N_KV_HEADS, HEAD_DIM);
    let width = N_KV_HEADS * HEAD_DIM;
    let numbers = random(KV_BLOCK * width);
    let (mut queries, mut keys, mut values) = (numbers.clone(), numbers.clone(), numbers);
    for block in 0..n_blocks {
        let first = (block * KV_BLOCK) as u32;
        let slots: Vec<u32> = (first..first + KV_BLOCK as u32).collect();
        let store = RopeStore {
            queries: &mut queries,
            keys: &mut keys,
            values: &mut values,
            rope: Rope::default(),
            biases: [&[]; 3],
            head_norms: [&[]; 2],
            norm_eps: EPS,
            slots: &slots,
            is_late: &[],
        };
        cpu.rope_store(store, &mut kv);
    }
    kv
}

/// The norm before a product, with its result made ready for it.
fn norm(n_rows: usize, width: usize, forms: ActForms) -> Case {
    let (x, weight) = (random(n_rows * width), vec![1.0; width]);
    let mut acts = Acts::new(n_rows, width);
    let run = Box::new(move |cpu: &mut Cpu| {
        acts.shape(n_rows, width, forms);
        cpu.norm_acts(&x, &weight, EPS, &mut acts);
    });
    row_case("norm", n_rows, width, 1.0, run)
}

/// The feed-forward part's gate, with its result made ready for the next product.
fn gate(n_rows: usize, width: usize, forms: ActForms) -> Case {
    let (gate, up) = (random(n_rows * width), random(n_rows * width));
    let mut scratch = gate.clone();
    let mut acts = Acts::new(n_rows, width);
    let run = Box::new(move |cpu: &mut Cpu| {
        // The gate works in place; its input is put back, so that it stays a sensible number.
        scratch.copy_from_slice(&gate);
        acts.shape(n_rows, width, forms);
        cpu.gated_acts(Gate::Silu, &mut scratch, &up, &mut acts);
    });
    row_case("gate", n_rows, width, 2.0, run)
}

/// The greedy choice of each row's token.
fn argmax(cpu: &Cpu, n_rows: usize) -> Case {
    let mut logits = random(n_rows * N_VOCAB);
    let argmax = cpu.argmax();
    let run = Box::new(move |cpu: &mut Cpu| {
        cpu.for_each_row(&mut logits, N_VOCAB, |_, row| {
            std::hint::black_box(argmax(row));
        });
    });
    row_case("argmax", n_rows, N_VOCAB, 1.0, run)
}

/// An op that reads `n_inputs` numbers for each element, and is bound by that.
fn row_case(
    op: &str,
    n_rows: usize,
    width: usize,
    n_inputs: f64,
    run: Box<dyn FnMut(&mut Cpu)>,
) -> Case {
    let n_bytes = (n_rows * width) as f64 * n_inputs * FLOAT_BYTES;
    let work = Work { n_bytes, n_ops: 0.0 };
    Case { op: op.to_owned(), n_rows, work, set_bytes: n_bytes, run }
}

fn random(n: usize) -> Vec<f32> {
    let mut rng = Rng::new(2);
    (0..n).map(|_| 2.0 * rng.unit() - 1.0).collect()
}
