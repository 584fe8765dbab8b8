//! Memory that starts on a cache line, since a vector load that straddles two lines costs two; and,
//! where there is much of it, on large pages: keys and values are read in pieces that lie far
//! apart, and looking up each piece's page takes as long as reading it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a cache line, and of the widest register.
pub(crate) const LINE: usize = 64;

/// Bytes of a large page.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Numbers for which all-zero bits are a value, and which need no dropping.
pub trait Plain: Copy {}

impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for f32 {}

/// A fixed number of elements, zero at first, on cache lines of their own. Pages nobody has written
/// to take no memory.
pub struct Aligned<T> {
    /// What was allocated, and within it the first element.
    block: NonNull<u8>,
    layout: Layout,
    start: NonNull<T>,
    len: usize,
}

impl<T: Plain> Aligned<T> {
    /// `len` zeros.
    pub fn zeros(len: usize) -> Self {
        let size = len.checked_mul(size_of::<T>()).expect("fits the address space");
        let align = if size >= 2 * LARGE_PAGE { LARGE_PAGE } else { LINE };
        // Room to move the start: asking the allocator for the alignment would make it write the
        // zeros instead of taking fresh pages.
        let layout = Layout::array::<u64>((size + align).div_ceil(8)).expect("as above");
        // SAFETY: the layout is not empty; the start moves by less than `align`.
        unsafe {
            let block = NonNull::new(alloc_zeroed(layout));
            let block = block.unwrap_or_else(|| handle_alloc_error(layout));
            let start = block.add(block.align_offset(align));
            if align == LARGE_PAGE {
                ask_for_large_pages(start.as_ptr(), size);
            }
            Self { block, layout, start: start.cast(), len }
        }
    }
}

/// Makes the system give the memory of `slice` now and not when it is first written to.
pub(crate) fn back<T: Plain>(slice: &mut [T]) {
    const SMALLEST_PAGE: usize = 4096;
    let bytes = slice.as_mut_ptr_range();
    let mut at = bytes.start.cast::<u8>();
    while at < bytes.end.cast() {
        // SAFETY: within the slice, and nobody else's while it is borrowed. It is written to
        // without being changed.
        unsafe { AtomicU8::from_ptr(at).fetch_or(0, Ordering::Relaxed) };
        at = at.wrapping_add(SMALLEST_PAGE);
    }
}

impl<T> Drop for Aligned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and elements need no dropping.
        unsafe { dealloc(self.block.as_ptr(), self.layout) };
    }
}

// SAFETY: owns its memory like a boxed slice of numbers.
unsafe impl<T: Send> Send for Aligned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Aligned<T> {}

impl<T: Plain> std::ops::Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory holds at least `len` elements, initialised, and any bits are a `T`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> std::ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> std::fmt::Debug for Aligned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aligned({} elements)", self.len)
    }
}

/// `madvise(start, size, MADV_HUGEPAGE)`; a system that has none to give says so, and nothing is
/// lost.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn ask_for_large_pages(start: *mut u8, size: usize) {
    const MADVISE: i64 = 28;
    const MADV_HUGEPAGE: i64 = 14;
    // SAFETY: a hint about memory that is ours; no contents change.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") MADVISE => _,
            in("rdi") start,
            in("rsi") size,
            in("rdx") MADV_HUGEPAGE,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn ask_for_large_pages(_start: *mut u8, _size: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_backed_keeps_what_it_holds() {
        let mut numbers = Aligned::<f32>::zeros(3 * LARGE_PAGE / 4 + 5);
        numbers.iter_mut().step_by(700).enumerate().for_each(|(i, x)| *x = i as f32);
        let n = numbers.len();
        for range in [0..n, 0..0, n..n, 1..2, 1023..n - 1] {
            back(&mut numbers[range]);
        }
        for (i, &x) in numbers.iter().enumerate() {
            let expected = if i % 700 == 0 { (i / 700) as f32 } else { 0.0 };
            assert_eq!(x, expected, "element {i}");
        }
    }
}
