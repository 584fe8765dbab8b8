//! Super-blocks of 256 whose group scales are themselves quantised: Q2_K to Q6_K.
//!
//! Layouts (bytes): `Q2_K` scales:16 codes:64 d:2 dmin:2; `Q3_K` high:32 codes:64 scales:12 d:2;
//! `Q4_K` d:2 dmin:2 scales:12 codes:128; `Q5_K` d:2 dmin:2 scales:12 high:32 codes:128;
//! `Q6_K` low:128 high:64 scales:16 d:2.
//!
//! Codes lie in planes: a run of bytes holds one bit field for each of several runs of columns, so
//! that column `i` of run `r` is field `r` of byte `i`. [`plane`] reads one such run.

use super::decode::{Unpacked, f16_at};

pub(super) fn unpack_q2_k(block: &[u8], out: Unpacked<'_>) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (g, packed) in block[..16].iter().enumerate() {
        out.scales[g] = d * f32::from(packed & 15);
        out.mins[g] = -(dmin * f32::from(packed >> 4));
    }
    two_bit_codes(&block[16..80], out.codes);
}

pub(super) fn unpack_q3_k(block: &[u8], out: Unpacked<'_>) {
    let d = f16_at(block, 108);
    let packed = &block[96..108];
    for (g, scale) in out.scales.iter_mut().enumerate() {
        let low = packed[g % 8] >> (4 * (g / 8)) & 15;
        let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
        *scale = d * f32::from((low | high << 4) as i8 - 32);
    }
    two_bit_codes(&block[32..96], out.codes);
    // The third bit is set where four is *not* subtracted, which is the code's own third bit.
    for (r, codes) in out.codes.chunks_exact_mut(32).enumerate() {
        plane(&block[..32], codes, |byte, code| {
            code | (byte >> r & 1) << 2
        });
    }
}

pub(super) fn unpack_q4_k(block: &[u8], out: Unpacked<'_>) {
    six_bit_scales(block, out.scales, out.mins);
    four_bit_codes(&block[16..144], out.codes);
}

pub(super) fn unpack_q5_k(block: &[u8], out: Unpacked<'_>) {
    six_bit_scales(block, out.scales, out.mins);
    four_bit_codes(&block[48..176], out.codes);
    for (r, codes) in out.codes.chunks_exact_mut(32).enumerate() {
        plane(&block[16..48], codes, |byte, code| {
            code | (byte >> r & 1) << 4
        });
    }
}

pub(super) fn unpack_q6_k(block: &[u8], out: Unpacked<'_>) {
    let d = f16_at(block, 208);
    for (scale, byte) in out.scales.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(*byte as i8);
    }
    // Each half of 128 columns: 64 bytes of low halves as two planes of 64, and 32 bytes of high
    // bits as four planes of 32.
    for (half, codes) in out.codes.chunks_exact_mut(128).enumerate() {
        for (r, codes) in codes.chunks_exact_mut(64).enumerate() {
            plane(&block[64 * half..][..64], codes, |byte, _| {
                byte >> (4 * r) & 15
            });
        }
        let high = &block[128 + 32 * half..][..32];
        for (r, codes) in codes.chunks_exact_mut(32).enumerate() {
            plane(high, codes, |byte, code| code | (byte >> (2 * r) & 3) << 4);
        }
    }
}

/// Combines one run of bytes with the run of codes it holds a field of.
fn plane(bytes: &[u8], codes: &mut [u8], field: impl Fn(u8, u8) -> u8) {
    for (code, &byte) in codes.iter_mut().zip(bytes) {
        *code = field(byte, *code);
    }
}

/// 64 bytes as 256 codes: each 32 bytes hold four planes of 32.
fn two_bit_codes(packed: &[u8], codes: &mut [u8]) {
    for (r, codes) in codes.chunks_exact_mut(32).enumerate() {
        plane(&packed[32 * (r / 4)..][..32], codes, |byte, _| {
            byte >> (2 * (r % 4)) & 3
        });
    }
}

/// 128 bytes as 256 codes: each 32 bytes hold two planes of 32.
fn four_bit_codes(packed: &[u8], codes: &mut [u8]) {
    for (r, codes) in codes.chunks_exact_mut(32).enumerate() {
        plane(&packed[32 * (r / 2)..][..32], codes, |byte, _| {
            byte >> (4 * (r % 2)) & 15
        });
    }
}

/// The head shared by `Q4_K` and `Q5_K`: eight scales and eight mins of six bits in 12 bytes. The
/// first four of each lie in the low six bits of bytes 0..4 and 4..8; the last four have their low
/// halves in bytes 8..12 and their upper two bits on top of the first four.
fn six_bit_scales(block: &[u8], scales: &mut [f32], mins: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (a, b, c) = (&block[4..8], &block[8..12], &block[12..16]);
    for g in 0..4 {
        let late_scale = c[g] & 15 | a[g] >> 2 & 0x30;
        let late_min = c[g] >> 4 | b[g] >> 2 & 0x30;
        scales[g] = d * f32::from(a[g] & 63);
        scales[g + 4] = d * f32::from(late_scale);
        mins[g] = -(dmin * f32::from(b[g] & 63));
        mins[g + 4] = -(dmin * f32::from(late_min));
    }
}
