//! The residual stream in rows and in tiles, and norms whose factor waits for the products.

use paceline_cpu::ops::{Gate, GatedJob, MatmulJob, NextNorm, Residual, Tops};
use paceline_cpu::quant::{Rng, TensorType};
use paceline_cpu::{ActDtype, Acts, Cpu};

use super::{Weight, bits, close, normals, product, same_bits, to_bf16, weight};

const EPS: f32 = 1e-5;

/// Two sublayers: a product that is added to the stream; then a norm, a gate, and another one.
struct Layer {
    first: Weight,
    norm: Vec<f32>,
    gate: Weight,
    up: Weight,
    down: Weight,
}

impl Layer {
    fn new(ty: TensorType, width: usize, inner: usize, rng: &mut Rng) -> Layer {
        Layer {
            first: weight(ty, width, inner, rng),
            norm: normals(rng, width),
            gate: weight(ty, inner, width, rng),
            up: weight(ty, inner, width, rng),
            down: weight(ty, width, inner, rng),
        }
    }

    /// The stream after both.
    fn run(&self, cpu: &mut Cpu, (x, acts): (&[f32], &[f32]), in_tiles: bool) -> Vec<f32> {
        let (width, inner) = (self.first.n_rows, self.first.n_cols);
        let n_rows = x.len() / width;
        let packed =
            [&self.first, &self.gate, &self.up, &self.down].map(|weight| weight.pack(cpu.isa()));
        let [first, gate, up, down] = &packed;
        let mut residual = Residual::new(n_rows, width);
        residual.begin(n_rows).copy_from_slice(x);
        let forms = gate.act_forms();
        if in_tiles && cpu.adds_to_tiles(first, forms) && cpu.adds_to_tiles(down, forms) {
            cpu.keep_in_tiles(&mut residual);
        }
        let mut of_first = Acts::new(n_rows, inner);
        of_first.shape(n_rows, inner, first.act_forms());
        cpu.acts_from(acts, &mut of_first);
        let mut normed = Acts::new(n_rows, width);
        normed.shape(n_rows, width, forms);
        let next = NextNorm { weight: &self.norm, eps: EPS, out: &mut normed };
        cpu.add_to_residual(&of_first, first, &mut residual, Some(next));
        let mut gated = Acts::new(n_rows, inner);
        gated.shape(n_rows, inner, down.act_forms());
        let [mut g, mut u] = [(); 2].map(|()| vec![0.0; n_rows * inner]);
        let products = [&mut g[..], &mut u[..]];
        let job = GatedJob { weights: [gate, up], kind: Gate::Silu, products, out: &mut gated };
        cpu.gated_matmul(&normed, job);
        cpu.add_to_residual(&gated, down, &mut residual, None);
        let mut out = vec![0.0; n_rows * width];
        for (row, out) in out.chunks_mut(width).enumerate() {
            residual.copy_row(row, out);
        }
        out
    }
}

#[test]
fn a_stream_in_tiles_is_one_in_rows() {
    let mut rng = Rng::new(31);
    let shapes = [
        (TensorType::F16, 48, 64),
        (TensorType::Q4_1, 160, 96),
        (TensorType::F16, 64, 32),
        (TensorType::Q8_0, 96, 32),
        (TensorType::F32, 32, 40),
        (TensorType::F16, 47, 33),
    ];
    for (ty, width, inner) in shapes {
        let layer = Layer::new(ty, width, inner, &mut rng);
        for n_rows in [1, 3, 8, 9, 16, 17, 40, 64, 65, 131, 330] {
            let (x, acts) = (normals(&mut rng, n_rows * width), normals(&mut rng, n_rows * inner));
            let rows = same_bits("in rows", |cpu| layer.run(cpu, (&x, &acts), false));
            let tiles = same_bits("in tiles", |cpu| layer.run(cpu, (&x, &acts), true));
            assert_eq!(bits(&rows), bits(&tiles), "{ty}, {n_rows} rows of {width}");
        }
    }
}

/// The default model's shape is in tiles where the machine has any, so that the test above is one.
#[test]
fn weights_that_can_be_in_tiles_are() {
    let mut rng = Rng::new(32);
    for mut cpu in super::machines() {
        let weight = weight(TensorType::Q4_1, 64, 64, &mut rng).pack(cpu.isa());
        let is_amx = cpu.isa() == paceline_cpu::Isa::Amx;
        assert_eq!(cpu.adds_to_tiles(&weight, weight.act_forms()), is_amx);
        let mut residual = Residual::new(9, 64);
        let rows = normals(&mut rng, 9 * 64);
        residual.begin(9).copy_from_slice(&rows);
        cpu.keep_in_tiles(&mut residual);
        let mut row = [0.0; 64];
        residual.copy_row(8, &mut row);
        assert_eq!(row[..], rows[8 * 64..]);
    }
}

/// Of every kind of weight, against a norm that is applied first.
#[test]
fn products_after_a_norm() {
    let mut rng = Rng::new(33);
    let kinds = [
        (TensorType::Q4_1, ActDtype::Bf16),
        (TensorType::Q4_1, ActDtype::Int12),
        (TensorType::Q8_0, ActDtype::Int12),
        (TensorType::Q4_1, ActDtype::Int8),
        (TensorType::F32, ActDtype::Bf16),
    ];
    for (ty, dtype) in kinds {
        for (n_rows, n) in [(1, 32), (2, 64), (3, 96), (5, 32), (9, 64), (21, 96), (50, 64)] {
            let (w, norm) = (weight(ty, 37, n, &mut rng), normals(&mut rng, n));
            // Large, as residual streams are: what is left to the end must not matter.
            let x: Vec<f32> = normals(&mut rng, n_rows * n).iter().map(|x| 300.0 * x).collect();
            let found = same_bits("after a norm", |cpu| {
                let packed = w.pack_for(cpu.isa(), dtype);
                let mut acts = Acts::new(n_rows, n);
                acts.shape(n_rows, n, packed.act_forms());
                cpu.norm_acts(&x, &norm, EPS, &mut acts);
                let mut out = vec![f32::NAN; n_rows * 37];
                cpu.matmul(&acts, [MatmulJob { weight: &packed, out: &mut out, add: false }]);
                check_tops(cpu, &acts, &packed, &out);
                out
            });
            let mut normed = Vec::new();
            for x in x.chunks(n) {
                let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                let inverse = 1.0 / (squares / n as f64 + f64::from(EPS)).sqrt();
                let normal = x.iter().zip(&norm).map(|(&x, &w)| (f64::from(x * w), inverse));
                normed.extend(normal);
            }
            let expected: Vec<f64> = match (ty, dtype) {
                (TensorType::F32, _) => exact(&w, &normed, |x| x),
                (_, ActDtype::Bf16) => exact(&w, &normed, |x| to_bf16(x as f32)),
                _ => continue,
            };
            close("after a norm", &found, &expected, 1e-4);
        }
    }
}

/// Products of rounded activations, each times its row's inverse.
fn exact(w: &Weight, normed: &[(f64, f64)], round: impl Fn(f64) -> f64) -> Vec<f64> {
    let x: Vec<f32> = normed.iter().map(|&(x, _)| round(x) as f32).collect();
    let inverses = normed.chunks(w.n_cols).map(|row| row[0].1);
    let rows = product(w, &x);
    let rows = rows.chunks(w.n_rows).zip(inverses);
    rows.flat_map(|(row, inverse)| row.iter().map(move |x| x * inverse)).collect()
}

/// What is found without outputs is what they say.
fn check_tops(cpu: &mut Cpu, acts: &Acts, w: &paceline_cpu::PackedMatrix, out: &[f32]) {
    let mut tops = Tops::new(acts.n_cols(), w.n_rows());
    if cpu.find_tops(acts, w, &mut tops) {
        for (top, row) in tops.found().iter().zip(out.chunks(w.n_rows())) {
            assert_eq!(top.place as usize, cpu.argmax()(row));
            assert_eq!(top.value.to_bits(), row[top.place as usize].to_bits());
        }
    }
}
