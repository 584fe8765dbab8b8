//! Opening checkpoints: what is there, what is missing, what does not belong.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::Path;

use paceline_cpu::quant::TensorType;
use paceline_model::gguf::{Gguf, GgufWriter};
use paceline_model::synth::{self, SynthSpec};
use paceline_model::tensor::{LayerRole, Role};
use paceline_model::{Checkpoint, ModelError};
use serde_json::{Value, json};

fn tiny() -> SynthSpec {
    SynthSpec {
        d_model: 64,
        d_ff: 96,
        head_dim: 16,
        tied: false,
        ..SynthSpec::tiny("llama")
    }
}

/// The tiny model's GGUF file with its tensor table changed: a closure gives each tensor's new
/// name and dimensions, or drops it.
fn changed(change: impl Fn(&str, &[usize]) -> Option<(String, Vec<usize>)>) -> Gguf {
    let original = Gguf::parse(synth::gguf_bytes(&tiny()).unwrap()).unwrap();
    let mut writer = GgufWriter::new(original.metadata().clone());
    for tensor in original.tensors() {
        if let Some((name, dims)) = change(&tensor.name, &tensor.dims) {
            writer.add_tensor(name, tensor.ty, &dims).unwrap();
        }
    }
    let mut bytes = Vec::new();
    writer
        .write_to(&mut bytes, |head, out| {
            out.write_all(&vec![0; head.n_bytes])
        })
        .unwrap();
    Gguf::parse(bytes).unwrap()
}

fn same(name: &str, dims: &[usize]) -> Option<(String, Vec<usize>)> {
    Some((name.to_owned(), dims.to_vec()))
}

#[test]
fn every_required_tensor_is_missed_by_name() {
    let names: Vec<String> = {
        let gguf = Gguf::parse(synth::gguf_bytes(&tiny()).unwrap()).unwrap();
        gguf.tensors()
            .iter()
            .map(|tensor| tensor.name.clone())
            .collect()
    };
    assert_eq!(names.len(), 3 + 2 * 9);
    for missing in &names {
        let result = Checkpoint::from_gguf(changed(|name, dims| {
            if name == missing {
                None
            } else {
                same(name, dims)
            }
        }));
        if missing == "output.weight" {
            // Without a head, the embedding is the head.
            assert!(result.unwrap().tensor(Role::Output).is_none());
            continue;
        }
        match result.unwrap_err() {
            ModelError::MissingTensor(name) => assert_eq!(&name, missing),
            other => panic!("{missing}: {other}"),
        }
    }
}

#[test]
fn wrong_shapes_name_the_tensor_and_both_shapes() {
    let gguf = changed(|name, dims| match name {
        "blk.1.attn_k.weight" => Some((name.to_owned(), vec![dims[0], dims[1] * 2])),
        _ => same(name, dims),
    });
    let message = Checkpoint::from_gguf(gguf).unwrap_err().to_string();
    assert_eq!(
        message,
        "tensor \"blk.1.attn_k.weight\" is 64 x 64; it must be 32 x 64"
    );
    let gguf = changed(|name, dims| match name {
        "output_norm.weight" => Some((name.to_owned(), vec![dims[0] - 1])),
        _ => same(name, dims),
    });
    let error = Checkpoint::from_gguf(gguf).unwrap_err();
    assert!(
        matches!(
            error,
            ModelError::WrongShape {
                found_cols: 63,
                cols: 64,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn tensors_nobody_computes_are_refused() {
    let gguf = changed(|name, dims| match name {
        "blk.0.ffn_gate.weight" => same("blk.0.ffn_gate_inp.weight", dims),
        _ => same(name, dims),
    });
    let message = Checkpoint::from_gguf(gguf).unwrap_err().to_string();
    assert!(
        message.contains("\"blk.0.ffn_gate_inp.weight\" has no place"),
        "{message}"
    );
}

/// A tiny Hugging Face directory, damaged by a closure, and what opening it says.
fn damaged_hf(damage: impl Fn(&Path)) -> Result<Checkpoint, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    synth::write_hf(&tiny(), dir.path()).unwrap();
    damage(dir.path());
    Checkpoint::open(dir.path())
}

fn edit_json(path: &Path, edit: impl Fn(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn damaged_directories_say_what_is_wrong() {
    type Damage = fn(&Path);
    let cases: [(Damage, &str); 8] = [
        (
            |dir| fs::remove_file(dir.join("config.json")).unwrap(),
            "this directory holds no model",
        ),
        (
            |dir| fs::remove_file(dir.join("model.safetensors")).unwrap(),
            "holds no model",
        ),
        (
            |dir| fs::write(dir.join("config.json"), "[]").unwrap(),
            "config.json",
        ),
        (
            |dir| fs::write(dir.join("config.json"), vec![b' '; 5 << 20]).unwrap(),
            "5242880 bytes",
        ),
        (
            |dir| fs::write(dir.join("model.safetensors"), "x").unwrap(),
            "the header's length",
        ),
        (
            |dir| {
                edit_json(&dir.join("config.json"), |c| {
                    c["num_hidden_layers"] = json!(3)
                })
            },
            "no tensor \"model.layers.2.input_layernorm.weight\"",
        ),
        (
            |dir| {
                edit_json(&dir.join("config.json"), |c| {
                    c["num_hidden_layers"] = json!(1)
                })
            },
            "has no place in the architecture \"llama\"",
        ),
        (
            |dir| {
                edit_json(&dir.join("config.json"), |c| {
                    c["intermediate_size"] = json!(97)
                })
            },
            "is 96 x 64; it must be 97 x 64",
        ),
    ];
    for (damage, part) in cases {
        let message = damaged_hf(damage).unwrap_err().to_string();
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.gguf", "a.gguf"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("(a.gguf, b.gguf)"), "{message}");
}

#[test]
fn the_configuration_decides_about_a_tied_head() {
    let tie = |tied: Value| {
        damaged_hf(move |dir| {
            edit_json(&dir.join("config.json"), |c| {
                c["tie_word_embeddings"] = tied.clone()
            });
        })
    };
    assert!(tie(json!(false)).unwrap().tensor(Role::Output).is_some());
    assert!(tie(json!(null)).unwrap().tensor(Role::Output).is_some());
    assert!(tie(json!(true)).unwrap().tensor(Role::Output).is_none());
}

/// Splits the tiny model's one file into two shards with an index.
fn shard(dir: &Path) {
    let whole = fs::read(dir.join("model.safetensors")).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let mut weight_map = serde_json::Map::new();
    for (i, shard) in ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]
        .iter()
        .enumerate()
    {
        let tensors: Vec<_> = parsed
            .iter()
            .filter(|(name, _)| name.contains("layers.1") == (i == 1))
            .collect();
        weight_map.extend(
            tensors
                .iter()
                .map(|(name, _)| ((*name).to_owned(), json!(shard))),
        );
        let bytes = safetensors::serialize(tensors, None).unwrap();
        fs::write(dir.join(shard), bytes).unwrap();
    }
    let index = json!({"metadata": {}, "weight_map": weight_map}).to_string();
    fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
    fs::remove_file(dir.join("model.safetensors")).unwrap();
}

#[test]
fn shards_make_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    synth::write_hf(&tiny(), dir.path()).unwrap();
    let whole = Checkpoint::open(&dir.path().join("model.safetensors")).unwrap();
    let sharded = damaged_hf(shard).unwrap();
    assert_eq!(whole.spec(), sharded.spec());
    assert_eq!(whole.tensors().count(), sharded.tensors().count());
    let role = Role::Layer(1, LayerRole::Up);
    assert_eq!(
        whole.tensor(role).unwrap().data,
        sharded.tensor(role).unwrap().data
    );
    assert_eq!(whole.tensor(role).unwrap().ty, TensorType::F32);
}

#[test]
fn bad_indexes_say_what_is_wrong() {
    type Edit = fn(&mut Value);
    const NAME: &str = "model.norm.weight";
    let with_index = |edit: Edit| {
        damaged_hf(|dir| {
            shard(dir);
            edit_json(&dir.join("model.safetensors.index.json"), edit);
        })
    };
    let cases: [(Edit, &str); 7] = [
        (
            |i| i["weight_map"][NAME] = json!("../model.safetensors"),
            "not a plain .safetensors",
        ),
        (
            |i| i["weight_map"][NAME] = json!("/etc/x.safetensors"),
            "not a plain .safetensors",
        ),
        (
            |i| i["weight_map"][NAME] = json!("pytorch_model.bin"),
            "not a plain .safetensors",
        ),
        (
            |i| i["weight_map"][NAME] = json!("gone.safetensors"),
            "gone.safetensors: it cannot be",
        ),
        (
            |i| i["weight_map"][NAME] = json!(7),
            "the shard index is not valid",
        ),
        (
            |i| i["weight_map"][NAME] = json!("model-2-of-2.safetensors"),
            "but it is not there",
        ),
        (|i| *i = json!([]), "the shard index is not valid"),
    ];
    for (edit, part) in cases {
        let message = with_index(edit).unwrap_err().to_string();
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

/// The tiny model's file with a table of rope divisors, all of them 4.
fn with_rope_divisors(n: usize, ty: TensorType) -> Result<Checkpoint, ModelError> {
    let original = Gguf::parse(synth::gguf_bytes(&tiny()).unwrap()).unwrap();
    let mut writer = GgufWriter::new(original.metadata().clone());
    for tensor in original.tensors() {
        writer
            .add_tensor(&tensor.name, tensor.ty, &tensor.dims)
            .unwrap();
    }
    writer.add_tensor("rope_freqs.weight", ty, &[n]).unwrap();
    let mut bytes = Vec::new();
    let fill = |name: &str, n_bytes: usize| match original.tensor(name) {
        Some(view) => view.data.to_vec(),
        None => 4f32.to_le_bytes().repeat(n_bytes / 4),
    };
    writer
        .write_to(&mut bytes, |head, out| {
            out.write_all(&fill(&head.name, head.n_bytes))
        })
        .unwrap();
    Checkpoint::from_gguf(Gguf::parse(bytes)?)
}

#[test]
fn rope_divisors_divide() {
    let plain = Checkpoint::from_gguf(changed(same)).unwrap();
    let divided = with_rope_divisors(8, TensorType::F32).unwrap();
    let expected: Vec<f32> = plain.spec().rope.inv_freq.iter().map(|f| f / 4.0).collect();
    assert_eq!(divided.spec().rope.inv_freq, expected);
    let message = with_rope_divisors(7, TensorType::F32)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("rope divisors is 7; it must be 8"),
        "{message}"
    );
    let message = with_rope_divisors(8, TensorType::F16)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("as a F16 of 1 rows is not supported"),
        "{message}"
    );
}
