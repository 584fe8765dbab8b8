//! Where a layer's keys and values are.

use std::ops::Range;
use std::sync::Arc;

use crate::aligned::{Aligned, LARGE_PAGE, back};
use crate::kernels::kv::{KV_BLOCK, KvDtype};

/// One layer's pages: `[block][kv_head]` of `[head_dim][32]` keys and of `[32][head_dim]` values,
/// each page followed by its tokens' scales where the element type has them.
#[derive(Debug)]
pub struct KvLayer {
    pub(super) dtype: KvDtype,
    pub(super) keys: *mut u8,
    pub(super) values: *mut u8,
    /// Of each of the two.
    n_bytes: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    /// What the pointers point into; freed with the last handle.
    memory: Arc<[Aligned<u8>; 2]>,
}

// SAFETY: a handle is the only one that touches its memory, or `again`'s caller sees to it that
// several do not touch the same blocks.
unsafe impl Send for KvLayer {}
// SAFETY: behind a shared reference nothing but sizes is read.
unsafe impl Sync for KvLayer {}

impl KvLayer {
    /// What [`back`](Self::back) takes at a time.
    pub const PART_BYTES: usize = 2 * LARGE_PAGE;

    /// Memory is taken as it is first written, so a large pool costs what is used of it.
    pub fn new(dtype: KvDtype, n_blocks: usize, n_kv_heads: usize, head_dim: usize) -> KvLayer {
        let n_bytes = n_blocks * n_kv_heads * dtype.page_bytes(head_dim);
        let mut memory = [Aligned::zeros(n_bytes), Aligned::zeros(n_bytes)];
        let [keys, values] = memory.each_mut().map(|pool| pool.as_mut_ptr());
        let memory = Arc::new(memory);
        KvLayer { dtype, keys, values, n_bytes, n_kv_heads, head_dim, memory }
    }

    /// The same memory once more, so that several [`Cpu`](super::Cpu)s can work on it at once.
    ///
    /// # Safety
    /// While one handle is being used, no other may be used in a way that writes a block which the
    /// first reads or writes.
    pub unsafe fn again(&self) -> KvLayer {
        KvLayer { memory: Arc::clone(&self.memory), ..*self }
    }

    pub fn n_slots(&self) -> usize {
        self.n_bytes / self.block_bytes() * KV_BLOCK
    }

    /// Bytes of a block's keys, or of its values.
    fn block_bytes(&self) -> usize {
        self.n_kv_heads * self.dtype.page_bytes(self.head_dim)
    }

    /// Takes the memory of a large page's worth of keys, and of values, before it is written to.
    /// False: there is no such part.
    pub fn back(&mut self, part: usize) -> bool {
        let start = part * LARGE_PAGE;
        let range = start.min(self.n_bytes)..self.n_bytes.min(start + LARGE_PAGE);
        for pool in [self.keys, self.values] {
            // SAFETY: within the pool, which is ours while we are borrowed.
            back(unsafe { slice_of(pool, range.clone()) });
        }
        !range.is_empty()
    }

    /// Bytes of keys and values.
    pub fn n_bytes(&self) -> usize {
        2 * self.n_bytes
    }

    /// Copies the first `n_tokens` slots of block `from` to block `to`.
    pub fn copy(&mut self, from: usize, to: usize, n_tokens: usize) {
        assert!(n_tokens <= KV_BLOCK && from.max(to) < self.n_slots() / KV_BLOCK);
        // Keys hold tokens side by side, and scales follow: whole pages are simplest. Slots past
        // `n_tokens` are not read before they are written.
        let n = self.block_bytes();
        for pool in [self.keys, self.values] {
            // SAFETY: both blocks are within the pool, which is ours while we are borrowed.
            unsafe { std::ptr::copy(pool.add(from * n), pool.add(to * n), n) };
        }
    }
}

/// # Safety
/// The range must lie within what `pool` points to, and be nobody else's for `'a`.
unsafe fn slice_of<'a>(pool: *mut u8, range: Range<usize>) -> &'a mut [u8] {
    // SAFETY: forwarded contract.
    unsafe { std::slice::from_raw_parts_mut(pool.add(range.start), range.len()) }
}
