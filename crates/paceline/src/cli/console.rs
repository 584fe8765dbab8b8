//! The terminal's error side: notes, logs, progress bars. Results go to standard output and are the
//! commands' own business.

use std::io::{self, Write};
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use paceline_model::pull::Progress;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How much is said beside the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Errors alone.
    Quiet,
    /// Warnings too.
    Normal,
    /// What was chosen at start.
    Info,
    Debug,
}

/// Everything that is written to standard error.
#[derive(Debug)]
pub(crate) struct Console {
    bars: MultiProgress,
    verbosity: Verbosity,
}

impl Console {
    /// Also sets up the log. Called once.
    pub(crate) fn new(verbosity: Verbosity) -> Console {
        let bars = MultiProgress::new();
        let level = match verbosity {
            Verbosity::Quiet => LevelFilter::ERROR,
            Verbosity::Normal => LevelFilter::WARN,
            Verbosity::Info => LevelFilter::INFO,
            Verbosity::Debug => LevelFilter::DEBUG,
        };
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(AroundBars(bars.clone()))
            .with_target(false)
            .without_time()
            .init();
        Console { bars, verbosity }
    }

    pub(crate) fn verbosity(&self) -> Verbosity {
        self.verbosity
    }

    /// One line for the user, unless they asked for silence.
    pub(crate) fn note(&self, text: &str) {
        if self.verbosity > Verbosity::Quiet {
            self.line(text);
        }
    }

    pub(crate) fn error(&self, text: &str) {
        self.line(&format!("error: {text}"));
    }

    fn line(&self, text: &str) {
        // There is nobody left to tell when standard error is closed.
        let _ = writeln!(AroundBars(self.bars.clone()), "{text}");
    }

    /// A bar for downloads.
    pub(crate) fn download(&self) -> TransferBar<'_> {
        self.transfer("fetching")
    }

    /// A bar for bytes that come or go.
    pub(crate) fn transfer(&self, doing: &'static str) -> TransferBar<'_> {
        TransferBar { console: self, doing, bar: Mutex::new(None) }
    }

    /// A bar for a count of prompts, or a spinner where the total is not known. Shown only on a
    /// terminal.
    pub(crate) fn prompts(&self, total: Option<u64>) -> ProgressBar {
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{bar:30} {pos}/{len} prompts, {msg}, {elapsed} elapsed, {eta} left",
            ),
            None => (ProgressBar::no_length(), "{spinner} {pos} prompts, {msg}, {elapsed} elapsed"),
        };
        self.show(bar.with_message("starting"), template)
    }

    /// A bar for measurements. It moves only when told to, so that it takes no time of its own
    /// while something is measured.
    pub(crate) fn measurements(&self, total: u64) -> ProgressBar {
        let bar = self.show(ProgressBar::new(total), "{bar:30} {pos}/{len} {msg}, {elapsed}");
        bar.disable_steady_tick();
        bar
    }

    /// Whether bars are drawn at all.
    pub(crate) fn has_bars(&self) -> bool {
        self.verbosity > Verbosity::Quiet && !self.bars.is_hidden()
    }

    fn show(&self, bar: ProgressBar, template: &str) -> ProgressBar {
        if !self.has_bars() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(template);
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let bar = self.bars.add(bar);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// Writes to standard error without tearing a bar.
#[derive(Clone, Debug)]
struct AroundBars(MultiProgress);

impl Write for AroundBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn write_fmt(&mut self, arguments: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.write_all(arguments.to_string().as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for AroundBars {
    type Writer = AroundBars;

    fn make_writer(&self) -> AroundBars {
        self.clone()
    }
}

/// Shows a download or a file being written; one line instead where there is no terminal.
#[derive(Debug)]
pub(crate) struct TransferBar<'a> {
    console: &'a Console,
    doing: &'static str,
    bar: Mutex<Option<ProgressBar>>,
}

impl TransferBar<'_> {
    fn replace(&self, bar: Option<ProgressBar>) -> Option<ProgressBar> {
        std::mem::replace(&mut *self.bar.lock().unwrap_or_else(|error| error.into_inner()), bar)
    }
}

impl Progress for TransferBar<'_> {
    fn start(&self, what: &str, total: Option<u64>) {
        if !self.console.has_bars() {
            let size = total.map_or(String::new(), |total| format!(" ({} MiB)", total >> 20));
            self.console.note(&format!("{} {what}{size}", self.doing));
            return;
        }
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{msg} {bar:30} {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, \
                 {eta} left",
            ),
            None => (ProgressBar::no_length(), "{spinner} {msg} {binary_bytes}"),
        };
        let bar = self.console.show(bar, template);
        bar.set_message(what.to_owned());
        self.replace(Some(bar));
    }

    fn at(&self, bytes: u64) {
        let bar = self.bar.lock().unwrap_or_else(|error| error.into_inner());
        if let Some(bar) = &*bar {
            bar.set_position(bytes);
        }
    }

    fn finish(&self) {
        if let Some(bar) = self.replace(None) {
            bar.finish_and_clear();
        }
    }
}
