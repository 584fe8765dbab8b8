//! Lines that products will write to, asked for while they run.
//!
//! Rows lie far apart, each in a line and often in a page of its own; and what one thread writes,
//! others have read before. Writing would wait for each line, and what is unpacked next would wait
//! for the writing: stores leave the processor in order.

use std::arch::asm;
use std::ops::Range;

use super::put::half_tile;
use super::residual::ResidualSink;
use super::{SUMS, Sink, TILE};
use crate::acts::{ActViewMut, TILE_ROWS};
use crate::aligned::LINE;
use crate::lanes::WIDTH;

/// What a panel's sums will be written to.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    /// A line for each row (and its neighbour, for a second panel), or half a tile of activations.
    results: Run,
    /// A panel of the residual stream, and its squares.
    stream: Run,
    squares: Run,
    /// The most lines that one of these has for a tile.
    most: usize,
}

/// Some lines for each tile of rows.
#[derive(Clone, Copy)]
struct Run {
    at: *const u8,
    step: usize,
    tile_step: usize,
    /// From a panel's to the next one's; 0: they have none of their own.
    panel_step: usize,
    count: usize,
}

impl Lines {
    pub(super) fn of(sink: Sink, panel: usize, rows: Range<usize>) -> Lines {
        let none = Run::NONE;
        let mut lines = Lines { results: none, stream: none, squares: none, most: 0 };
        let (row, tile) = (rows.start, rows.start / TILE_ROWS);
        match sink {
            Sink::Rows(out) => {
                let at = out.data.wrapping_add(row * out.stride + panel * WIDTH);
                let step = out.stride * size_of::<f32>();
                lines.results = Run {
                    at: at.cast_const().cast(),
                    step,
                    tile_step: TILE_ROWS * step,
                    panel_step: LINE,
                    count: TILE_ROWS.min(rows.len()),
                };
            }
            Sink::Gate(to) => lines.results = Run::of_half_tile(to.acts, panel, row),
            Sink::Residual(ResidualSink { tiles, n_panels, next }) => {
                let place = tile * n_panels + panel;
                let of_panels = |at: *mut f32, n: usize| {
                    Run::of_panels(at.wrapping_add(place * n), n_panels, n / WIDTH)
                };
                lines.stream = of_panels(tiles, SUMS);
                if let Some(next) = next {
                    lines.squares = of_panels(next.acts.squares, TILE_ROWS);
                    let half_tile = Run::of_half_tile(next.acts, panel, row);
                    lines.results = Run { panel_step: half_tile.count * LINE, ..half_tile };
                }
            }
            Sink::Tops(_) => (),
        }
        let Lines { results, stream, squares, .. } = lines;
        lines.most = results.count.max(stream.count).max(squares.count);
        lines
    }

    /// Asks for what the `nth` row of a tile, or line of what is written for it, needs for `W`
    /// panels.
    #[inline(always)]
    pub(super) fn ask<const W: usize>(self, tile: usize, nth: usize) {
        if nth < self.most {
            self.results.ask::<W>(tile, nth);
            self.stream.ask::<W>(tile, nth);
            self.squares.ask::<W>(tile, nth);
        }
    }
}

impl Run {
    /// A few lines that are always at hand.
    const NONE: Run = Run { at: std::ptr::null(), step: 0, tile_step: 0, panel_step: 0, count: 0 };

    /// Half a tile of activations.
    fn of_half_tile(acts: ActViewMut, panel: usize, row: usize) -> Run {
        let at = half_tile(acts, panel, row).cast_const().cast();
        let tile_step = acts.n_blocks * TILE * size_of::<u16>();
        Run { at, step: LINE, tile_step, panel_step: 0, count: acts.tile_rows.div_ceil(2) }
    }

    /// `count` lines for each panel of a tile of rows.
    fn of_panels(at: *mut f32, n_panels: usize, count: usize) -> Run {
        let panel_step = count * LINE;
        let tile_step = n_panels * panel_step;
        Run { at: at.cast_const().cast(), step: LINE, tile_step, panel_step, count }
    }

    #[inline(always)]
    fn ask<const W: usize>(self, tile: usize, nth: usize) {
        if nth < self.count {
            let at = self.at.wrapping_add(tile * self.tile_step + nth * self.step);
            ask_to_write(at);
            if W > 1 && self.panel_step > 0 {
                ask_to_write(at.wrapping_add(self.panel_step));
            }
        }
    }
}

/// Fetches a line that nobody else may keep. `_mm_prefetch` has a hint for it, but is compiled to a
/// fetch for reading: a store then still waits until the others have given the line up.
#[inline(always)]
pub(crate) fn ask_to_write(line: *const u8) {
    // SAFETY: a prefetch of any address does no harm; processors that do not know it pass over it.
    unsafe {
        asm!("prefetchw [{}]", in(reg) line.addr(), options(nomem, nostack, preserves_flags))
    };
}
