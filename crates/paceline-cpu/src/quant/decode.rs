//! Rows of blocks to codes, and to numbers.

use half::{bf16, f16};

use super::{TensorType, k, legacy};

/// Where one block's unpacked parts go. `mins` is empty for types without a min.
pub(super) struct Unpacked<'a> {
    pub(super) codes: &'a mut [u8],
    pub(super) scales: &'a mut [f32],
    pub(super) mins: &'a mut [f32],
}

/// Unpacks a row (or any whole number of blocks) of a quantised type into unsigned codes in column
/// order, with one scale, and one min where the type has them, for each group:
/// `value = scales[g] * (codes[i] - zero_point) + mins[g]`.
///
/// # Panics
/// When `ty` is a float type, or the lengths do not belong to one row of whole blocks.
pub fn unpack_row(
    ty: TensorType,
    bytes: &[u8],
    codes: &mut [u8],
    scales: &mut [f32],
    mins: &mut [f32],
) {
    assert!(!ty.is_float(), "{ty} has no codes");
    let groups = codes.len() / ty.group_len();
    assert_eq!(
        Some(bytes.len()),
        ty.row_bytes(codes.len()),
        "bytes of a {ty} row"
    );
    assert_eq!(scales.len(), groups, "scales of a {ty} row");
    assert_eq!(
        mins.len(),
        if ty.has_min() { groups } else { 0 },
        "mins of a {ty} row"
    );

    let groups_per_block = ty.block_len() / ty.group_len();
    let mins_per_block = if ty.has_min() { groups_per_block } else { 0 };
    let unpack = block_unpacker(ty);
    for (i, block) in bytes.chunks_exact(ty.block_bytes()).enumerate() {
        unpack(
            block,
            Unpacked {
                codes: &mut codes[i * ty.block_len()..][..ty.block_len()],
                scales: &mut scales[i * groups_per_block..][..groups_per_block],
                mins: &mut mins[i * mins_per_block..][..mins_per_block],
            },
        );
    }
}

/// Turns a row (or any whole number of blocks) of any type into `f32`.
///
/// # Panics
/// When `bytes` and `out` are not of the same whole blocks.
pub fn dequantize_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        ty.row_bytes(out.len()),
        "bytes of a {ty} row"
    );
    match ty {
        TensorType::F32 => widen(bytes, out, f32::from_le_bytes),
        TensorType::F16 => widen(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        TensorType::BF16 => widen(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        _ => dequantize_blocks(ty, bytes, out),
    }
}

fn widen<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    let (values, _) = bytes.as_chunks::<N>();
    for (out, value) in out.iter_mut().zip(values) {
        *out = read(*value);
    }
}

/// The largest block has 256 values in 16 groups.
const MAX_BLOCK: usize = 256;
const MAX_GROUPS: usize = 16;

fn dequantize_blocks(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    let (len, group_len) = (ty.block_len(), ty.group_len());
    let groups = len / group_len;
    let mut codes = [0; MAX_BLOCK];
    let mut scales = [0.0; MAX_GROUPS];
    let mut mins = [0.0; MAX_GROUPS];
    let n_mins = if ty.has_min() { groups } else { 0 };
    for (block, out) in bytes
        .chunks_exact(ty.block_bytes())
        .zip(out.chunks_exact_mut(len))
    {
        let (codes, scales) = (&mut codes[..len], &mut scales[..groups]);
        unpack_row(ty, block, codes, scales, &mut mins[..n_mins]);
        for (g, out) in out.chunks_exact_mut(group_len).enumerate() {
            let codes = &codes[g * group_len..][..group_len];
            let min = mins[..n_mins].get(g).copied();
            dequantize_group(codes, ty.zero_point(), scales[g], min, out);
        }
    }
}

/// A multiplication and an addition, never fused: the same bits on every machine. Without a min
/// nothing is added, because `-0.0 + 0.0` would lose the sign of zero.
fn dequantize_group(codes: &[u8], zero: i32, scale: f32, min: Option<f32>, out: &mut [f32]) {
    for (out, &code) in out.iter_mut().zip(codes) {
        let product = scale * (i32::from(code) - zero) as f32;
        *out = match min {
            Some(min) => product + min,
            None => product,
        };
    }
}

fn block_unpacker(ty: TensorType) -> fn(&[u8], Unpacked<'_>) {
    match ty {
        TensorType::Q4_0 => legacy::unpack_q4_0,
        TensorType::Q4_1 => legacy::unpack_q4_1,
        TensorType::Q5_0 => legacy::unpack_q5_0,
        TensorType::Q5_1 => legacy::unpack_q5_1,
        TensorType::Q8_0 => legacy::unpack_q8_0,
        TensorType::Q2K => k::unpack_q2_k,
        TensorType::Q3K => k::unpack_q3_k,
        TensorType::Q4K => k::unpack_q4_k,
        TensorType::Q5K => k::unpack_q5_k,
        TensorType::Q6K => k::unpack_q6_k,
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
            unreachable!("float types have no blocks of codes")
        }
    }
}

/// The `f16` at byte `at` of a block, widened (which is exact).
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
