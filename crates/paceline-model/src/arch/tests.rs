use serde_json::{Value, json};

use super::*;
use crate::gguf::{Gguf, GgufWriter, Metadata};
use paceline_cpu::quant::TensorType;

/// A configuration with the figures every model has.
fn config(class: &str, extra: Value) -> Value {
    let mut config = json!({
        "architectures": [class],
        "hidden_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
    });
    merge(&mut config, extra);
    config
}

fn merge(into: &mut Value, extra: Value) {
    for (key, value) in extra.as_object().unwrap() {
        into[key] = value.clone();
    }
}

fn hf(config: &Value) -> Result<ModelSpec, ModelError> {
    spec_from_config(config.to_string().as_bytes()).map(|model| model.spec)
}

fn hf_error(class: &str, extra: Value) -> String {
    hf(&config(class, extra)).unwrap_err().to_string()
}

/// A GGUF file of that architecture: figures as above, an embedding and nothing else.
fn gguf(arch: &str, extra: impl FnOnce(&mut Metadata)) -> Result<ModelSpec, ModelError> {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", arch);
    for (key, value) in [
        ("embedding_length", 512u32),
        ("block_count", 12),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 2),
        ("feed_forward_length", 1024),
        ("context_length", 4096),
    ] {
        metadata.set(format!("{arch}.{key}"), value);
    }
    metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-6f32);
    extra(&mut metadata);
    spec_from_gguf(&with_tensor(metadata, "token_embd.weight", &[32, 1000])).map(|(_, spec)| spec)
}

fn with_tensor(metadata: Metadata, name: &str, dims: &[usize]) -> Gguf {
    let mut writer = GgufWriter::new(metadata);
    writer.add_tensor(name, TensorType::F32, dims).unwrap();
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes, |head, out| out.write_all(&vec![0; head.n_bytes])).unwrap();
    Gguf::parse(bytes).unwrap()
}

fn close(found: &[f32], expected: &[(usize, f64)]) {
    for &(i, expected) in expected {
        let error = (f64::from(found[i]) / expected - 1.0).abs();
        assert!(error < 1e-5, "frequency {i}: {} and not {expected}", found[i]);
    }
}

#[test]
fn both_formats_give_the_same_spec() {
    for (arch, class) in [
        ("llama", "LlamaForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
        ("gemma2", "Gemma2ForCausalLM"),
        ("gemma3", "Gemma3ForCausalLM"),
    ] {
        let mut from_gguf = gguf(arch, |_| {}).unwrap();
        // Hugging Face's Gemma has a default of its own here, and every real configuration says it.
        let from_hf = hf(&config(class, json!({"query_pre_attn_scalar": 64}))).unwrap();
        let style = if arch == "llama" { RopeStyle::Interleaved } else { RopeStyle::Neox };
        assert_eq!(from_gguf.rope.style, style, "{arch}");
        assert_eq!(from_hf.rope.style, RopeStyle::Neox, "{arch}");
        from_gguf.rope.style = RopeStyle::Neox;
        assert_eq!(from_gguf, from_hf, "{arch}");
        assert_eq!((from_hf.head_dim, from_hf.rope.dim), (64, 64));
        assert_eq!(from_hf.attn_scale, 0.125);
    }
}

#[test]
fn gemma_without_a_query_scalar_has_the_default() {
    for (class, scale) in [("Gemma2ForCausalLM", 1.0 / 16.0), ("LlamaForCausalLM", 0.125)] {
        assert_eq!(hf(&config(class, json!({}))).unwrap().attn_scale, scale);
    }
}

#[test]
fn model_types_stand_in_for_missing_classes() {
    for (ty, name) in [("mistral", "llama"), ("gemma3_text", "gemma3"), ("qwen3", "qwen3")] {
        let mut config = config("", json!({"model_type": ty}));
        config.as_object_mut().unwrap().remove("architectures");
        assert_eq!(hf(&config).unwrap().arch, name);
    }
}

#[test]
fn unknown_architectures_list_the_known_ones() {
    let message = gguf("mamba", |_| {}).unwrap_err().to_string();
    assert!(
        message.contains("\"mamba\" is not supported; supported are llama, qwen2"),
        "{message}"
    );
    let message = hf_error("BertModel", json!({}));
    assert!(message.contains("\"BertModel\"") && message.contains("Qwen3ForCausalLM"), "{message}");
    let message = hf(&json!({})).unwrap_err().to_string();
    assert!(message.contains("none named in config.json"), "{message}");
}

#[test]
fn gemma_figures() {
    let spec = hf(&config("Gemma2ForCausalLM", json!({"query_pre_attn_scalar": 144}))).unwrap();
    assert_eq!(spec.activation, Activation::GeluTanh);
    assert_eq!((spec.attn_softcap, spec.final_softcap), (Some(50.0), Some(30.0)));
    assert_eq!(spec.attn_scale, 1.0 / 12.0);
    assert_eq!(spec.embed_scale, 512f32.sqrt());
    assert_eq!(spec.windows[..3], [Some(4096), None, Some(4096)]);

    let spec = hf(&config(
        "Gemma3ForCausalLM",
        json!({
            "sliding_window": 512, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "head_dim": 256,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        }),
    ))
    .unwrap();
    assert_eq!((spec.attn_softcap, spec.final_softcap), (None, None));
    let global: Vec<usize> = (0..12).filter(|&l| spec.windows[l].is_none()).collect();
    assert_eq!(global, [5, 11]);
    assert_eq!(spec.rope.inv_freq[0], 0.125);
    let local = spec.rope.local_inv_freq.as_ref().unwrap();
    close(local, &[(0, 1.0), (64, 0.01)]);
    close(&spec.rope.inv_freq, &[(64, 0.001 / 8.0)]);

    // The one size whose files do not give their scale.
    let spec = gguf("gemma3", |m| {
        m.set("gemma3.block_count", 62u32);
        m.set("gemma3.attention.key_length", 32u32);
    });
    assert_eq!(spec.unwrap().attn_scale, 0.125);
}

#[test]
fn newer_rope_parameters_are_read() {
    let spec = hf(&config(
        "Gemma3ForCausalLM",
        json!({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }}),
    ))
    .unwrap();
    close(&spec.rope.inv_freq, &[(0, 0.5), (16, 0.0005)]);
    close(spec.rope.local_inv_freq.as_ref().unwrap(), &[(16, 0.01)]);
    let rope = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}});
    close(&hf(&config("Qwen3ForCausalLM", rope)).unwrap().rope.inv_freq, &[(16, 0.001)]);
}

#[test]
fn sliding_windows() {
    let windows = |class: &str, extra| hf(&config(class, extra)).unwrap().windows;
    let mistral = windows("MistralForCausalLM", json!({"sliding_window": 4096}));
    assert_eq!(mistral, [Some(4096); 12]);
    assert_eq!(windows("MistralForCausalLM", json!({"sliding_window": null})), [None; 12]);
    let unused = json!({"sliding_window": 99, "use_sliding_window": false, "max_window_layers": 3});
    assert_eq!(windows("Qwen2ForCausalLM", unused), [None; 12]);
    let used = json!({"sliding_window": 99, "use_sliding_window": true, "max_window_layers": 3});
    let used = windows("Qwen2ForCausalLM", used);
    assert_eq!((used[2], used[3], used[11]), (None, Some(99), Some(99)));
    let mut types = vec!["full_attention"; 12];
    types[7] = "sliding_attention";
    let listed = windows("Qwen3ForCausalLM", json!({"sliding_window": 9, "layer_types": types}));
    assert_eq!(listed.iter().position(Option::is_some), Some(7));
    let period = windows("Gemma3ForCausalLM", json!({"sliding_window_pattern": 3}));
    assert_eq!(period[..4], [Some(4096), Some(4096), None, Some(4096)]);

    let spec = gguf("llama", |m| m.set("llama.attention.sliding_window", 77u32)).unwrap();
    assert_eq!(spec.windows, [Some(77); 12]);
    let message = hf_error("Qwen3ForCausalLM", json!({"layer_types": ["full_attention"]}));
    assert!(message.contains("number of layer types is 1"), "{message}");
    let message = hf_error("Qwen3ForCausalLM", json!({"layer_types": ["mamba"]}));
    assert!(message.contains("\"mamba\""), "{message}");
}

/// Values computed from the published formulas, independently of this code.
#[test]
fn rope_scaling_of_llama3() {
    let spec = hf(&config(
        "LlamaForCausalLM",
        json!({
            "rope_theta": 500_000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        }),
    ))
    .unwrap();
    let expected = [
        (0, 1.0),
        (1, 0.663_601_22),
        (14, 0.003_211_446_1),
        (15, 0.001_290_548_0),
        (16, 0.000_429_556_71),
        (17, 9.708_286_2e-5),
        (18, 1.946_163_9e-5),
        (31, 9.418_307_2e-8),
    ];
    close(&spec.rope.inv_freq, &expected);
    assert_eq!(spec.rope.magnitude, 1.0);
}

#[test]
fn rope_scaling_of_yarn() {
    let expected = [
        (0, 1.0),
        (20, 0.013_335_214_3),
        (24, 0.005_375_321_5),
        (30, 0.001_064_360_98),
        (35, 0.000_246_258_41),
        (40, 4.445_698_5e-5),
        (63, 3.102_344_4e-7),
    ];
    let from_hf = hf(&config("Qwen2ForCausalLM", json!({
        "rope_theta": 1e6, "head_dim": 128,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    })))
    .unwrap();
    let from_gguf = gguf("qwen2", |m| {
        m.set("qwen2.attention.key_length", 128u32);
        m.set("qwen2.rope.freq_base", 1e6f32);
        m.set("qwen2.rope.scaling.type", "yarn");
        m.set("qwen2.rope.scaling.factor", 4.0f32);
        m.set("qwen2.rope.scaling.original_context_length", 32768u32);
    })
    .unwrap();
    assert_eq!(from_gguf.rope, from_hf.rope);
    close(&from_hf.rope.inv_freq, &expected);
    assert!((from_hf.rope.magnitude - 1.138_629_4).abs() < 1e-6);
}

#[test]
fn rope_scaling_of_gguf_files() {
    let linear = gguf("llama", |m| {
        m.set("llama.rope.scaling.type", "linear");
        m.set("llama.rope.scaling.factor", 4.0f32);
    });
    assert_eq!(linear.unwrap().rope.inv_freq[0], 0.25);
    let old = gguf("llama", |m| m.set("llama.rope.scale_linear", 2.0f32)).unwrap();
    assert_eq!(old.rope.inv_freq[0], 0.5);
    let error = gguf("llama", |m| m.set("llama.rope.scaling.type", "longrope")).unwrap_err();
    assert_eq!(error.to_string(), "rope scaling of the type \"longrope\" is not supported");
}

#[test]
fn unsupported_configurations_say_what_is_wrong() {
    let cases = [
        (json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), "\"dynamic\" is not"),
        (json!({"rope_scaling": {"type": "linear"}}), "no metadata key \"rope_scaling.factor\""),
        (json!({"hidden_act": "relu2"}), "the activation \"relu2\" is not supported"),
        (json!({"quantization_config": {"quant_method": "gptq"}}), "a quantised safetensors"),
        (json!({"hidden_size": "big"}), "config.json is not valid"),
        (json!({"hidden_size": -1}), "config.json is not valid"),
        (json!({"num_attention_heads": 0}), "the number of heads is 0"),
        (json!({"num_key_value_heads": 3}), "a divisor of the 8 heads"),
        (json!({"num_key_value_heads": 0}), "the number of key-value heads is 0"),
        (json!({"num_hidden_layers": 0}), "the number of layers is 0"),
        (json!({"num_hidden_layers": 4_000_000_000u64}), "between 1 and 1024"),
        (json!({"head_dim": 63}), "the head size is 63; it must be even"),
        (json!({"head_dim": 1024}), "between 1 and 512"),
        (json!({"vocab_size": 1u64 << 40}), "the vocabulary size"),
        (json!({"intermediate_size": u64::MAX}), "the feed-forward width"),
        (json!({"max_position_embeddings": 0}), "the context length is 0"),
        (json!({"rms_norm_eps": 0.0}), "the norm's epsilon is 0"),
        (json!({"partial_rotary_factor": 3.0}), "the number of rotated dimensions is 192"),
        (json!({"rope_theta": 0.0}), "a rope frequency"),
        (json!({"final_logit_softcapping": -1.0}), "the logit soft cap"),
    ];
    for (extra, part) in cases {
        let message = hf_error("LlamaForCausalLM", extra);
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    let message = spec_from_config(b"{").unwrap_err().to_string();
    assert!(message.starts_with("config.json is not valid"), "{message}");
}

#[test]
fn bad_gguf_figures_say_what_is_wrong() {
    type Change = fn(&mut Metadata);
    let cases: [(Change, &str); 7] = [
        (|m| m.set("llama.block_count", u32::MAX), "the number of layers is 4294967295"),
        (|m| m.set("llama.block_count", "12"), "\"llama.block_count\" should be"),
        (|m| m.set("llama.attention.head_count", 0u32), "the number of heads is 0"),
        (|m| m.set("llama.attention.head_count_kv", vec![1u32, 2]), "is an array of 2 integers"),
        (|m| m.set("llama.attention.value_length", 8u32), "differ in size"),
        (|m| m.set("llama.rope.dimension_count", u32::MAX), "the number of rotated dimensions"),
        (|m| m.set("llama.rope.freq_base", f32::NAN), "a rope frequency is NaN"),
    ];
    for (change, part) in cases {
        let spec = gguf("llama", |m| {
            m.set("llama.attention.key_length", 64u32);
            change(m);
        });
        let message = spec.unwrap_err().to_string();
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    let error = spec_from_gguf(&with_tensor(Metadata::default(), "t", &[4])).unwrap_err();
    assert!(error.to_string().contains("no metadata key \"general.architecture\""), "{error}");
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "llama");
    let error = spec_from_gguf(&with_tensor(metadata, "t", &[4])).unwrap_err();
    assert!(matches!(error, ModelError::MissingTensor(name) if name == "token_embd.weight"));
}
