//! Blocks of 32 with one scale each: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! Layouts (bytes): `Q4_0` d:2 codes:16; `Q4_1` d:2 min:2 codes:16; `Q5_0` d:2 high:4 codes:16;
//! `Q5_1` d:2 min:2 high:4 codes:16; `Q8_0` d:2 codes:32. Byte `i` of the 4-bit codes holds column
//! `i` in its low half and column `i + 16` in its high half; bit `i` of `high` is the fifth bit of
//! column `i`.

use super::decode::{Unpacked, f16_at};

pub(super) fn unpack_q4_0(block: &[u8], out: Unpacked<'_>) {
    out.scales[0] = f16_at(block, 0);
    nibbles(&block[2..], out.codes);
}

pub(super) fn unpack_q4_1(block: &[u8], out: Unpacked<'_>) {
    out.scales[0] = f16_at(block, 0);
    out.mins[0] = f16_at(block, 2);
    nibbles(&block[4..], out.codes);
}

pub(super) fn unpack_q5_0(block: &[u8], out: Unpacked<'_>) {
    out.scales[0] = f16_at(block, 0);
    nibbles(&block[6..], out.codes);
    fifth_bits(&block[2..6], out.codes);
}

pub(super) fn unpack_q5_1(block: &[u8], out: Unpacked<'_>) {
    out.scales[0] = f16_at(block, 0);
    out.mins[0] = f16_at(block, 2);
    nibbles(&block[8..], out.codes);
    fifth_bits(&block[4..8], out.codes);
}

/// The file holds signed bytes; adding 128 to the value is flipping its top bit.
pub(super) fn unpack_q8_0(block: &[u8], out: Unpacked<'_>) {
    out.scales[0] = f16_at(block, 0);
    for (code, byte) in out.codes.iter_mut().zip(&block[2..]) {
        *code = byte ^ 0x80;
    }
}

fn nibbles(packed: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(packed) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

fn fifth_bits(bits: &[u8], codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= (bits[i / 8] >> (i % 8) & 1) << 4;
    }
}
