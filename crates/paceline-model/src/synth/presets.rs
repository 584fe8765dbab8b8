//! The shapes of well-known models.

use paceline_cpu::quant::TensorType;

use super::SynthSpec;

/// One shape; heads are `(query, key-value, size)`.
struct Preset {
    name: &'static str,
    arch: &'static str,
    n_layers: usize,
    d_model: usize,
    heads: (usize, usize, usize),
    d_ff: usize,
    n_vocab: usize,
    context: usize,
    rope_base: f32,
    window: Option<u32>,
    tied: bool,
}

const SMOLLM2_135M: Preset = Preset {
    name: "smollm2-135m",
    arch: "llama",
    n_layers: 30,
    d_model: 576,
    heads: (9, 3, 64),
    d_ff: 1536,
    n_vocab: 49_152,
    context: 8192,
    rope_base: 100_000.0,
    window: None,
    tied: true,
};

const LLAMA_3_8B: Preset = Preset {
    name: "llama-3-8b",
    n_layers: 32,
    d_model: 4096,
    heads: (32, 8, 128),
    d_ff: 14_336,
    n_vocab: 128_256,
    rope_base: 500_000.0,
    tied: false,
    ..SMOLLM2_135M
};

const QWEN2_5_HALF_B: Preset = Preset {
    name: "qwen2.5-0.5b",
    arch: "qwen2",
    n_layers: 24,
    d_model: 896,
    heads: (14, 2, 64),
    d_ff: 4864,
    n_vocab: 151_936,
    context: 32_768,
    rope_base: 1_000_000.0,
    ..SMOLLM2_135M
};

const QWEN3_0_6B: Preset = Preset {
    name: "qwen3-0.6b",
    arch: "qwen3",
    n_layers: 28,
    d_model: 1024,
    heads: (16, 8, 128),
    d_ff: 3072,
    context: 40_960,
    ..QWEN2_5_HALF_B
};

const PRESETS: [Preset; 14] = [
    SMOLLM2_135M,
    Preset {
        name: "smollm2-360m",
        n_layers: 32,
        d_model: 960,
        heads: (15, 5, 64),
        d_ff: 2560,
        ..SMOLLM2_135M
    },
    Preset {
        name: "smollm2-1.7b",
        n_layers: 24,
        d_model: 2048,
        heads: (32, 32, 64),
        d_ff: 8192,
        rope_base: 130_000.0,
        ..SMOLLM2_135M
    },
    Preset {
        name: "tinyllama-1.1b",
        n_layers: 22,
        d_model: 2048,
        heads: (32, 4, 64),
        d_ff: 5632,
        n_vocab: 32_000,
        context: 2048,
        rope_base: 10_000.0,
        tied: false,
        ..SMOLLM2_135M
    },
    Preset {
        name: "llama-3.2-1b",
        n_layers: 16,
        d_model: 2048,
        heads: (32, 8, 64),
        d_ff: 8192,
        context: 131_072,
        tied: true,
        ..LLAMA_3_8B
    },
    LLAMA_3_8B,
    Preset {
        name: "mistral-7b",
        n_vocab: 32_000,
        context: 32_768,
        rope_base: 1_000_000.0,
        ..LLAMA_3_8B
    },
    QWEN2_5_HALF_B,
    Preset {
        name: "qwen2.5-1.5b",
        n_layers: 28,
        d_model: 1536,
        heads: (12, 2, 128),
        d_ff: 8960,
        ..QWEN2_5_HALF_B
    },
    Preset {
        name: "qwen2.5-7b",
        n_layers: 28,
        d_model: 3584,
        heads: (28, 4, 128),
        d_ff: 18_944,
        n_vocab: 152_064,
        tied: false,
        ..QWEN2_5_HALF_B
    },
    QWEN3_0_6B,
    Preset {
        name: "qwen3-8b",
        n_layers: 36,
        d_model: 4096,
        heads: (32, 8, 128),
        d_ff: 12_288,
        tied: false,
        ..QWEN3_0_6B
    },
    Preset {
        name: "gemma-2-2b",
        arch: "gemma2",
        n_layers: 26,
        d_model: 2304,
        heads: (8, 4, 256),
        d_ff: 9216,
        n_vocab: 256_000,
        rope_base: 10_000.0,
        window: Some(4096),
        ..SMOLLM2_135M
    },
    Preset {
        name: "gemma-3-1b",
        arch: "gemma3",
        n_layers: 26,
        d_model: 1152,
        heads: (4, 1, 256),
        d_ff: 6912,
        n_vocab: 262_144,
        context: 32_768,
        rope_base: 1_000_000.0,
        window: Some(512),
        ..SMOLLM2_135M
    },
];

impl SynthSpec {
    /// The shape of a well-known model, with weights of its own in Q4_0.
    pub fn like(name: &str) -> Option<Self> {
        let preset = PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name))?;
        let (n_heads, n_kv_heads, head_dim) = preset.heads;
        Some(Self {
            arch: preset.arch.to_owned(),
            n_layers: preset.n_layers,
            d_model: preset.d_model,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff: preset.d_ff,
            n_vocab: preset.n_vocab,
            context: preset.context,
            rope_base: preset.rope_base,
            window: preset.window,
            ty: TensorType::Q4_0,
            tied: preset.tied,
            seed: 1,
        })
    }

    /// The names [`SynthSpec::like`] knows.
    pub fn known_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|preset| preset.name)
    }
}
