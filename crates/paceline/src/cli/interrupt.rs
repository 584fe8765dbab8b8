//! Ctrl-C and SIGTERM: the first asks for an orderly end, the second forces it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

const EXIT_CODE: i32 = 130;

/// Whether the user has asked to stop.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    is_set: Arc<AtomicBool>,
    /// The next signal ends the process at once.
    is_final: Arc<AtomicBool>,
}

impl Interrupt {
    /// From here on signals set a flag instead of ending the process.
    pub(crate) fn install() -> io::Result<Interrupt> {
        let interrupt = Interrupt { is_set: Arc::default(), is_final: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            // In this order: what the first signal sets, the second one acts on.
            flag::register_conditional_shutdown(
                signal,
                EXIT_CODE,
                Arc::clone(&interrupt.is_final),
            )?;
            flag::register(signal, Arc::clone(&interrupt.is_set))?;
            flag::register(signal, Arc::clone(&interrupt.is_final))?;
        }
        Ok(interrupt)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Forgets signals so far.
    pub(crate) fn reset(&self) {
        self.is_final.store(false, Ordering::Relaxed);
        self.is_set.store(false, Ordering::Relaxed);
    }

    /// Lets the next signal end the process: for waits that cannot look at the flag.
    pub(crate) fn make_final(&self) {
        self.is_final.store(true, Ordering::Relaxed);
    }
}
