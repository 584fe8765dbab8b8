//! Values with a grammar of their own.

use std::fmt;
use std::str::FromStr;

/// A range of counts: `8..512`, or one count alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) least: u32,
    pub(crate) most: u32,
}

/// A size: `64MiB`, `1G`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

/// What a value should have looked like.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ValueError(&'static str);

const SPAN_HINT: &str = "write two counts from 1 on as in 8..512, or one";
const SIZE_HINT: &str = "write a size as in 64MiB, 1GiB or 4096";

/// Far above any prompt; keeps sums of two within 32 bits.
const MAX_COUNT: u32 = 1 << 24;

impl FromStr for Span {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Span, ValueError> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let count = |text: &str| text.parse::<u32>().map_err(|_| ValueError(SPAN_HINT));
        let span = Span { least: count(least)?, most: count(most)? };
        match 1 <= span.least && span.least <= span.most && span.most <= MAX_COUNT {
            true => Ok(span),
            false => Err(ValueError(SPAN_HINT)),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least == self.most {
            true => write!(f, "{}", self.least),
            false => write!(f, "{} to {}", self.least, self.most),
        }
    }
}

impl FromStr for ByteSize {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<ByteSize, ValueError> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let shift = match text[end..].to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            _ => return Err(ValueError(SIZE_HINT)),
        };
        let count = text[..end].parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
        count.filter(|&n| n > 0).map(ByteSize).ok_or(ValueError(SIZE_HINT))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|&(unit, _)| self.0.is_multiple_of(unit)) {
            Some((unit, name)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_ordered_counts() {
        let span = |text: &str| text.parse::<Span>().ok().map(|s| (s.least, s.most));
        let good = [("8..512", (8, 512)), ("7", (7, 7)), ("3..3", (3, 3))];
        for (text, expected) in good {
            assert_eq!(span(text), Some(expected));
        }
        for text in ["", "..", "8..", "..8", "9..8", "0..4", "0", "-1", "1..99999999999", "a..b"] {
            assert_eq!(span(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        let size = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0);
        let good = [("4096", 4096), ("64MiB", 64 << 20), ("1g", 1 << 30), ("3K", 3072), ("5b", 5)];
        for (text, expected) in good {
            assert_eq!(size(text), Some(expected));
        }
        for text in ["", "MiB", "0", "0M", "-1", "1.5G", "1TB", "99999999999G", "1 M"] {
            assert_eq!(size(text), None, "{text}");
        }
        let shown = [64 << 20, 1 << 30, 96 << 20, 1000].map(|n| ByteSize(n).to_string());
        assert_eq!(shown, ["64 MiB", "1 GiB", "96 MiB", "1000 B"]);
    }
}
