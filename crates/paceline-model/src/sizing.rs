//! How much of the machine to take when nobody says.

use paceline_cpu::{KV_BLOCK, KvDtype};

use crate::cpu_backend::kv_block_bytes;
use crate::spec::ModelSpec;

/// Most of the memory that is free, and in any case, that a KV pool takes unasked.
const KV_SHARE: u64 = 4;
const KV_BYTES_MAX: u64 = 4 << 30;
/// What is assumed free where the system does not say.
const UNKNOWN_FREE_BYTES: u64 = 4 << 30;

/// One thread for each core.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Blocks for as many whole contexts as may run at once, within a share of the free memory.
pub fn default_kv_blocks(
    spec: &ModelSpec,
    dtype: KvDtype,
    max_num_seqs: u32,
    max_model_len: u32,
) -> u32 {
    let per_sequence = u64::from(max_model_len).div_ceil(KV_BLOCK as u64);
    let wanted = per_sequence.saturating_mul(u64::from(max_num_seqs));
    let bytes = (free_bytes() / KV_SHARE).min(KV_BYTES_MAX);
    let affordable = bytes / kv_block_bytes(spec, dtype) as u64;
    let blocks = wanted.min(affordable).max(1);
    // Slots are numbered in 32 bits.
    blocks.min(u64::from(u32::MAX) / KV_BLOCK as u64 - 1) as u32
}

/// Memory that can be taken without swapping.
pub fn free_bytes() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let machine = kilobytes.map_or(UNKNOWN_FREE_BYTES, |kb| kb * 1024);
    machine.min(cgroup_free_bytes().unwrap_or(u64::MAX))
}

/// What the container's limit leaves, where there is one.
fn cgroup_free_bytes() -> Option<u64> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}
