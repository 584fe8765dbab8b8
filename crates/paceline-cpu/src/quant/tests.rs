use super::*;

/// Blocks of a type, and the bits of the values another implementation reads from them.
struct Fixture {
    ty: TensorType,
    blocks: &'static [u8],
    values: Vec<f32>,
}

impl Fixture {
    fn new(ty: TensorType, file: &'static [u8]) -> Self {
        let n = file.len() / (ty.block_bytes() + 4 * ty.block_len());
        let (blocks, values) = file.split_at(n * ty.block_bytes());
        let values: Vec<f32> =
            values.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(values.len(), n * ty.block_len());
        Self { ty, blocks, values }
    }
}

macro_rules! fixtures {
    ($($ty:ident $name:literal;)*) => {
        vec![$(Fixture::new(
            TensorType::$ty,
            include_bytes!(concat!("../../../../testdata/quant/", $name, ".bin")),
        )),*]
    };
}

fn fixtures() -> Vec<Fixture> {
    fixtures! {
        F32 "F32"; F16 "F16"; BF16 "BF16"; Q4_0 "Q4_0"; Q4_1 "Q4_1"; Q5_0 "Q5_0"; Q5_1 "Q5_1";
        Q8_0 "Q8_0"; Q2K "Q2_K"; Q3K "Q3_K"; Q4K "Q4_K"; Q5K "Q5_K"; Q6K "Q6_K";
    }
}

#[test]
fn every_type_has_a_fixture() {
    let covered: Vec<TensorType> = fixtures().iter().map(|f| f.ty).collect();
    assert_eq!(covered, TensorType::ALL);
}

#[test]
fn dequantised_bits_equal_the_reference() {
    for Fixture { ty, blocks, values } in fixtures() {
        let mut out = vec![f32::NAN; values.len()];
        dequantize_row(ty, blocks, &mut out);
        for (i, (ours, reference)) in out.iter().zip(&values).enumerate() {
            assert_eq!(ours.to_bits(), reference.to_bits(), "{ty}[{i}]: {ours} and {reference}");
        }
    }
}

#[test]
fn unpacked_codes_stay_in_range_and_give_the_same_values() {
    for Fixture { ty, blocks, values } in fixtures().into_iter().filter(|f| !f.ty.is_float()) {
        let groups = values.len() / ty.group_len();
        let mut codes = vec![0; values.len()];
        let mut scales = vec![0.0; groups];
        let mut mins = vec![0.0; if ty.has_min() { groups } else { 0 }];
        unpack_row(ty, blocks, &mut codes, &mut scales, &mut mins);
        assert_eq!(codes.iter().max(), Some(&ty.max_code()), "{ty}");
        assert_eq!(codes.iter().min(), Some(&0), "{ty}");
        for (i, &value) in values.iter().enumerate() {
            let g = i / ty.group_len();
            let centred = (i32::from(codes[i]) - ty.zero_point()) as f32;
            let min = mins.get(g).copied().unwrap_or(0.0);
            assert_eq!(scales[g] * centred + min, value, "{ty}[{i}]");
        }
    }
}

#[test]
fn sizes_are_whole_blocks_or_nothing() {
    for ty in TensorType::ALL {
        assert_eq!(ty.row_bytes(0), Some(0), "{ty}");
        assert_eq!(ty.row_bytes(3 * ty.block_len()), Some(3 * ty.block_bytes()), "{ty}");
        assert_eq!(ty.block_len() % ty.group_len(), 0, "{ty}");
        assert_eq!(TensorType::from_name(&ty.name().to_lowercase()), Some(ty));
        if !ty.is_float() {
            assert_eq!(ty.row_bytes(ty.block_len() + 1), None, "{ty}");
        }
    }
    assert_eq!(TensorType::F32.row_bytes(usize::MAX), None);
    assert_eq!(TensorType::from_name("Q9_X"), None);
}

#[test]
fn quantised_values_are_within_half_a_step() {
    let mut rng = Rng::new(7);
    for ty in TensorType::ALL.into_iter().filter(|&ty| can_quantize(ty)) {
        for std in [0.05, 1.0, 50.0] {
            let mut values: Vec<f32> = (0..256).map(|_| rng.normal() * std).collect();
            values[..32].fill(0.0);
            let mut bytes = Vec::new();
            quantize_row(ty, &values, &mut bytes);
            let mut back = vec![f32::NAN; values.len()];
            dequantize_row(ty, &bytes, &mut back);
            let blocks = values.chunks(32).zip(back.chunks(32));
            for (values, back) in blocks {
                let max = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let step =
                    if ty.is_float() { max / 128.0 } else { 2.0 * max / f32::from(ty.max_code()) };
                for (value, back) in values.iter().zip(back) {
                    // The scale itself is rounded to f16, and Q4_0 clips the far end by a step.
                    let bound = if ty == TensorType::Q4_0 { 1.1 * step } else { 0.55 * step };
                    assert!((value - back).abs() <= bound, "{ty} {std}: {value} became {back}");
                }
            }
        }
    }
}

#[test]
fn random_rows_have_the_wanted_spread() {
    for ty in TensorType::ALL {
        for std in [0.02, 1.0] {
            let mut bytes = Vec::new();
            random_row(ty, &mut Rng::new(3), std, 4096, &mut bytes);
            let mut values = vec![f32::NAN; 4096];
            dequantize_row(ty, &bytes, &mut values);
            let mean = values.iter().sum::<f32>() / 4096.0;
            let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / 4096.0;
            let ratio = variance.sqrt() / std;
            assert!((0.8..1.25).contains(&ratio), "{ty}: deviation {ratio} of the wanted");
            assert!(mean.abs() < 0.15 * std, "{ty}: mean {mean} for deviation {std}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_row() {
    let row = |seed| {
        let mut bytes = Vec::new();
        random_row(TensorType::Q6K, &mut Rng::new(seed), 1.0, 512, &mut bytes);
        bytes
    };
    assert_eq!(row(1), row(1));
    assert_ne!(row(1), row(2));
}

#[test]
#[should_panic(expected = "bytes of a Q4_0 row")]
fn a_short_row_is_our_bug() {
    dequantize_row(TensorType::Q4_0, &[0; 17], &mut [0.0; 32]);
}
