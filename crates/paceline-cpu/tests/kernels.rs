//! Every kernel, on every instruction set this machine has, against a plain oracle written here;
//! and bit for bit against the scalar lanes, for odd sizes, any number of rows and threads.

#![allow(clippy::unwrap_used, reason = "tests")]

use half::f16;
use paceline_cpu::ops::{Gate, GatedJob, MatmulJob, Tops};
use paceline_cpu::quant::{Rng, TensorType, dequantize_row, random_row};
use paceline_cpu::{ActDtype, ActForms, Acts, Cpu, Isa, PackError, PackedMatrix, RawMatrix};

#[path = "kernels/attention.rs"]
mod attention;
#[path = "kernels/residual.rs"]
mod residual;

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
        self.pack_for(isa, ActDtype::Bf16)
    }

    fn pack_for(&self, isa: Isa, acts: ActDtype) -> PackedMatrix {
        let Weight { ty, n_rows, n_cols, ref data, .. } = *self;
        PackedMatrix::pack(RawMatrix { ty, n_rows, n_cols, data }, isa, acts, |row| row).unwrap()
    }
}

/// The nearest bf16, ties away from zero.
fn to_bf16(x: f32) -> f64 {
    f64::from(f32::from_bits((x.to_bits() + 0x8000) & 0xffff_0000))
}

/// A weight as it is met: as it is, rounded to bf16 or, where it has a scale, cut to bf16 after it
/// was made a little larger.
fn met(ty: TensorType, w: f32) -> f64 {
    match ty {
        TensorType::F32 => f64::from(w),
        TensorType::F16 | TensorType::BF16 => to_bf16(w),
        _ => f64::from(f32::from_bits((1.0027 * w).to_bits() & 0xffff_0000)),
    }
}

/// The product as it is meant: weights as they are met, activations rounded to bf16 or, with exact
/// weights, as they are.
fn product(weight: &Weight, x: &[f32]) -> Vec<f64> {
    let exact = weight.ty == TensorType::F32;
    let rounded = |x: f32| if exact { f64::from(x) } else { to_bf16(x) };
    let mut out = Vec::new();
    for x in x.chunks(weight.n_cols) {
        for w in weight.values.chunks(weight.n_cols) {
            out.push(w.iter().zip(x).map(|(&w, &x)| met(weight.ty, w) * rounded(x)).sum());
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
    acts.shape(n_rows, w.n_cols(), w.act_forms());
    cpu.acts_from(x, &mut acts);
    let mut out = vec![if add { 0.5 } else { f32::NAN }; n_rows * w.n_rows()];
    cpu.matmul(&acts, [MatmulJob { weight: w, out: &mut out, add }]);
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
/// more columns than are unpacked at once, one panel, two or three.
#[test]
fn matmul_in_large() {
    let mut rng = Rng::new(9);
    for (ty, n_rows, n_outputs, n_cols) in [
        (TensorType::Q4_1, 64, 40, 576),
        (TensorType::Q4_1, 21, 16, 32 * 70),
        (TensorType::Q4_1, 32, 48, 32),
        (TensorType::Q4_0, 17, 90, 576),
        (TensorType::Q8_0, 30, 32, 96),
        (TensorType::F16, 19, 40, 47),
        (TensorType::Q8_0, 530, 17, 96),
        (TensorType::Q2K, 37, 20, 256 * 5),
        (TensorType::Q6K, 24, 20, 256 * 5),
        (TensorType::BF16, 50, 33, 100),
        (TensorType::Q4_1, 3, 16, 32 * 600),
        (TensorType::Q4_1, 90, 50, 32 * 70),
        (TensorType::Q4_1, 337, 48, 96),
        (TensorType::F16, 101, 49, 32 * 66),
    ] {
        let w = weight(ty, n_outputs, n_cols, &mut rng);
        let x = normals(&mut rng, n_rows * n_cols);
        let name = format!("{ty} {n_rows}x{n_outputs}x{n_cols}");
        let found = same_bits(&name, |cpu| multiply(cpu, &w, &x, false));
        close(&name, &found, &product(&w, &x), 2e-3);
        let added = same_bits(&name, |cpu| multiply(cpu, &w, &x, true));
        let expected: Vec<f32> = found.iter().map(|y| y + 0.5).collect();
        assert_eq!(bits(&added), bits(&expected), "{name}: added");
        for row in [0, 1, n_rows / 2, n_rows - 1] {
            let alone = same_bits(&name, |cpu| {
                multiply(cpu, &w, &x[row * n_cols..(row + 1) * n_cols], false)
            });
            let together = &found[row * n_outputs..(row + 1) * n_outputs];
            assert_eq!(bits(&alone), bits(together), "{name}: row {row} alone");
        }
    }
}

/// The product as integers are meant to give it: activations as multiples of their block's unit.
fn int_product(weight: &Weight, x: &[f32], most: f32) -> Vec<f64> {
    let round = |block: &[f32]| -> Vec<f64> {
        let largest = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let unit = f64::from(largest) / f64::from(most);
        let near = |&x: &f32| f64::from((x * (most / largest)).round_ties_even()) * unit;
        block.iter().map(|x| if largest == 0.0 { 0.0 } else { near(x) }).collect()
    };
    let mut out = Vec::new();
    for x in x.chunks(weight.n_cols) {
        let x: Vec<f64> = x.chunks(32).flat_map(round).collect();
        for w in weight.values.chunks(weight.n_cols) {
            out.push(w.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).sum());
        }
    }
    out
}

/// Numbers of rows that reach every path: lanes, parts of a tile, several tiles, more rows than
/// are summed at once; of blocks: less than are unpacked at once, and more.
#[test]
fn matmul_of_integers() {
    let mut rng = Rng::new(11);
    let types = TensorType::ALL.into_iter().filter(|ty| !ty.is_float());
    for (n, ty) in types.enumerate() {
        for (n_rows, n_outputs, n_blocks) in [
            (1, 37, 18),
            (2, 16, 1),
            (3, 20, 8),
            (4, 15, 9),
            (7, 40, 3),
            (40, 33, 17),
            (300, 17, 2),
            (337, 17, 2),
        ] {
            let n_cols = (32usize * n_blocks).next_multiple_of(ty.block_len().max(64));
            let w = weight(ty, n_outputs, n_cols, &mut rng);
            let mut x = normals(&mut rng, n_rows * n_cols);
            x[n] *= 50.0;
            x[n_cols - 32..n_cols].fill(0.0);
            x[n_cols - 64..n_cols - 32].iter_mut().for_each(|x| *x *= 1e-18);
            check_integers(&w, &x, (ActDtype::Int12, 2039.0));
            check_integers(&w, &x, (ActDtype::Int8, 127.0));
        }
    }
}

/// A product of integers of which a block's largest is `most`.
fn check_integers(w: &Weight, x: &[f32], (acts, most): (ActDtype, f32)) {
    let (n_rows, n_outputs) = (x.len() / w.n_cols, w.n_rows);
    let name = format!("{} {n_rows}x{n_outputs}x{} as {acts}", w.ty, w.n_cols);
    let multiply = |cpu: &mut Cpu, x: &[f32], add| {
        let packed = w.pack_for(cpu.isa(), acts);
        multiply_packed(cpu, &packed, x, add)
    };
    let found = same_bits(&name, |cpu| multiply(cpu, x, false));
    assert_eq!(w.pack_for(Isa::Scalar, acts).kernel(), format!("{acts} lanes"), "{name}");
    close(&name, &found, &int_product(w, x, most), 2e-3);
    for row in [0, n_rows / 2, n_rows - 1] {
        let x = &x[row * w.n_cols..(row + 1) * w.n_cols];
        let alone = same_bits(&name, |cpu| multiply(cpu, x, false));
        let together = &found[row * n_outputs..(row + 1) * n_outputs];
        assert_eq!(bits(&alone), bits(together), "{name}: row {row} alone");
    }
    let added = same_bits(&name, |cpu| multiply(cpu, x, true));
    let expected: Vec<f32> = found.iter().map(|y| y + 0.5).collect();
    assert_eq!(bits(&added), bits(&expected), "{name}: added");
}

/// What is not a number must not become one on its way through integers.
#[test]
fn integers_keep_what_is_not_a_number() {
    let mut rng = Rng::new(12);
    let w = weight(TensorType::Q4_1, 20, 96, &mut rng);
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 17, 33, 95] {
            let mut x = normals(&mut rng, 96);
            x[at] = bad;
            for cpu in &mut machines() {
                for acts in [ActDtype::Int12, ActDtype::Int8] {
                    let found = multiply_packed(cpu, &w.pack_for(cpu.isa(), acts), &x, false);
                    assert!(found.iter().all(|y| !y.is_finite()), "{bad} at {at} on {}", cpu.isa());
                }
            }
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
        let forms = |f: ActForms, w: &&PackedMatrix| f.or(w.act_forms());
        acts.shape(5, 64, [&a, &b, &c].iter().fold(ActForms::default(), forms));
        cpu.acts_from(&x, &mut acts);
        let mut outs = [vec![0.0; 5 * 40], vec![0.0; 5 * 7], vec![0.0; 5 * 33]];
        let [oa, ob, oc] = &mut outs;
        cpu.matmul(
            &acts,
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

/// The largest outputs are what is read off all of them: of equal ones the first, and a row that is
/// broken is known for it. Weights whose lengths are known may take a shorter way.
#[test]
fn tops_of_products() {
    let mut rng = Rng::new(12);
    let types = [
        (TensorType::Q4_1, 5003),
        (TensorType::Q8_0, 5003),
        (TensorType::Q4_0, 2500),
        (TensorType::Q8_0, 40),
        (TensorType::Q6K, 2500),
        (TensorType::Q3K, 900),
        (TensorType::Q2K, 40),
        (TensorType::F16, 7),
    ];
    for (ty, n_outputs) in types {
        let n_cols = ty.block_len().max(96);
        let mut w = weight(ty, n_outputs, n_cols, &mut rng);
        // The second half is the first again, so that every top is there twice.
        let half = w.data.len() / n_outputs * (n_outputs / 2);
        w.data.copy_within(..half, half);
        for (n_rows, dtype) in each_pair([1, 2, 5, 9, 16, 17, 33, 50, 64, 65], ActDtype::ALL) {
            let mut x = normals(&mut rng, n_rows * n_cols);
            (x[3], x[(n_rows - 1) * n_cols]) = (f32::NAN, f32::INFINITY);
            for mut cpu in machines() {
                let packed = w.pack_for(cpu.isa(), dtype).with_lengths(cpu.isa());
                let out = multiply_packed(&mut cpu, &packed, &x, false);
                let mut acts = Acts::new(n_rows, n_cols);
                acts.shape(n_rows, n_cols, packed.act_forms());
                cpu.acts_from(&x, &mut acts);
                let mut tops = Tops::new(n_cols, n_outputs);
                let is_found = cpu.find_tops(&acts, &packed, &mut tops);
                let meets_ints = ty != TensorType::F16 && dtype != ActDtype::Bf16;
                let can = match cpu.isa() {
                    Isa::Amx => !meets_ints && (9..=64).contains(&n_rows),
                    Isa::Avx512 | Isa::Vnni => meets_ints && (3..=64).contains(&n_rows),
                    _ => false,
                };
                assert_eq!(is_found, can, "{ty}, {dtype}, {n_rows} rows, {}", cpu.isa());
                for (top, row) in
                    tops.found().iter().zip(out.chunks(n_outputs)).filter(|_| is_found)
                {
                    assert_eq!(top.is_sound, (cpu.is_sound())(row), "{ty}, {n_rows} rows");
                    if top.is_sound {
                        let place = (cpu.argmax())(row);
                        assert_eq!((top.place as usize, top.value), (place, row[place]), "{ty}");
                    }
                }
            }
        }
    }
}

fn each_pair<A: Copy, B: Copy>(
    firsts: impl IntoIterator<Item = A>,
    seconds: impl IntoIterator<Item = B> + Copy,
) -> impl Iterator<Item = (A, B)> {
    firsts.into_iter().flat_map(move |a| seconds.into_iter().map(move |b| (a, b)))
}

#[test]
fn packing_permutes_rows_and_refuses_what_is_not_finite() {
    let mut rng = Rng::new(3);
    for ty in [TensorType::Q4_0, TensorType::F32] {
        let w = weight(ty, 20, 64, &mut rng);
        let raw = RawMatrix { ty, n_rows: 20, n_cols: 64, data: &w.data };
        let flipped = PackedMatrix::pack(raw, Isa::Scalar, ActDtype::Bf16, |row| 19 - row).unwrap();
        let x = normals(&mut rng, 64);
        let mut cpu = Cpu::new(Isa::Scalar, 1, 16).unwrap();
        let mut expected = multiply(&mut cpu, &w, &x, false);
        expected.reverse();
        assert_eq!(bits(&multiply_packed(&mut cpu, &flipped, &x, false)), bits(&expected));
    }
    let mut nan = f32::NAN.to_le_bytes().repeat(32);
    let raw = RawMatrix { ty: TensorType::F32, n_rows: 1, n_cols: 32, data: &nan };
    assert_eq!(
        PackedMatrix::pack(raw, Isa::Scalar, ActDtype::Bf16, |r| r).unwrap_err(),
        PackError::NotFinite { row: 0 }
    );
    nan.pop();
    let raw = RawMatrix { ty: TensorType::F32, n_rows: 1, n_cols: 32, data: &nan };
    assert!(matches!(
        PackedMatrix::pack(raw, Isa::Scalar, ActDtype::Bf16, |r| r),
        Err(PackError::Size { .. })
    ));
    let mut q8 = vec![1u8; 34];
    q8[..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
    let raw = RawMatrix { ty: TensorType::Q8_0, n_rows: 1, n_cols: 32, data: &q8 };
    assert!(matches!(
        PackedMatrix::pack(raw, Isa::Scalar, ActDtype::Bf16, |r| r),
        Err(PackError::NotFinite { .. })
    ));
    let raw = RawMatrix { ty: TensorType::Q8_0, n_rows: 1, n_cols: 31, data: &q8 };
    assert!(matches!(
        PackedMatrix::pack(raw, Isa::Scalar, ActDtype::Bf16, |r| r),
        Err(PackError::Columns { .. })
    ));
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
    let identity = PackedMatrix::pack(raw, Isa::Scalar, ActDtype::Bf16, |row| row).unwrap();
    let mut out = vec![0.0; n_rows * n_cols];
    cpu.matmul(acts, [MatmulJob { weight: &identity, out: &mut out, add: false }]);
    out
}

#[test]
fn norm_gates_and_caps() {
    let mut rng = Rng::new(4);
    for (n_rows, n) in [(1, 32), (3, 96), (50, 160), (2, 47)] {
        let (x, up, w) =
            (normals(&mut rng, n_rows * n), normals(&mut rng, n_rows * n), normals(&mut rng, n));
        let forms = ActForms { exact: true, floats: true, tiles: true, ..ActForms::default() };
        let run = |cpu: &mut Cpu, fill: &dyn Fn(&mut Cpu, &mut Acts)| {
            let mut acts = Acts::new(n_rows, n);
            acts.shape(n_rows, n, forms);
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

/// Seen through the product that follows, which reads the gated rows in its own form.
#[test]
fn two_products_meet_in_a_gate() {
    let mut rng = Rng::new(9);
    let shapes = [
        (TensorType::Q4_1, 64, 96),
        (TensorType::F16, 33, 47),
        (TensorType::Q8_0, 32, 160),
        (TensorType::Q4_0, 64, 128),
        (TensorType::Q6K, 256, 256),
        (TensorType::Q2K, 256, 256),
    ];
    for ((ty, n, wide), dtype) in each_pair(shapes, ActDtype::ALL) {
        let [gate, up] = [(); 2].map(|()| weight(ty, wide, n, &mut rng));
        let down = weight(ty, 5, wide, &mut rng);
        for n_rows in [1, 2, 3, 4, 7, 16, 27, 49, 70, 131] {
            let kind = if n_rows % 2 == 0 { Gate::GeluTanh } else { Gate::Silu };
            let x = normals(&mut rng, n_rows * n);
            let run = |cpu: &mut Cpu, at_once: bool| {
                let packed = [&gate, &up, &down].map(|w| w.pack_for(cpu.isa(), dtype));
                let [gate, up, down] = &packed;
                let (mut acts, mut gated) = (Acts::new(n_rows, n), Acts::new(n_rows, wide));
                acts.shape(n_rows, n, gate.act_forms());
                gated.shape(n_rows, wide, down.act_forms());
                cpu.acts_from(&x, &mut acts);
                let [mut g, mut u] = [(); 2].map(|()| vec![0.0; n_rows * wide]);
                if at_once {
                    let (weights, products) = ([gate, up], [&mut g[..], &mut u[..]]);
                    let job = GatedJob { weights, kind, products, out: &mut gated };
                    cpu.gated_matmul(&acts, job);
                } else {
                    let into = |weight, out| MatmulJob { weight, out, add: false };
                    cpu.matmul(&acts, [into(gate, &mut g), into(up, &mut u)]);
                    cpu.gated_acts(kind, &mut g, &u, &mut gated);
                }
                let mut out = vec![0.0; n_rows * 5];
                let job = MatmulJob { weight: down, out: &mut out, add: false };
                cpu.matmul(&gated, [job]);
                out
            };
            let together = same_bits("gated product", |cpu| run(cpu, true));
            let apart = same_bits("product, then gate", |cpu| run(cpu, false));
            assert_eq!(bits(&together), bits(&apart), "{ty}, {n_rows} rows");
        }
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
            assert!(cpu.is_sound()(&x));
            assert_eq!(cpu.max()(&x), largest);
            assert_eq!(x[cpu.argmax()(&x)], largest);
            vec![cpu.sum_exp()(&x, 1.0)]
        });
    }
}

#[test]
fn one_unsound_element_is_found_wherever_it_is() {
    let mut rng = Rng::new(6);
    for n in [1, 15, 17, 128, 129, 300] {
        let x = normals(&mut rng, n);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN] {
            for at in [0, n / 3, n / 2, n - 1] {
                let mut x = x.clone();
                x[at] = bad;
                same_bits("soundness", |cpu| {
                    assert_eq!(cpu.is_sound()(&x), bad < f32::INFINITY, "{bad} at {at} of {n}");
                    vec![]
                });
            }
        }
    }
}
