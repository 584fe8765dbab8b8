//! Attention over pages of every element type, and writing to them.

use half::f16;
use paceline_cpu::ops::{Attention, AttentionSeq, KvLayer, LateRows, Rope, RopeStore};
use paceline_cpu::quant::Rng;
use paceline_cpu::{Cpu, Isa, KV_BLOCK, KvDtype};

use super::{bits, close, machines, normals, same_bits, to_bf16};

/// A model's head shapes.
#[derive(Clone, Copy)]
struct Heads {
    n: usize,
    n_kv: usize,
    dim: usize,
}

/// Some sequences' fresh queries, keys and values.
#[derive(Clone)]
struct Tokens {
    heads: Heads,
    /// Length of each sequence.
    lengths: Vec<usize>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    dtype: KvDtype,
    cap: Option<f32>,
    window: Option<u32>,
}

const SCALE: f32 = 0.17;

/// Weights have eight bits, and values are up to four.
const TOLERANCE: f64 = 8e-3;

impl Tokens {
    fn random(rng: &mut Rng, heads: Heads, lengths: &[usize]) -> Tokens {
        let n: usize = lengths.iter().sum();
        Tokens {
            heads,
            lengths: lengths.to_vec(),
            queries: normals(rng, n * heads.n * heads.dim),
            keys: normals(rng, n * heads.n_kv * heads.dim),
            values: normals(rng, n * heads.n_kv * heads.dim),
            dtype: KvDtype::F16,
            cap: None,
            window: None,
        }
    }

    fn oracle(&self) -> Vec<f64> {
        let Heads { n, n_kv, dim } = self.heads;
        let keys = kept(self.dtype, &self.keys, dim);
        let values = kept(self.dtype, &self.values, dim);
        let (mut out, mut start) = (Vec::new(), 0);
        for &length in &self.lengths {
            for position in 0..length {
                let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
                for head in 0..n {
                    let kv =
                        |t: usize, d: usize| ((start + t) * n_kv + head / (n / n_kv)) * dim + d;
                    let at = ((start + position) * n + head) * dim;
                    let query = met_query(self.dtype, &self.queries[at..at + dim]);
                    let score = |t: usize| {
                        let dot: f64 = (0..dim).map(|d| query[d] * keys[kv(t, d)]).sum();
                        let s = dot * f64::from(SCALE);
                        self.cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh()).exp()
                    };
                    let weights: Vec<f64> = (first..=position).map(score).collect();
                    let total: f64 = weights.iter().sum();
                    let scale = |t: usize| {
                        (0..dim).map(|d| values[kv(t, d)].abs()).fold(0.0, f64::max) / 127.0
                    };
                    let weights = match self.dtype {
                        KvDtype::Int8 => as_bytes(&weights, first, scale),
                        _ => weights,
                    };
                    out.extend((0..dim).map(|d| {
                        let weighted = weights.iter().zip(first..);
                        weighted.map(|(w, t)| w * values[kv(t, d)]).sum::<f64>() / total
                    }));
                }
            }
            start += length;
        }
        out
    }

    /// Runs the sequences through pages in steps of `chunk` tokens each, block tables shuffled and
    /// unused slots poisoned with infinities.
    fn run(&self, cpu: &mut Cpu, chunk: usize, seed: u64) -> Vec<f32> {
        let Heads { n, n_kv, dim } = self.heads;
        let mut rng = Rng::new(seed);
        let n_blocks = self.lengths.iter().map(|l| l.div_ceil(KV_BLOCK)).sum::<usize>() + 3;
        let mut kv = KvLayer::new(self.dtype, n_blocks, n_kv, dim);
        poison(cpu, &mut kv, self.heads);
        let mut free: Vec<u32> = (0..n_blocks as u32).collect();
        let tables: Vec<Vec<u32>> = self
            .lengths
            .iter()
            .map(|l| {
                (0..l.div_ceil(KV_BLOCK)).map(|_| free.swap_remove(rng.below(free.len()))).collect()
            })
            .collect();
        let starts: Vec<usize> = self
            .lengths
            .iter()
            .scan(0, |at, l| {
                *at += l;
                Some(*at - l)
            })
            .collect();
        let mut out = vec![0.0; self.queries.len()];
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        for from in (0..longest).step_by(chunk) {
            let mut step = Step::default();
            for (i, &length) in self.lengths.iter().enumerate() {
                step.add(starts[i], from.min(length)..(from + chunk).min(length), &tables[i]);
            }
            let pick = |x: &[f32], width: usize| -> Vec<f32> {
                step.rows.iter().flat_map(|&r| x[r * width..(r + 1) * width].to_vec()).collect()
            };
            let mut queries = pick(&self.queries, n * dim);
            let (mut keys, mut values) =
                (pick(&self.keys, n_kv * dim), pick(&self.values, n_kv * dim));
            let mut is_late = Vec::new();
            cpu.find_late_rows(&step.seqs, n, &mut is_late);
            let rows = (&mut queries[..], &mut keys[..], &mut values[..]);
            store(cpu, &mut kv, (&step.slots, &is_late), rows);
            let (keys, values) = (&keys, &values);
            let mut fresh = vec![0.0; queries.len()];
            let args = Attention {
                queries: &queries,
                out: &mut fresh,
                positions: &step.positions,
                seqs: &step.seqs,
                tables: &step.tables,
                n_heads: n,
                scale: SCALE,
                softcap: self.cap,
                window: self.window,
                late: LateRows {
                    keys,
                    values,
                    slots: &step.slots,
                    is_late: &is_late,
                    rope: Rope::default(),
                },
            };
            cpu.attention(args, &mut kv);
            for (&row, y) in step.rows.iter().zip(fresh.chunks(n * dim)) {
                out[row * n * dim..(row + 1) * n * dim].copy_from_slice(y);
            }
        }
        out
    }
}

/// A query as it meets keys: with bytes, in multiples of 1/2039 of the largest.
fn met_query(dtype: KvDtype, query: &[f32]) -> Vec<f64> {
    let largest = query.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
    let unit = largest / 2039.0;
    let met = |&x: &f32| match dtype {
        KvDtype::Int8 => (f64::from(x) / unit).round() * unit,
        _ => to_bf16(x),
    };
    query.iter().map(met).collect()
}

/// Weights of tokens from `first` on as bytes meet them: times the values' scales, those of a block
/// are multiples of 1/255 of the largest.
fn as_bytes(weights: &[f64], first: usize, scale: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut found = Vec::new();
    let mut t = first;
    while found.len() < weights.len() {
        let end = (t / KV_BLOCK + 1) * KV_BLOCK;
        let block: Vec<f64> = weights[t - first..weights.len().min(end - first)].to_vec();
        let scaled: Vec<f64> = block.iter().zip(t..).map(|(w, t)| w * scale(t)).collect();
        let unit = scaled.iter().copied().fold(0.0, f64::max) / 255.0;
        found.extend(scaled.iter().zip(t..).map(|(w, t)| (w / unit).round() * unit / scale(t)));
        t = end;
    }
    found
}

/// What attention reads of rows of one head each.
fn kept(dtype: KvDtype, x: &[f32], dim: usize) -> Vec<f64> {
    let bytes = |row: &[f32]| -> Vec<f64> {
        let largest = row.iter().fold(0f32, |m, x| m.max(x.abs()));
        let scale = f64::from(largest / 127.0);
        row.iter().map(|x| f64::from((x * (127.0 / largest)).round_ties_even()) * scale).collect()
    };
    match dtype {
        KvDtype::F16 => x.iter().map(|&x| to_bf16(f16::from_f32(x).to_f32())).collect(),
        KvDtype::Bf16 => x.iter().map(|&x| to_bf16(x)).collect(),
        KvDtype::Int8 => x.chunks(dim).flat_map(bytes).collect(),
    }
}

#[derive(Default)]
struct Step {
    rows: Vec<usize>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    seqs: Vec<AttentionSeq>,
    tables: Vec<u32>,
}

impl Step {
    fn add(&mut self, start: usize, range: std::ops::Range<usize>, table: &[u32]) {
        if range.is_empty() {
            return;
        }
        self.seqs.push(AttentionSeq {
            first_row: self.rows.len(),
            n_rows: range.len(),
            first_block: self.tables.len(),
            n_blocks: table.len(),
        });
        self.tables.extend_from_slice(table);
        for p in range {
            self.rows.push(start + p);
            self.positions.push(p as u32);
            self.slots.push(table[p / KV_BLOCK] * KV_BLOCK as u32 + (p % KV_BLOCK) as u32);
        }
    }
}

fn store(
    cpu: &mut Cpu,
    kv: &mut KvLayer,
    (slots, is_late): (&[u32], &[bool]),
    (queries, keys, values): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let args = RopeStore {
        queries,
        keys,
        values,
        rope: Rope::default(),
        biases: [&[]; 3],
        head_norms: [&[]; 2],
        norm_eps: 1e-5,
        slots,
        is_late,
    };
    cpu.rope_store(args, kv);
}

fn poison(cpu: &mut Cpu, kv: &mut KvLayer, heads: Heads) {
    let slots: Vec<u32> = (0..kv.n_slots() as u32).collect();
    let mut infinite = vec![f32::INFINITY; slots.len() * heads.n_kv * heads.dim];
    let mut other = infinite.clone();
    let mut queries = vec![0.0; slots.len() * heads.n * heads.dim];
    store(cpu, kv, (&slots, &[]), (&mut queries, &mut infinite, &mut other));
}

#[test]
fn attention_of_every_shape() {
    let mut rng = Rng::new(6);
    let shapes =
        [(1, 1, 16), (3, 1, 64), (4, 4, 32), (6, 2, 80), (33, 1, 16), (5, 1, 48), (2, 1, 96)];
    for (n, n_kv, dim) in shapes {
        let mut tokens = Tokens::random(&mut rng, Heads { n, n_kv, dim }, &[1, 33, 70, 32, 5]);
        for dtype in KvDtype::ALL {
            // What is seen is the same code for every element type, too.
            let n_modes = if dtype == KvDtype::Bf16 { 4 } else { 2 };
            let modes = [(None, None), (Some(5.0), Some(40)), (Some(5.0), None), (None, Some(20))];
            for (cap, window) in modes.into_iter().take(n_modes) {
                (tokens.dtype, tokens.cap, tokens.window) = (dtype, cap, window);
                check_attention(&tokens);
            }
        }
    }
}

/// More heads than a task has queries, and heads of four tiles.
#[test]
fn attention_of_large_shapes() {
    let mut rng = Rng::new(9);
    for (n, n_kv, dim) in [(70, 1, 16), (4, 2, 128)] {
        let mut tokens = Tokens::random(&mut rng, Heads { n, n_kv, dim }, &[40]);
        for dtype in KvDtype::ALL {
            tokens.dtype = dtype;
            check_attention(&tokens);
        }
    }
}

/// So many that a row of each is a task of its own, which stores it, too.
#[test]
fn attention_of_many_sequences() {
    let mut rng = Rng::new(11);
    let lengths = [35, 66, 40, 33, 64, 65, 34, 70, 36, 32, 41, 50, 37, 45];
    let mut tokens = Tokens::random(&mut rng, Heads { n: 6, n_kv: 2, dim: 32 }, &lengths);
    let kinds = KvDtype::ALL.map(|dtype| (dtype, None)).into_iter();
    for (dtype, window) in kinds.chain([(KvDtype::Bf16, Some(20))]) {
        (tokens.dtype, tokens.window) = (dtype, window);
        let whole = same_bits("whole prompts", |cpu| tokens.run(cpu, 70, 1));
        let by_row = same_bits("row by row", |cpu| tokens.run(cpu, 1, 2));
        assert_eq!(bits(&by_row), bits(&whole), "{dtype}, window {window:?}");
    }
}

/// Zeros of both signs and numbers that tiles would flush: the same bits in lanes and tiles.
#[test]
fn attention_of_almost_nothing() {
    let mut rng = Rng::new(10);
    let mut tokens = Tokens::random(&mut rng, Heads { n: 3, n_kv: 1, dim: 48 }, &[40]);
    let odd = [0.0, -0.0, 1e-40, -1e-40, 1e-30, -1e-30, 1e-14, -1.0];
    for x in [&mut tokens.queries, &mut tokens.keys, &mut tokens.values] {
        for x in x.iter_mut() {
            if rng.below(4) > 0 {
                *x = odd[rng.below(odd.len())];
            }
        }
    }
    for dtype in KvDtype::ALL {
        tokens.dtype = dtype;
        check_attention(&tokens);
    }
    tokens.dtype = KvDtype::Bf16;
    for x in [&mut tokens.queries, &mut tokens.values] {
        x.fill(-0.0);
    }
    check_attention(&tokens);
}

/// A value that is no number spoils the rows that see it, and no other.
#[test]
fn broken_values_stay_where_they_are() {
    let mut rng = Rng::new(11);
    let (heads, broken) = (Heads { n: 3, n_kv: 1, dim: 32 }, 45);
    let mut tokens = Tokens::random(&mut rng, heads, &[70]);
    for dtype in KvDtype::ALL {
        tokens.dtype = dtype;
        let sound = tokens.clone();
        for bad in [f32::INFINITY, f32::NAN] {
            tokens.values[broken * heads.dim + 5] = bad;
            for mut cpu in machines() {
                let before = broken * heads.n * heads.dim;
                let [found, expected] = [&tokens, &sound].map(|t| t.run(&mut cpu, 70, 1));
                assert_eq!(bits(&found[..before]), bits(&expected[..before]), "{dtype}");
                let column = found[before..].iter().skip(5).step_by(heads.dim);
                assert!(column.into_iter().all(|x| !x.is_finite()), "{dtype} on {}", cpu.isa());
            }
        }
        tokens = sound;
    }
}

/// Near the oracle, and the same bits however the sequences are cut.
fn check_attention(tokens: &Tokens) {
    let Tokens { heads: Heads { n, n_kv, dim }, dtype, cap, window, .. } = tokens;
    let name = format!("attention {n}/{n_kv}x{dim} in {dtype} cap {cap:?} window {window:?}");
    let whole = same_bits(&name, |cpu| tokens.run(cpu, 70, 1));
    close(&name, &whole, &tokens.oracle(), TOLERANCE);
    // How a prompt is cut is the same code for f16 as for bf16: one cut must do.
    let chunks: &[usize] = if *dtype == KvDtype::F16 { &[3] } else { &[1, 3, 32, 50] };
    for &chunk in chunks {
        let chunked = same_bits(&name, |cpu| tokens.run(cpu, chunk, chunk as u64));
        assert_eq!(bits(&chunked), bits(&whole), "{name} in chunks of {chunk}");
    }
}

/// Sequences of two tokens, the second of which is fresh.
struct Fresh {
    heads: Heads,
    dtype: KvDtype,
    /// Queries, keys and values, and cosines and sines.
    rows: [Vec<f32>; 3],
    angles: [Vec<f32>; 2],
    rope_dim: usize,
    bias: Vec<f32>,
    seqs: Vec<AttentionSeq>,
    tables: Vec<u32>,
}

impl Fresh {
    fn new(heads: Heads, (dtype, rope_dim): (KvDtype, usize), is_biased: bool) -> Fresh {
        let (mut rng, n_seqs) = (Rng::new(17), 40);
        let angles = normals(&mut rng, n_seqs * rope_dim / 2);
        let seq = |row| AttentionSeq { first_row: row, n_rows: 1, first_block: row, n_blocks: 1 };
        Fresh {
            heads,
            dtype,
            rows: [heads.n, heads.n_kv, heads.n_kv]
                .map(|n| normals(&mut rng, n_seqs * n * heads.dim)),
            angles: [f32::cos, f32::sin].map(|f| angles.iter().map(|&a| f(a)).collect()),
            rope_dim,
            bias: if is_biased { normals(&mut rng, heads.n * heads.dim) } else { Vec::new() },
            seqs: (0..n_seqs).map(seq).collect(),
            tables: (0..n_seqs as u32).collect(),
        }
    }

    /// What the fresh tokens see, and then, what is seen of them.
    fn run(&self, cpu: &mut Cpu, by_attention: bool) -> Vec<f32> {
        let Fresh { heads, rows, .. } = self;
        let firsts: Vec<u32> = self.tables.iter().map(|block| block * KV_BLOCK as u32).collect();
        let slots: Vec<u32> = firsts.iter().map(|slot| slot + 1).collect();
        let mut kv = KvLayer::new(self.dtype, self.seqs.len(), heads.n_kv, heads.dim);
        let [mut queries, mut values, mut keys] = rows.clone();
        store(cpu, &mut kv, (&firsts, &[]), (&mut queries, &mut keys, &mut values));
        let [mut queries, mut keys, mut values] = rows.clone();
        let mut is_late = Vec::new();
        if by_attention {
            cpu.find_late_rows(&self.seqs, heads.n, &mut is_late);
            assert!(is_late.iter().all(|&is_late| is_late));
        }
        let [cos, sin] = &self.angles;
        let rope = Rope { cos, sin, dim: self.rope_dim };
        let args = RopeStore {
            queries: &mut queries,
            keys: &mut keys,
            values: &mut values,
            rope,
            biases: [&self.bias, &[], &[]],
            head_norms: [&[]; 2],
            norm_eps: 1e-6,
            slots: &slots,
            is_late: &is_late,
        };
        assert_eq!(args.leaves_late_rows(), self.bias.is_empty());
        let rope = if args.leaves_late_rows() { rope } else { Rope::default() };
        cpu.rope_store(args, &mut kv);
        let (keys, values) = (&keys[..], &values[..]);
        let late = LateRows { keys, values, slots: &slots, is_late: &is_late, rope };
        let late = if by_attention { late } else { LateRows::default() };
        let first = self.look(cpu, &mut kv, &queries, late);
        [first, self.look(cpu, &mut kv, &rows[0], LateRows::default())].concat()
    }

    fn look(
        &self,
        cpu: &mut Cpu,
        kv: &mut KvLayer,
        queries: &[f32],
        late: LateRows<'_>,
    ) -> Vec<f32> {
        let mut out = vec![0.0; queries.len()];
        let args = Attention {
            queries,
            out: &mut out,
            positions: &vec![1; self.seqs.len()],
            seqs: &self.seqs,
            tables: &self.tables,
            n_heads: self.heads.n,
            scale: SCALE,
            softcap: None,
            window: None,
            late,
        };
        cpu.attention(args, kv);
        out
    }
}

#[test]
fn late_rows_are_turned_by_attention() {
    let heads = Heads { n: 6, n_kv: 2, dim: 48 };
    for (kind, is_biased) in [
        ((KvDtype::Bf16, 48), false),
        ((KvDtype::F16, 20), false),
        ((KvDtype::Int8, 48), false),
        ((KvDtype::Bf16, 48), true),
    ] {
        let fresh = Fresh::new(heads, kind, is_biased);
        let before = same_bits("turned before", |cpu| fresh.run(cpu, false));
        let late = same_bits("turned by attention", |cpu| fresh.run(cpu, true));
        assert_eq!(bits(&before), bits(&late), "{kind:?}, biased: {is_biased}");
    }
}

#[test]
fn rope_biases_and_head_norms() {
    let mut rng = Rng::new(7);
    let (n_rows, n_heads, n_kv, dim, rope_dim) = (5, 4, 2, 32, 24);
    let half = rope_dim / 2;
    let angles = normals(&mut rng, n_rows * half);
    let [cos, sin] = [f32::cos, f32::sin].map(|f| angles.iter().map(|&a| f(a)).collect::<Vec<_>>());
    let queries = normals(&mut rng, n_rows * n_heads * dim);
    let keys = normals(&mut rng, n_rows * n_kv * dim);
    let (bias, norm) = (normals(&mut rng, n_heads * dim), normals(&mut rng, dim));
    let found = same_bits("rope", |cpu| {
        let mut kv = KvLayer::new(KvDtype::F16, 1, n_kv, dim);
        let (mut q, mut k, mut v) = (queries.clone(), keys.clone(), keys.clone());
        let args = RopeStore {
            queries: &mut q,
            keys: &mut k,
            values: &mut v,
            rope: Rope { cos: &cos, sin: &sin, dim: rope_dim },
            biases: [&bias, &[], &[]],
            head_norms: [&norm, &[]],
            norm_eps: 1e-6,
            slots: &[3, 1, 4, 0, 7],
            is_late: &[],
        };
        cpu.rope_store(args, &mut kv);
        [q, k].concat()
    });
    let mut expected = Vec::new();
    for row in 0..n_rows {
        for head in 0..n_heads {
            let at = (row * n_heads + head) * dim;
            let x: Vec<f64> = (0..dim)
                .map(|d| f64::from(queries[at + d]) + f64::from(bias[head * dim + d]))
                .collect();
            let scale = (x.iter().map(|x| x * x).sum::<f64>() / dim as f64 + 1e-6).sqrt();
            let x: Vec<f64> = x.iter().zip(&norm).map(|(x, &w)| x / scale * f64::from(w)).collect();
            expected.extend(rotate(&x, half, &angles[row * half..]));
        }
    }
    for row in 0..n_rows {
        for head in 0..n_kv {
            let at = (row * n_kv + head) * dim;
            let x: Vec<f64> = keys[at..at + dim].iter().map(|&x| f64::from(x)).collect();
            expected.extend(rotate(&x, half, &angles[row * half..]));
        }
    }
    close("rope", &found, &expected, 1e-5);
}

fn rotate(x: &[f64], half: usize, angles: &[f32]) -> Vec<f64> {
    let mut out = x.to_vec();
    for i in 0..half {
        let (sin, cos) = f64::from(angles[i]).sin_cos();
        out[i] = x[i] * cos - x[half + i] * sin;
        out[half + i] = x[half + i] * cos + x[i] * sin;
    }
    out
}

/// What the last of the tokens in a block attends to.
fn read_block(
    cpu: &mut Cpu,
    kv: &mut KvLayer,
    block: u32,
    queries: &[f32],
    n_tokens: u32,
) -> Vec<f32> {
    let mut out = vec![0.0; queries.len()];
    let args = Attention {
        queries,
        out: &mut out,
        positions: &[n_tokens - 1],
        seqs: &[AttentionSeq { first_row: 0, n_rows: 1, first_block: 0, n_blocks: 1 }],
        tables: &[block],
        n_heads: 2,
        scale: SCALE,
        softcap: None,
        window: None,
        late: LateRows::default(),
    };
    cpu.attention(args, kv);
    out
}

#[test]
fn copied_blocks_read_the_same() {
    let mut rng = Rng::new(8);
    let heads = Heads { n: 2, n_kv: 2, dim: 16 };
    let mut cpu = Cpu::new(Isa::detect(), 1, 16).unwrap();
    for dtype in KvDtype::ALL {
        let mut kv = KvLayer::new(dtype, 3, heads.n_kv, heads.dim);
        let n = 11;
        let slots: Vec<u32> = (32..32 + n).collect();
        let [mut q, mut k, mut v] = [0; 3].map(|_| normals(&mut rng, slots.len() * 32));
        store(&mut cpu, &mut kv, (&slots, &[]), (&mut q, &mut k, &mut v));
        kv.copy(1, 2, n as usize);
        let [untouched, original, copy] =
            [0, 1, 2].map(|block| bits(&read_block(&mut cpu, &mut kv, block, &q[..32], n)));
        assert_eq!(original, copy, "{dtype}");
        assert_ne!(original, untouched, "{dtype}");
    }
}

/// Scales of rows that have no usual one: nothing stays nothing, and a broken row shows.
#[test]
fn bytes_of_odd_rows() {
    let usual: Vec<f32> = (0..32).map(|i| i as f32 - 15.0).collect();
    let is_zero = |x: &f32| *x == 0.0;
    for mut cpu in machines() {
        for (element, others, is_right) in [
            (0.0, 0.0, is_zero as fn(&f32) -> bool),
            (1e-40, 1e-40, |x| x.abs() < 1e-15),
            (3e38, 1.0, |x| x.is_finite()),
            (f32::INFINITY, 1.0, |x| x.is_nan()),
            (f32::NAN, 1.0, |x| x.is_nan()),
        ] {
            let mut kv = KvLayer::new(KvDtype::Int8, 1, 2, 16);
            let mut value = [others; 32];
            (value[3], value[20]) = (element, element);
            let rows = (&mut usual.clone()[..], &mut usual.clone()[..], &mut value[..]);
            store(&mut cpu, &mut kv, (&[0], &[]), rows);
            let found = read_block(&mut cpu, &mut kv, 0, &usual, 1);
            assert!(found.iter().all(is_right), "{element} on {}: {found:?}", cpu.isa());
        }
    }
}
