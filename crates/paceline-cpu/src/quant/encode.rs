//! Numbers to rows of blocks, for the types that plain rounding serves.
//!
//! Meant for tests and synthetic models: round to nearest with the obvious scale, no search for a
//! better one.

use half::{bf16, f16};

use super::TensorType;

/// Whether [`quantize_row`] knows the type.
pub fn can_quantize(ty: TensorType) -> bool {
    block_encoder(ty).is_some()
}

/// Appends a row of `values` in the given type to `out`.
///
/// # Panics
/// When the type has no quantiser here (see [`can_quantize`]), or `values` are not whole blocks.
pub fn quantize_row(ty: TensorType, values: &[f32], out: &mut Vec<u8>) {
    assert!(
        ty.row_bytes(values.len()).is_some(),
        "{} values of {ty}",
        values.len()
    );
    let encode = block_encoder(ty).unwrap_or_else(|| panic!("no quantiser for {ty}"));
    for block in values.chunks_exact(ty.block_len()) {
        encode(block, out);
    }
}

/// Appends one block.
type EncodeBlock = fn(&[f32], &mut Vec<u8>);

fn block_encoder(ty: TensorType) -> Option<EncodeBlock> {
    match ty {
        TensorType::F32 => Some(|v, out| out.extend(v[0].to_le_bytes())),
        TensorType::F16 => Some(|v, out| out.extend(f16::from_f32(v[0]).to_le_bytes())),
        TensorType::BF16 => Some(|v, out| out.extend(bf16::from_f32(v[0]).to_le_bytes())),
        TensorType::Q4_0 => Some(encode_q4_0),
        TensorType::Q4_1 => Some(encode_q4_1),
        TensorType::Q8_0 => Some(encode_q8_0),
        _ => None,
    }
}

/// The scale is signed: the value of largest magnitude gets code 0, the one code without a mirror
/// image, and so keeps full resolution.
fn encode_q4_0(values: &[f32], out: &mut Vec<u8>) {
    let extreme = values
        .iter()
        .fold(0.0f32, |m, &v| if v.abs() > m.abs() { v } else { m });
    let d = extreme / -8.0;
    let inverse = inverse(d);
    out.extend(f16::from_f32(d).to_le_bytes());
    pack_nibbles(values, out, |v| v * inverse + 8.0);
}

fn encode_q4_1(values: &[f32], out: &mut Vec<u8>) {
    let max = values.iter().copied().fold(f32::MIN, f32::max);
    let min = values.iter().copied().fold(f32::MAX, f32::min);
    let d = (max - min) / 15.0;
    let inverse = inverse(d);
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(f16::from_f32(min).to_le_bytes());
    pack_nibbles(values, out, |v| (v - min) * inverse);
}

fn encode_q8_0(values: &[f32], out: &mut Vec<u8>) {
    let d = values.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0;
    let inverse = inverse(d);
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(values.iter().map(|v| (v * inverse).round() as i8 as u8));
}

/// A block of zeros has scale zero and no inverse; its codes do not matter.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn pack_nibbles(values: &[f32], out: &mut Vec<u8>, code: impl Fn(f32) -> f32) {
    let code = |v: f32| code(v).round().clamp(0.0, 15.0) as u8;
    let (low, high) = values.split_at(16);
    out.extend(
        low.iter()
            .zip(high)
            .map(|(&low, &high)| code(low) | code(high) << 4),
    );
}
