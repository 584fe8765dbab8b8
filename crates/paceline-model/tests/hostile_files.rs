//! Seeded random damage to model files: whatever it does, reading ends in a model or an error,
//! and takes memory in proportion to the file, not to what the file claims.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use paceline_cpu::quant::{Rng, TensorType};
use paceline_model::gguf::{Array, Gguf, GgufWriter, Metadata};
use paceline_model::safetensors::Safetensors;
use paceline_model::synth::{self, SynthSpec};
use paceline_model::{Checkpoint, ModelError};

const N_MUTATIONS: u64 = 20_000;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting each thread's bytes.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get() + layout.size());
        PEAK.set(PEAK.get().max(LIVE.get()));
        // SAFETY: the caller's layout, as the trait demands of it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().saturating_sub(layout.size()));
        // SAFETY: the caller's pointer and layout, which `alloc` above got from the system.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `read` and returns with its result the memory it used at most.
fn peak_bytes<T>(read: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = read();
    (result, PEAK.get() - before)
}

/// Values that counts, lengths and offsets tend to break on.
const NASTY: [u64; 8] =
    [0, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 32, u64::MAX / 4, i64::MAX as u64, u64::MAX];

/// Damages a few places among the first `head` bytes.
fn mutate(bytes: &mut Vec<u8>, head: usize, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        let head = head.min(bytes.len());
        if head == 0 {
            return;
        }
        let at = rng.below(head);
        match rng.below(7) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next_u64() as u8,
            2 => overwrite(bytes, at, &NASTY[rng.below(NASTY.len())].to_le_bytes()),
            3 => overwrite(bytes, at, &(rng.below(64) as u32).to_le_bytes()),
            4 => bytes[at] = b"0123456789\"{}[],:-"[rng.below(18)],
            5 if rng.below(8) == 0 => bytes.truncate(at),
            _ => {
                let from = rng.below(head);
                let piece = bytes[from..head.min(from + 16)].to_vec();
                overwrite(bytes, at, &piece);
            }
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let len = with.len().min(bytes.len() - at);
    bytes[at..at + len].copy_from_slice(&with[..len]);
}

/// Reads many damaged copies of a file and checks each reading's memory.
fn fuzz<T>(file: &[u8], head: usize, read: impl Fn(Vec<u8>) -> Result<T, ModelError>) {
    let mut survivors = 0;
    for seed in 0..N_MUTATIONS {
        let mut bytes = file.to_vec();
        mutate(&mut bytes, head, &mut Rng::new(seed));
        let bound = 64 * bytes.len() + 16_384;
        let (result, used) = peak_bytes(|| read(bytes));
        assert!(used <= bound, "seed {seed}: {used} bytes for a file of {}", file.len());
        survivors += u64::from(result.is_ok());
    }
    // Damage to numbers and strings may go unnoticed, damage to the structure may not: a run that
    // is all one or the other would test nothing.
    let expected = 20..N_MUTATIONS * 9 / 10;
    assert!(expected.contains(&survivors), "{survivors} survive");
}

/// A file with every kind of value and little else.
fn small_gguf() -> Vec<u8> {
    let mut metadata = Metadata::default();
    metadata.set("general.alignment", 32u32);
    metadata.set("a.strings", vec!["one".to_owned(), "two".to_owned()]);
    metadata.set("a.numbers", vec![1u32, 2, 3]);
    metadata.set("a.bools", vec![true, false]);
    metadata.set("a.nested", Array::Array(vec![Array::F32(vec![1.0]), Array::U8(vec![1, 2])]));
    let mut writer = GgufWriter::new(metadata);
    writer.add_tensor("vector", TensorType::F32, &[5]).unwrap();
    writer.add_tensor("matrix", TensorType::Q4K, &[256, 2]).unwrap();
    writer.add_tensor("cube", TensorType::F16, &[4, 2, 2]).unwrap();
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes, |head, out| out.write_all(&vec![7; head.n_bytes])).unwrap();
    bytes
}

#[test]
fn damaged_gguf_files_are_read_or_refused() {
    let file = small_gguf();
    let head = file.len() - 400;
    fuzz(&file, head, |bytes| {
        let gguf = Gguf::parse(bytes)?;
        for tensor in gguf.tensors() {
            let view = gguf.view(tensor);
            assert_eq!(Some(view.data.len() / view.rows), view.ty.row_bytes(view.cols));
        }
        Ok(gguf)
    });
}

#[test]
fn damaged_models_are_opened_or_refused() {
    let tiny = SynthSpec { d_model: 32, d_ff: 32, head_dim: 8, ..SynthSpec::tiny("gemma3") };
    let file = synth::gguf_bytes(&tiny).unwrap();
    // The figures of the model stand between the general keys and the vocabulary.
    let vocab = file.windows(14).position(|w| w == b"tokenizer.chat").unwrap();
    fuzz(&file[..], vocab, |bytes| Checkpoint::from_gguf(Gguf::parse(bytes)?));
}

#[test]
fn damaged_safetensors_headers_are_read_or_refused() {
    let header = concat!(
        r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
        r#""b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}"#
    )
    .as_bytes();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend([1; 32]);
    fuzz(&file, 8 + header.len(), |bytes| {
        let tensors = Safetensors::parse(bytes)?;
        for view in tensors.tensors() {
            assert_eq!(Some(view.data.len() / view.rows), view.ty.row_bytes(view.cols));
        }
        Ok(tensors)
    });
}
