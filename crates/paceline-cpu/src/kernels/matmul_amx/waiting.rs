//! Sums that wait to be written where they belong.
//!
//! They are written part by part while the products after them run. Neither keeps the processor
//! busy alone: products wait for their operands, and what begins with sums waits for the last
//! product.

use super::Sink;
use super::put::{self, Product, Sums};
use super::residual::residual;

/// Of one panel, or of two; or a gate's, which are of two weights.
pub(super) struct Waiting {
    sums: [Sums; 2],
    products: [Product; 2],
    sink: Sink,
    /// The next part, and how many there are: one for each tile of sums, or for a gate's two.
    next: usize,
    count: usize,
}

impl Waiting {
    /// Nothing waits.
    pub(super) fn none(sink: Sink) -> Waiting {
        let (sums, product) = (Sums::whole(std::ptr::null_mut()), Product::NONE);
        Waiting { sums: [sums; 2], products: [product.clone(), product], sink, next: 0, count: 0 }
    }

    /// The sums of one product, or a gate's.
    #[inline(always)]
    pub(super) fn one(sums: [Sums; 2], product: Product, sink: Sink) -> Waiting {
        let count = product.n_tiles();
        Waiting { sums, products: [product, Product::NONE], sink, next: 0, count }
    }

    /// Those of two panels, which are no gate's.
    #[inline(always)]
    pub(super) fn two(sums: [Sums; 2], products: [Product; 2], sink: Sink) -> Waiting {
        let count = 2 * products[0].n_tiles();
        Waiting { sums, products, sink, next: 0, count }
    }

    /// Writes the next part, if one is left.
    ///
    /// # Safety
    /// The sums hold the products' rows; the sink has room for what they become; the machine has
    /// AVX-512.
    #[inline(always)]
    pub(super) unsafe fn write_some(&mut self) {
        if self.next < self.count {
            // SAFETY: forwarded contract.
            unsafe { self.write_part(self.next) };
            self.next += 1;
        }
    }

    /// Writes all that is left.
    ///
    /// # Safety
    /// As [`write_some`](Self::write_some).
    #[inline(always)]
    pub(super) unsafe fn write(&mut self) {
        while self.next < self.count {
            // SAFETY: forwarded contract.
            unsafe { self.write_some() };
        }
    }

    /// # Safety
    /// As [`write_some`](Self::write_some), for a part that there is.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma,f16c")]
    unsafe fn write_part(&self, part: usize) {
        let n_tiles = self.products[0].n_tiles();
        let (nth, tile) = (part / n_tiles, part % n_tiles);
        // SAFETY: forwarded contract.
        unsafe {
            match self.sink {
                Sink::Rows(to) => put::rows(self.sums[nth], &self.products[nth], tile, to),
                Sink::Tops(to) => put::tops(self.sums[nth], &self.products[nth], tile, to),
                Sink::Residual(to) => residual(self.sums[nth], &self.products[nth], tile, to),
                Sink::Gate(to) => put::gated(self.sums, &self.products[0], tile, to),
            }
        }
    }
}
