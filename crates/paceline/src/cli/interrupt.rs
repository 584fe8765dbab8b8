//! Ctrl-C and SIGTERM: the first asks for an orderly end, a later one forces it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const EXIT_CODE: i32 = 130;

/// Signals closer together than this are one wish: some programs send theirs to the process and to
/// its group.
const ONE_WISH: Duration = Duration::from_millis(300);

/// Whether the user has asked to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    is_set: AtomicBool,
    /// The next signal ends the process at once.
    is_final: AtomicBool,
}

impl Interrupt {
    /// From here on signals are noted instead of ending the process.
    pub(crate) fn install() -> io::Result<Interrupt> {
        Interrupt::install_with(|| {})
    }

    /// [`Interrupt::install`]; the first signal also does this.
    pub(crate) fn install_with(mut action: impl FnMut() + Send + 'static) -> io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let flags = Arc::clone(&interrupt.0);
        std::thread::spawn(move || {
            let mut first = Instant::now();
            for _ in signals.forever() {
                if !flags.is_set.swap(true, Ordering::Relaxed) {
                    first = Instant::now();
                    action();
                }
                if flags.is_final.load(Ordering::Relaxed) || first.elapsed() > ONE_WISH {
                    signal_hook::low_level::exit(EXIT_CODE);
                }
            }
        });
        Ok(interrupt)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// Forgets signals so far.
    pub(crate) fn reset(&self) {
        self.0.is_final.store(false, Ordering::Relaxed);
        self.0.is_set.store(false, Ordering::Relaxed);
    }

    /// Lets the next signal end the process: for waits that cannot look at the flag.
    pub(crate) fn make_final(&self) {
        self.0.is_final.store(true, Ordering::Relaxed);
    }
}
