//! How many lines may be under way while somebody waits for a stream.
//!
//! Alone, batches get all the engine has. Beside interactive requests, and if the server has a
//! target for the pace of streams, steps that take longer than that mean fewer lines, and steps
//! with time to spare mean more. Lines under way are never cut short: their number falls as they
//! end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Steps are looked at in portions of at least this long.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How much of the room is left after steps that were too long.
const SHRINK: f64 = 0.7;

/// Room grows again when steps take less than this share of their target.
const SPARE: f64 = 0.85;
const GROW: f64 = 1.1;

/// What the engine has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps {
    pub(super) n: u64,
    pub(super) ns: u64,
}

/// The room for lines beside interactive requests, as learned from steps.
#[derive(Debug, Default)]
pub(super) struct Room(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// `None` until there was somebody to be beside.
    room: Option<f64>,
    seen: Steps,
    looked: Option<Instant>,
}

impl Room {
    /// Lines that may be under way beside interactive requests, out of `full`.
    pub(super) fn beside(
        &self,
        full: usize,
        target: Duration,
        steps: Steps,
        now: Instant,
    ) -> usize {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = state.room.unwrap_or(full as f64);
        let is_due = state.looked.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY);
        let n_new = steps.n.saturating_sub(state.seen.n);
        let mut next = room;
        if is_due && n_new > 0 {
            let mean_ns = steps.ns.saturating_sub(state.seen.ns) as f64 / n_new as f64;
            let share = mean_ns / (target.as_nanos() as f64).max(1.0);
            next = match share {
                share if share > 1.0 => room * SHRINK,
                share if share < SPARE => room * GROW + 1.0,
                _ => room,
            };
            state.seen = steps;
            state.looked = Some(now);
        }
        let next = next.clamp(1.0, full.max(1) as f64);
        state.room = Some(next);
        (next as usize).min(full)
    }

    /// Forgets how long steps took while nobody was there to wait for them.
    pub(super) fn alone(&self, steps: Steps, now: Instant) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.seen = steps;
        state.looked = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose steps take 4 ms and 0.5 ms for each line.
    fn settled(target_ms: u64, full: usize) -> usize {
        let room = Room::default();
        let (mut steps, mut now) = (Steps::default(), Instant::now());
        room.alone(steps, now);
        let mut n_lines = full;
        for _ in 0..200 {
            now += LOOK_EVERY;
            steps = Steps {
                n: steps.n + 10,
                ns: steps.ns + 10 * (4_000_000 + n_lines as u64 * 500_000),
            };
            n_lines = room.beside(full, Duration::from_millis(target_ms), steps, now);
        }
        n_lines
    }

    #[test]
    fn room_settles_where_steps_keep_their_time() {
        let n_lines = settled(14, 72);
        assert!((10..=22).contains(&n_lines), "{n_lines}");
        assert_eq!(settled(100, 72), 72, "time for all");
        assert_eq!(settled(1, 72), 1, "batches go on, however slowly");
    }

    #[test]
    fn nothing_changes_without_steps() {
        let room = Room::default();
        let now = Instant::now();
        for i in 0..50 {
            let at = now + LOOK_EVERY * i;
            assert_eq!(room.beside(9, Duration::from_millis(1), Steps::default(), at), 9);
        }
    }
}
