//! Every kernel, on every instruction set this machine has, against a plain oracle written here;
//! and bit for bit against the scalar lanes, for odd sizes, any number of rows and threads.

#![allow(clippy::unwrap_used, reason = "tests")]

use half::f16;
use paceline_cpu::ops::{Attention, AttentionSeq, Gate, KvLayer, MatmulJob, RopeStore};
use paceline_cpu::quant::{Rng, TensorType, dequantize_row, random_row};
use paceline_cpu::{ActForms, Acts, Cpu, Isa, KV_BLOCK, PackError, PackedMatrix, RawMatrix};

/// Every instruction set here, with several thread counts.
fn machines() -> Vec<Cpu> {
    let mut machines = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.require().is_ok()) {
        for n_threads in [1, 2, 3] {
            machines.push(Cpu::new(isa, n_threads, 128).unwrap());
        }
    }
    machines
}

fn normals(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Runs `f` on every machine; all must give the bits the first (scalar, one thread) gives.
fn same_bits(what: &str, f: impl Fn(&mut Cpu) -> Vec<f32>) -> Vec<f32> {
    let mut machines = machines();
    let expected = f(&mut machines[0]);
    for cpu in &mut machines[1..] {
        let found = f(cpu);
        let name = format!("{what} on {} with {} threads", cpu.isa(), cpu.n_threads());
        assert_eq!(bits(&found), bits(&expected), "{name}");
    }
    expected
}

fn close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(f) - e).abs();
        assert!(error <= tolerance * (1.0 + e.abs()), "{what}: element {i} is {f}, not {e}");
    }
}

struct Weight {
    ty: TensorType,
    n_rows: usize,
    n_cols: usize,
    data: Vec<u8>,
    values: Vec<f32>,
}

fn weight(ty: TensorType, n_rows: usize, n_cols: usize, rng: &mut Rng) -> Weight {
    let mut data = Vec::new();
    for _ in 0..n_rows {
        random_row(ty, rng, 0.3, n_cols, &mut data);
    }
    let mut values = vec![0.0; n_rows * n_cols];
    dequantize_row(ty, &data, &mut values);
    Weight { ty, n_rows, n_cols, data, values }
}

impl Weight {
    fn pack(&self, isa: Isa) -> PackedMatrix {
        let Weight { ty, n_rows, n_cols, ref data, .. } = *self;
        PackedMatrix::pack(RawMatrix { ty, n_rows, n_cols, data }, isa, |row| row).unwrap()
    }
}

/// The nearest bf16, ties away from zero.
fn to_bf16(x: f32) -> f64 {
    f64::from(f32::from_bits((x.to_bits() + 0x8000) & 0xffff_0000))
}

/// The product as it is meant: weights and activations rounded to bf16, or both as they are.
fn product(weight: &Weight, x: &[f32]) -> Vec<f64> {
    let exact = weight.ty == TensorType::F32;
    let as_met = |x: f32| if exact { f64::from(x) } else { to_bf16(x) };
    let mut out = Vec::new();
    for x in x.chunks(weight.n_cols) {
        for w in weight.values.chunks(weight.n_cols) {
            out.push(w.iter().zip(x).map(|(&w, &x)| as_met(w) * as_met(x)).sum());
        }
    }
    out
}

fn multiply(cpu: &mut Cpu, w: &Weight, x: &[f32], add: bool) -> Vec<f32> {
    let packed = w.pack(cpu.isa());
    multiply_packed(cpu, &packed, x, add)
}

fn multiply_packed(cpu: &mut Cpu, w: &PackedMatrix, x: &[f32], add: bool) -> Vec<f32> {
    let n_rows = x.len() / w.n_cols();
    let mut acts = Acts::new(n_rows, w.n_cols());
    acts.shape(w.n_cols(), w.act_forms());
    cpu.acts_from(x, &mut acts);
    let mut out = vec![if add { 0.5 } else { f32::NAN }; n_rows * w.n_rows()];
    cpu.matmul(&acts, n_rows, [MatmulJob { weight: w, out: &mut out, add }]);
    out
}

#[test]
fn matmul_of_every_type() {
    let mut rng = Rng::new(1);
    for ty in TensorType::ALL {
        for (n_rows, n_outputs, n_blocks) in
            [(1, 1, 1), (1, 37, 3), (2, 16, 2), (3, 80, 1), (7, 15, 2), (9, 33, 1), (19, 66, 2)]
        {
            let n_cols = ty.block_len().max(32) * n_blocks;
            let w = weight(ty, n_outputs, n_cols, &mut rng);
            let mut x = normals(&mut rng, n_rows * n_cols);
            x[0] *= 50.0;
            x[n_cols - 32..n_cols].fill(0.0);
            let name = format!("{ty} {n_rows}x{n_outputs}x{n_cols}");
            let found = same_bits(&name, |cpu| multiply(cpu, &w, &x, false));
            close(&name, &found, &product(&w, &x), 1e-3);
            for row in 0..n_rows {
                let alone = same_bits(&name, |cpu| {
                    multiply(cpu, &w, &x[row * n_cols..(row + 1) * n_cols], false)
                });
                let together = &found[row * n_outputs..(row + 1) * n_outputs];
                assert_eq!(bits(&alone), bits(together), "{name}: row {row} alone");
            }
            let added = same_bits(&name, |cpu| multiply(cpu, &w, &x, true));
            let expected: Vec<f32> = found.iter().map(|y| y + 0.5).collect();
            assert_eq!(bits(&added), bits(&expected), "{name}: added");
        }
    }
}

/// Sizes that reach every path of the tiles: rows left over, more rows than are summed at once,
/// more columns than are unpacked at once.
#[test]
fn matmul_in_large() {
    let mut rng = Rng::new(9);
    for (ty, n_rows, n_outputs, n_cols) in [
        (TensorType::Q4_1, 64, 40, 576),
        (TensorType::Q4_1, 21, 16, 32 * 70),
        (TensorType::Q8_0, 530, 17, 96),
        (TensorType::Q2K, 37, 20, 256 * 5),
        (TensorType::Q6K, 24, 20, 256 * 5),
        (TensorType::BF16, 50, 33, 100),
        (TensorType::Q4_1, 3, 16, 32 * 600),
    ] {
        let w = weight(ty, n_outputs, n_cols, &mut rng);
        let x = normals(&mut rng, n_rows * n_cols);
        let name = format!("{ty} {n_rows}x{n_outputs}x{n_cols}");
        let found = same_bits(&name, |cpu| multiply(cpu, &w, &x, false));
        close(&name, &found, &product(&w, &x), 2e-3);
        for row in [0, 1, n_rows / 2, n_rows - 1] {
            let alone = same_bits(&name, |cpu| {
                multiply(cpu, &w, &x[row * n_cols..(row + 1) * n_cols], false)
            });
            let together = &found[row * n_outputs..(row + 1) * n_outputs];
            assert_eq!(bits(&alone), bits(together), "{name}: row {row} alone");
        }
    }
}

#[test]
fn several_products_share_one_call() {
    let mut rng = Rng::new(2);
    let a = weight(TensorType::Q4_1, 40, 64, &mut rng);
    let b = weight(TensorType::Q8_0, 7, 64, &mut rng);
    let c = weight(TensorType::F16, 33, 64, &mut rng);
    let x = normals(&mut rng, 5 * 64);
    let found = same_bits("three products", |cpu| {
        let mut acts = Acts::new(8, 64);
        let [a, b, c] = [&a, &b, &c].map(|w| w.pack(cpu.isa()));
        acts.shape(64, [&a, &b, &c].iter().fold(ActForms::default(), |f, w| f.or(w.act_forms())));
        cpu.acts_from(&x, &mut acts);
        let mut outs = [vec![0.0; 5 * 40], vec![0.0; 5 * 7], vec![0.0; 5 * 33]];
        let [oa, ob, oc] = &mut outs;
        cpu.matmul(
            &acts,
            5,
            [
                MatmulJob { weight: &a, out: oa, add: false },
                MatmulJob { weight: &b, out: ob, add: false },
                MatmulJob { weight: &c, out: oc, add: false },
            ],
        );
        outs.concat()
    });
    let alone =
        [&a, &b, &c].map(|w| multiply(&mut Cpu::new(Isa::Scalar, 1, 16).unwrap(), w, &x, false));
    assert_eq!(bits(&found), bits(&alone.concat()));
}

#[test]
fn packing_permutes_rows_and_refuses_what_is_not_finite() {
    let mut rng = Rng::new(3);
    for ty in [TensorType::Q4_0, TensorType::F32] {
        let w = weight(ty, 20, 64, &mut rng);
        let raw = RawMatrix { ty, n_rows: 20, n_cols: 64, data: &w.data };
        let flipped = PackedMatrix::pack(raw, Isa::Scalar, |row| 19 - row).unwrap();
        let x = normals(&mut rng, 64);
        let mut cpu = Cpu::new(Isa::Scalar, 1, 16).unwrap();
        let mut expected = multiply(&mut cpu, &w, &x, false);
        expected.reverse();
        assert_eq!(bits(&multiply_packed(&mut cpu, &flipped, &x, false)), bits(&expected));
    }
    let mut nan = f32::NAN.to_le_bytes().repeat(32);
    let raw = RawMatrix { ty: TensorType::F32, n_rows: 1, n_cols: 32, data: &nan };
    assert_eq!(
        PackedMatrix::pack(raw, Isa::Scalar, |r| r).unwrap_err(),
        PackError::NotFinite { row: 0 }
    );
    nan.pop();
    let raw = RawMatrix { ty: TensorType::F32, n_rows: 1, n_cols: 32, data: &nan };
    assert!(matches!(PackedMatrix::pack(raw, Isa::Scalar, |r| r), Err(PackError::Size { .. })));
    let mut q8 = vec![1u8; 34];
    q8[..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
    let raw = RawMatrix { ty: TensorType::Q8_0, n_rows: 1, n_cols: 32, data: &q8 };
    assert!(matches!(
        PackedMatrix::pack(raw, Isa::Scalar, |r| r),
        Err(PackError::NotFinite { .. })
    ));
    let raw = RawMatrix { ty: TensorType::Q8_0, n_rows: 1, n_cols: 31, data: &q8 };
    assert!(matches!(PackedMatrix::pack(raw, Isa::Scalar, |r| r), Err(PackError::Columns { .. })));
}

fn floats_of(cpu: &mut Cpu, acts: &Acts, n_rows: usize, n_cols: usize) -> Vec<f32> {
    // Multiply with the identity to read the float form back through the public door.
    let mut data = Vec::new();
    for row in 0..n_cols {
        for col in 0..n_cols {
            data.extend_from_slice(&(if row == col { 1f32 } else { 0.0 }).to_le_bytes());
        }
    }
    let raw = RawMatrix { ty: TensorType::F32, n_rows: n_cols, n_cols, data: &data };
    let identity = PackedMatrix::pack(raw, Isa::Scalar, |row| row).unwrap();
    let mut out = vec![0.0; n_rows * n_cols];
    cpu.matmul(acts, n_rows, [MatmulJob { weight: &identity, out: &mut out, add: false }]);
    out
}

#[test]
fn norm_gates_and_caps() {
    let mut rng = Rng::new(4);
    for (n_rows, n) in [(1, 32), (3, 96), (50, 160), (2, 47)] {
        let (x, up, w) =
            (normals(&mut rng, n_rows * n), normals(&mut rng, n_rows * n), normals(&mut rng, n));
        let forms = ActForms { exact: true, floats: true, tiles: true };
        let run = |cpu: &mut Cpu, fill: &dyn Fn(&mut Cpu, &mut Acts)| {
            let mut acts = Acts::new(n_rows, n);
            acts.shape(n, forms);
            fill(cpu, &mut acts);
            floats_of(cpu, &acts, n_rows, n)
        };
        let x64 = |i: usize| f64::from(x[i]);
        let scale = |row: usize| {
            let squares: f64 = (0..n).map(|i| x64(row * n + i).powi(2)).sum();
            1.0 / (squares / n as f64 + 1e-5).sqrt()
        };
        let normed: Vec<f64> =
            (0..n_rows * n).map(|i| x64(i) * scale(i / n) * f64::from(w[i % n])).collect();
        let found =
            same_bits("norm", |cpu| run(cpu, &|cpu, acts| cpu.norm_acts(&x, &w, 1e-5, acts)));
        close("norm", &found, &normed, 1e-5);

        let found = same_bits("add normed", |cpu| {
            let (mut sum, mut y) = (up.clone(), x.clone());
            cpu.add_normed(&mut sum, &mut y, &w, 1e-5);
            sum
        });
        let expected: Vec<f64> = normed.iter().zip(&up).map(|(y, &u)| y + f64::from(u)).collect();
        close("add normed", &found, &expected, 1e-5);

        for (kind, f) in [(Gate::Silu, silu as fn(f64) -> f64), (Gate::GeluTanh, gelu)] {
            let found = same_bits("gate", |cpu| {
                run(cpu, &|cpu, acts| cpu.gated_acts(kind, &mut x.clone(), &up, acts))
            });
            let expected: Vec<f64> = (0..x.len()).map(|i| f(x64(i)) * f64::from(up[i])).collect();
            close("gate", &found, &expected, 1e-5);
        }

        let found = same_bits("softcap", |cpu| {
            let mut y: Vec<f32> = x.iter().map(|x| x * 40.0).collect();
            cpu.softcap(&mut y, 30.0);
            y
        });
        let expected: Vec<f64> =
            (0..x.len()).map(|i| 30.0 * (x64(i) * 40.0 / 30.0).tanh()).collect();
        close("softcap", &found, &expected, 1e-5);
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x.powi(3))).tanh())
}

#[test]
fn readings_of_a_row() {
    let mut rng = Rng::new(5);
    for n in [1, 2, 15, 16, 17, 100, 1001] {
        let mut x = normals(&mut rng, n);
        let largest = x.iter().copied().fold(f32::MIN, f32::max);
        let first = x.iter().position(|&v| v == largest).unwrap();
        if first + 1 < n {
            x[n - 1] = largest;
        }
        let sum: f64 = x.iter().map(|&v| f64::from(v - largest).exp()).sum();
        let found = same_bits("readings", |cpu| {
            assert_eq!(cpu.argmax()(&x), first);
            vec![cpu.max()(&x), cpu.sum_exp()(&x, largest)]
        });
        assert_eq!(found[0], largest);
        close("sum of exp", &found[1..], &[sum], 1e-6);
        x[0] = f32::NEG_INFINITY;
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        same_bits("readings with an infinity", |cpu| {
            assert_eq!(cpu.max()(&x), largest);
            assert_eq!(x[cpu.argmax()(&x)], largest);
            vec![cpu.sum_exp()(&x, 1.0)]
        });
    }
}

/// A model's head shapes.
#[derive(Clone, Copy)]
struct Heads {
    n: usize,
    n_kv: usize,
    dim: usize,
}

/// Some sequences' fresh queries, keys and values.
struct Tokens {
    heads: Heads,
    /// Length of each sequence.
    lengths: Vec<usize>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    cap: Option<f32>,
    window: Option<u32>,
}

const SCALE: f32 = 0.17;

impl Tokens {
    fn random(rng: &mut Rng, heads: Heads, lengths: &[usize]) -> Tokens {
        let n: usize = lengths.iter().sum();
        Tokens {
            heads,
            lengths: lengths.to_vec(),
            queries: normals(rng, n * heads.n * heads.dim),
            keys: normals(rng, n * heads.n_kv * heads.dim),
            values: normals(rng, n * heads.n_kv * heads.dim),
            cap: None,
            window: None,
        }
    }

    fn oracle(&self) -> Vec<f64> {
        let Heads { n, n_kv, dim } = self.heads;
        let half = |x: f32| f64::from(f16::from_f32(x).to_f32());
        let (mut out, mut start) = (Vec::new(), 0);
        for &length in &self.lengths {
            for position in 0..length {
                let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
                for head in 0..n {
                    let kv =
                        |t: usize, d: usize| ((start + t) * n_kv + head / (n / n_kv)) * dim + d;
                    let q = |d: usize| {
                        f64::from(self.queries[((start + position) * n + head) * dim + d])
                    };
                    let score = |t: usize| {
                        let dot: f64 = (0..dim).map(|d| q(d) * half(self.keys[kv(t, d)])).sum();
                        let s = dot * f64::from(SCALE);
                        self.cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh()).exp()
                    };
                    let weights: Vec<f64> = (first..=position).map(score).collect();
                    let total: f64 = weights.iter().sum();
                    out.extend((0..dim).map(|d| {
                        let weighted = weights.iter().zip(first..);
                        weighted.map(|(w, t)| w * half(self.values[kv(t, d)])).sum::<f64>() / total
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
        let mut kv = KvLayer::new(n_blocks, n_kv, dim);
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
            store(cpu, &mut kv, &step.slots, (&mut queries, &mut keys, &mut values));
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
            };
            cpu.attention(args, &kv);
            for (&row, y) in step.rows.iter().zip(fresh.chunks(n * dim)) {
                out[row * n * dim..(row + 1) * n * dim].copy_from_slice(y);
            }
        }
        out
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
    slots: &[u32],
    (queries, keys, values): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let args = RopeStore {
        queries,
        keys,
        values,
        cos: &[],
        sin: &[],
        rope_dim: 0,
        biases: [&[]; 3],
        head_norms: [&[]; 2],
        norm_eps: 1e-5,
        slots,
    };
    cpu.rope_store(args, kv);
}

fn poison(cpu: &mut Cpu, kv: &mut KvLayer, heads: Heads) {
    let slots: Vec<u32> = (0..kv.n_slots() as u32).collect();
    let mut infinite = vec![f32::INFINITY; slots.len() * heads.n_kv * heads.dim];
    let mut other = infinite.clone();
    let mut queries = vec![0.0; slots.len() * heads.n * heads.dim];
    store(cpu, kv, &slots, (&mut queries, &mut infinite, &mut other));
}

#[test]
fn attention_of_every_shape() {
    let mut rng = Rng::new(6);
    let shapes = [(1, 1, 16), (3, 1, 64), (4, 4, 32), (6, 2, 80), (33, 1, 16)];
    for (n, n_kv, dim) in shapes {
        let mut tokens = Tokens::random(&mut rng, Heads { n, n_kv, dim }, &[1, 33, 70, 32, 5]);
        for (cap, window) in [(None, None), (Some(5.0), None), (None, Some(20)), (None, Some(40))] {
            (tokens.cap, tokens.window) = (cap, window);
            let name = format!("attention {n}/{n_kv}x{dim} cap {cap:?} window {window:?}");
            let whole = same_bits(&name, |cpu| tokens.run(cpu, 70, 1));
            close(&name, &whole, &tokens.oracle(), 1e-4);
            for chunk in [1, 3, 32, 50] {
                let chunked = same_bits(&name, |cpu| tokens.run(cpu, chunk, chunk as u64));
                assert_eq!(bits(&chunked), bits(&whole), "{name} in chunks of {chunk}");
            }
        }
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
        let mut kv = KvLayer::new(1, n_kv, dim);
        let (mut q, mut k, mut v) = (queries.clone(), keys.clone(), keys.clone());
        let args = RopeStore {
            queries: &mut q,
            keys: &mut k,
            values: &mut v,
            cos: &cos,
            sin: &sin,
            rope_dim,
            biases: [&bias, &[], &[]],
            head_norms: [&norm, &[]],
            norm_eps: 1e-6,
            slots: &[3, 1, 4, 0, 7],
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

#[test]
fn copied_blocks_read_the_same() {
    let mut rng = Rng::new(8);
    let heads = Heads { n: 2, n_kv: 2, dim: 16 };
    let mut cpu = Cpu::new(Isa::detect(), 1, 16).unwrap();
    let mut kv = KvLayer::new(3, heads.n_kv, heads.dim);
    let n = 11;
    let slots: Vec<u32> = (32..32 + n as u32).collect();
    let (mut q, mut k, mut v) =
        (normals(&mut rng, n * 32), normals(&mut rng, n * 32), normals(&mut rng, n * 32));
    store(&mut cpu, &mut kv, &slots, (&mut q, &mut k, &mut v));
    kv.copy(1, 2, n);
    let mut read = |block: u32| {
        let mut out = vec![0.0; 32];
        let args = Attention {
            queries: &q[..32],
            out: &mut out,
            positions: &[n as u32 - 1],
            seqs: &[AttentionSeq { first_row: 0, n_rows: 1, first_block: 0, n_blocks: 1 }],
            tables: &[block],
            n_heads: 2,
            scale: SCALE,
            softcap: None,
            window: None,
        };
        cpu.attention(args, &kv);
        out
    };
    assert_eq!(bits(&read(1)), bits(&read(2)));
    assert_ne!(bits(&read(1)), bits(&read(0)));
}
