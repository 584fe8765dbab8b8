//! Stop strings in a stream of text.
//!
//! Owns the text that may still turn out to be the start of a stop string. Knows nothing of
//! tokens: what comes in is complete characters, cut anywhere.

/// Stop strings one request may have.
pub const MAX_STOP_STRINGS: usize = 16;
/// Bytes a stop string may have.
pub const MAX_STOP_BYTES: usize = 1024;

/// Why stop strings were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    #[error("there are {0} stop strings; at most {MAX_STOP_STRINGS} are allowed")]
    TooMany(usize),
    #[error("stop string {0} is empty; it would stop every text at once")]
    Empty(usize),
    #[error("stop string {index} has {len} bytes; at most {MAX_STOP_BYTES} are allowed")]
    TooLong { index: usize, len: usize },
}

/// Watches a text for stop strings.
///
/// The string that is complete first stops the text; of several that become complete with the
/// same character, the one that starts first.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    include_stop: bool,
    /// Not yet handed out: the longest part of a stop string that the text ends with.
    held: String,
    /// The text has stopped; anything more is ignored.
    stopped: Option<usize>,
}

/// One stop string with how much of it the text ends with at the moment.
#[derive(Clone, Debug)]
struct Stop {
    bytes: Vec<u8>,
    /// `fallback[i]`: with `i + 1` bytes matched and the next one wrong, how many bytes of what
    /// was matched are a start of the string again (Knuth, Morris and Pratt).
    fallback: Vec<usize>,
    matched: usize,
}

/// What came of a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that can be shown now.
    pub text: String,
    /// The index of the stop string that ended the text.
    pub stopped: Option<usize>,
}

impl StopMatcher {
    /// `include_stop` leaves the stop string itself in the text.
    pub fn new(stops: &[String], include_stop: bool) -> Result<Self, StopError> {
        if stops.len() > MAX_STOP_STRINGS {
            return Err(StopError::TooMany(stops.len()));
        }
        for (index, stop) in stops.iter().enumerate() {
            match stop.len() {
                0 => return Err(StopError::Empty(index)),
                1..=MAX_STOP_BYTES => {}
                len => return Err(StopError::TooLong { index, len }),
            }
        }
        Ok(Self {
            stops: stops.iter().map(|stop| Stop::new(stop)).collect(),
            include_stop,
            held: String::new(),
            stopped: None,
        })
    }

    /// Whether there is nothing to watch for.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// Takes the next piece of text and hands out what can no longer become a stop string.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stopped.is_some() {
            return StopOutput { text: String::new(), stopped: self.stopped };
        }
        let seen = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            if let Some(index) = self.advance(byte) {
                return self.stop(index, seen + at + 1);
            }
        }
        let open = self.stops.iter().map(|stop| stop.matched).max();
        let keep_from = self.held.len() - open.unwrap_or(0);
        let rest = self.held.split_off(keep_from);
        StopOutput { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// Ends the text: what was held back is text after all.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Feeds one byte to all stop strings; the longest of those it completes wins, because it
    /// starts first.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut complete: Option<usize> = None;
        for index in 0..self.stops.len() {
            let is_complete = self.stops[index].advance(byte);
            let is_longer = complete
                .is_none_or(|best| self.stops[index].bytes.len() > self.stops[best].bytes.len());
            if is_complete && is_longer {
                complete = Some(index);
            }
        }
        complete
    }

    /// The stop string `index` ends at byte `end` of the held text.
    fn stop(&mut self, index: usize, end: usize) -> StopOutput {
        self.stopped = Some(index);
        let start = end - self.stops[index].bytes.len();
        let mut text = std::mem::take(&mut self.held);
        text.truncate(if self.include_stop { end } else { start });
        StopOutput { text, stopped: self.stopped }
    }
}

impl Stop {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut matched = 0;
        for at in 1..bytes.len() {
            while matched > 0 && bytes[at] != bytes[matched] {
                matched = fallback[matched - 1];
            }
            if bytes[at] == bytes[matched] {
                matched += 1;
            }
            fallback[at] = matched;
        }
        Self { bytes, fallback, matched: 0 }
    }

    /// Whether the string is complete with this byte.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests;
