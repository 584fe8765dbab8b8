//! Whoever shares a queue must compute alike, and versions of the program that do not must be told
//! apart. So every arithmetic's answers are written down here, as a digest of their bits.

use std::hash::Hasher;
use std::sync::Arc;

use paceline::ARITHMETIC;
use paceline_cpu::quant::TensorType;
use paceline_cpu::{ActDtype, KvDtype};
use paceline_model::weights::Weights;

use crate::harness::{Setup, alone, packed_for_ints, tiny};
use crate::invariance::jobs;

/// Which of the program's arithmetics these are.
const RECORDED: u32 = 2;

/// Each kind of weights by each kind of activations, and kind of keys and values.
const DIGESTS: [(&str, TensorType, ActDtype, KvDtype, u64); 12] = [
    ("llama", TensorType::Q4_1, ActDtype::Bf16, KvDtype::F16, 0x90f4_df79_c8e7_b39d),
    ("llama", TensorType::Q4_1, ActDtype::Bf16, KvDtype::Bf16, 0x6d7d_bf02_b097_d4de),
    ("llama", TensorType::Q4_1, ActDtype::Bf16, KvDtype::Int8, 0xcb92_f0df_5d49_1ca3),
    ("llama", TensorType::Q4_1, ActDtype::Int12, KvDtype::Bf16, 0x58ed_2c3a_6368_af2a),
    ("llama", TensorType::Q4_1, ActDtype::Int8, KvDtype::Int8, 0x48e2_2e02_be3b_d337),
    ("qwen2", TensorType::Q4_0, ActDtype::Bf16, KvDtype::Bf16, 0xeefc_7846_79c0_bdb3),
    ("qwen2", TensorType::F16, ActDtype::Bf16, KvDtype::Bf16, 0x726a_f469_5413_e10d),
    ("gemma2", TensorType::Q8_0, ActDtype::Bf16, KvDtype::Bf16, 0x9aa1_1ddd_55ff_a686),
    ("gemma2", TensorType::Q8_0, ActDtype::Int12, KvDtype::Bf16, 0x8c59_0649_2436_4fd7),
    ("gemma2", TensorType::Q8_0, ActDtype::Int8, KvDtype::Bf16, 0x9084_81dd_9b43_8792),
    ("llama", TensorType::Q6K, ActDtype::Int8, KvDtype::Bf16, 0xc307_3f56_eb2e_8f7a),
    ("llama", TensorType::Q2K, ActDtype::Int12, KvDtype::Bf16, 0x33db_fc0e_2b88_658d),
];

#[test]
fn answers_keep_their_bits_from_version_to_version() {
    let mut others = Vec::new();
    for (arch, ty, acts, kv, recorded) in DIGESTS {
        let found = digest(&packed_for_ints(&tiny(arch, ty), acts), kv);
        if found != recorded {
            others.push(format!("{arch}, {ty}, {acts}, {kv}: {found:#018x}, not {recorded:#018x}"));
        }
    }
    assert!(
        others.is_empty() && RECORDED == ARITHMETIC,
        "answers have other bits than those of arithmetic {RECORDED} had. If that is meant, raise \
         `ARITHMETIC`, which is {ARITHMETIC}, and put it and the digests here:\n{}",
        others.join("\n"),
    );
}

/// Of all that some sequences produce, by a hash that stays what it is: FNV-1a.
fn digest(weights: &Arc<Weights>, kv_dtype: KvDtype) -> u64 {
    let jobs = jobs(weights.spec().n_vocab, &[40, 17, 33]);
    let outputs = alone(weights, Setup { kv_dtype, ..Setup::plain() }, &jobs);
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for output in outputs {
        output.tokens.iter().for_each(|&token| hash.write_u32(token));
        for (token, logprob, top) in output.logprobs.into_iter().chain(output.prompt_logprobs) {
            hash.write_u32(token);
            hash.write_u32(logprob);
            top.iter().for_each(|&(_, logprob)| hash.write_u32(logprob));
        }
    }
    hash.finish()
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
