use paceline_cpu::quant::dequantize_row;

use super::*;
use crate::checkpoint::{Checkpoint, Format};
use crate::gguf::Gguf;
use crate::spec::{ModelSpec, RopeStyle};
use crate::tensor::LayerRole;

fn values(checkpoint: &Checkpoint, role: Role) -> Vec<f32> {
    let view = checkpoint.tensor(role).unwrap();
    let mut values = vec![f32::NAN; view.rows * view.cols];
    dequantize_row(view.ty, view.data, &mut values);
    values
}

/// The rows of Q or K (or the entries of a bias) as rope pairs: `(first half, second half)` of
/// each head, whatever the order they are stored in.
fn in_pairs(spec: &ModelSpec, values: &[f32], n_rows: usize) -> Vec<Vec<f32>> {
    let width = values.len() / n_rows;
    let half = spec.head_dim / 2;
    let row = |r: usize| values[r * width..][..width].to_vec();
    let place = |head: usize, i: usize, second: usize| match spec.rope.style {
        RopeStyle::Neox => head * spec.head_dim + second * half + i,
        RopeStyle::Interleaved => head * spec.head_dim + 2 * i + second,
    };
    (0..n_rows / spec.head_dim)
        .flat_map(|head| (0..half).map(move |i| (head, i)))
        .flat_map(|(head, i)| [row(place(head, i, 0)), row(place(head, i, 1))])
        .collect()
}

fn assert_same_weights(gguf: &Checkpoint, hf: &Checkpoint, slot: &Slot) {
    let (ours, theirs) = (values(gguf, slot.role), values(hf, slot.role));
    match slot.role {
        Role::Layer(_, LayerRole::Q | LayerRole::K | LayerRole::QBias | LayerRole::KBias) => {
            let n = slot.rows.max(if slot.rows == 1 { slot.cols } else { 0 });
            let (ours, theirs) = (in_pairs(gguf.spec(), &ours, n), in_pairs(hf.spec(), &theirs, n));
            assert_eq!(ours, theirs, "{:?}", slot.role);
        }
        role if arch::gguf_name(role).ends_with("norm.weight") => {
            let theirs: Vec<f32> = theirs.iter().map(|v| v + hf.norm_offset()).collect();
            assert_eq!(ours, theirs, "{role:?}");
        }
        role => assert_eq!(ours, theirs, "{role:?}"),
    }
}

#[test]
fn both_formats_hold_the_same_model() {
    for name in SynthSpec::architectures() {
        for (ty, tied) in [(TensorType::F32, true), (TensorType::BF16, false)] {
            let synth = SynthSpec { ty, tied, ..SynthSpec::tiny(name) };
            let dir = tempfile::tempdir().unwrap();
            write_hf(&synth, dir.path()).unwrap();
            let hf = Checkpoint::open(dir.path()).unwrap();
            let gguf = Checkpoint::from_gguf(Gguf::parse(gguf_bytes(&synth).unwrap()).unwrap());
            let gguf = gguf.unwrap();
            assert_eq!((gguf.format(), hf.format()), (Format::Gguf, Format::Safetensors));
            assert_eq!(hf.dir(), Some(dir.path()));
            assert!(gguf.gguf().is_some() && hf.gguf().is_none());

            let mut spec = gguf.spec().clone();
            spec.name = None;
            spec.rope.style = hf.spec().rope.style;
            assert_eq!(&spec, hf.spec(), "{name}");
            assert_eq!(gguf.tensor(Role::Output).is_none(), tied);
            let slots = Model::new(&synth).unwrap().slots;
            assert_eq!(gguf.tensors().count(), slots.len());
            assert_eq!(hf.tensors().count(), slots.len());
            slots.iter().for_each(|slot| assert_same_weights(&gguf, &hf, slot));
        }
    }
}

#[test]
fn every_type_makes_a_model_that_opens() {
    for ty in TensorType::ALL {
        let synth = SynthSpec { ty, ..SynthSpec::tiny("qwen2") };
        let gguf = Gguf::parse(gguf_bytes(&synth).unwrap()).unwrap();
        let model = Checkpoint::from_gguf(gguf).unwrap();
        assert_eq!(model.tensor(Role::TokenEmbed).unwrap().ty, ty);
        let down = values(&model, Role::Layer(1, LayerRole::Down));
        assert!(down.iter().all(|v| v.is_finite()), "{ty}");
        let bias = model.tensor(Role::Layer(0, LayerRole::QBias)).unwrap();
        assert_eq!((bias.ty, bias.rows, bias.cols), (TensorType::F32, 1, 256));
    }
}

#[test]
fn the_seed_is_all_that_is_random() {
    let bytes = |seed| gguf_bytes(&SynthSpec { seed, ..SynthSpec::tiny("llama") }).unwrap();
    assert!(bytes(3) == bytes(3));
    assert!(bytes(3) != bytes(4));
}

#[test]
fn the_file_is_the_bytes_and_nothing_else_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let synth = SynthSpec { ty: TensorType::Q4_0, ..SynthSpec::tiny("llama") };
    write_gguf(&synth, &path).unwrap();
    assert!(fs::read(&path).unwrap() == gguf_bytes(&synth).unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    // A directory with one GGUF file is that model.
    assert_eq!(Checkpoint::open(dir.path()).unwrap().spec().arch, "llama");

    let error = write_gguf(&synth, &dir.path().join("no/such/dir/m.gguf")).unwrap_err();
    assert!(matches!(error.kind(), ModelError::Io(_)), "{error}");
    fs::create_dir(dir.path().join("taken.gguf")).unwrap();
    assert!(write_gguf(&synth, &dir.path().join("taken.gguf")).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn the_vocabulary_spells_every_byte() {
    let bytes = gguf_bytes(&SynthSpec::tiny("llama")).unwrap();
    let gguf = Gguf::parse(bytes).unwrap();
    let tokens: &[String] = gguf.metadata().required("tokenizer.ggml.tokens").unwrap();
    let unique: std::collections::HashSet<_> = tokens.iter().collect();
    assert_eq!((tokens.len(), unique.len()), (320, 320));
    assert_eq!(tokens[3..259].iter().filter(|token| token.chars().count() == 1).count(), 256);
    let merges: &[String] = gguf.metadata().required("tokenizer.ggml.merges").unwrap();
    for merge in merges {
        let (left, right) = merge.split_once(' ').unwrap();
        for part in [left, right, &format!("{left}{right}")] {
            assert!(tokens.iter().any(|token| token == part), "{part}");
        }
    }
}

#[test]
fn impossible_models_are_refused() {
    let tiny = SynthSpec::tiny;
    let cases = [
        (SynthSpec { n_vocab: 100, ..tiny("llama") }, "at least 271"),
        (SynthSpec { arch: "bert".to_owned(), ..tiny("llama") }, "\"bert\" is not supported"),
        (SynthSpec { n_kv_heads: 3, ..tiny("llama") }, "a divisor of the 4 heads"),
        (SynthSpec { window: Some(4), ..tiny("qwen3") }, "a sliding window in a synthetic qwen3"),
        (SynthSpec { d_model: 160, ty: TensorType::Q4K, ..tiny("llama") }, "whole blocks of Q4_K"),
    ];
    for (synth, part) in cases {
        let message = gguf_bytes(&synth).unwrap_err().to_string();
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let quantised = SynthSpec { ty: TensorType::Q8_0, ..tiny("llama") };
    let message = write_hf(&quantised, dir.path()).unwrap_err().to_string();
    assert!(message.contains("Q8_0 in a safetensors file"), "{message}");
}

#[test]
fn known_shapes_have_as_many_parameters_as_their_names_say() {
    let millions = |name: &str| {
        let synth = SynthSpec::like(name).unwrap();
        let slots = Model::new(&synth).unwrap().slots;
        slots.iter().map(|slot| slot.rows * slot.cols).sum::<usize>() / 1_000_000
    };
    let expected = [
        ("smollm2-135m", 134),
        ("smollm2-360m", 361),
        ("smollm2-1.7b", 1711),
        ("tinyllama-1.1b", 1100),
        ("llama-3.2-1b", 1235),
        ("llama-3-8b", 8030),
        ("mistral-7b", 7241),
        ("qwen2.5-0.5b", 494),
        ("qwen2.5-1.5b", 1543),
        ("qwen2.5-7b", 7615),
        ("qwen3-0.6b", 596),
        ("qwen3-8b", 8190),
        ("gemma-2-2b", 2614),
        ("gemma-3-1b", 999),
    ];
    assert_eq!(SynthSpec::known_names().collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, n_millions) in expected {
        assert_eq!(millions(name), n_millions, "{name}");
    }
    assert!(SynthSpec::like("TinyLlama-1.1B").is_some() && SynthSpec::like("gpt").is_none());
}

#[test]
fn a_watcher_sees_all_bytes_and_can_end_the_writing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let synth = SynthSpec::tiny("llama");
    let mut seen = Vec::new();
    let mut watch = |written: Written| -> io::Result<()> {
        seen.push(written);
        Ok(())
    };
    write_gguf_watched(&synth, &path, &mut watch).unwrap();
    let last = *seen.last().unwrap();
    assert_eq!(last.bytes, last.total);
    assert!(seen.windows(2).all(|pair| pair[0].bytes <= pair[1].bytes));
    assert!(last.total < fs::metadata(&path).unwrap().len());

    fs::remove_file(&path).unwrap();
    let mut n_ends = 0;
    let mut watch = |written: Written| match written.bytes * 2 < written.total {
        true => Ok(()),
        false => {
            n_ends += 1;
            assert_eq!(n_ends, 1, "the writing goes on after its end");
            Err(io::ErrorKind::Interrupted.into())
        }
    };
    assert!(write_gguf_watched(&synth, &path, &mut watch).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
