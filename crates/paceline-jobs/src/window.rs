//! How long a job may take: `24h`, `30m`, `7d`.

use std::fmt;
use std::str::FromStr;

/// A time, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    text: String,
    pub seconds: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a time from 1s to 365d as in 24h, 30m or 7d")]
pub struct WindowError;

const MAX_SECONDS: u64 = 365 * 86_400;

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Window, WindowError> {
        let end = text.find(|c: char| !c.is_ascii_digit()).ok_or(WindowError)?;
        let unit: u64 = match &text[end..] {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(WindowError),
        };
        let count: u64 = text[..end].parse().map_err(|_| WindowError)?;
        let seconds = count.checked_mul(unit).ok_or(WindowError)?;
        match (1..=MAX_SECONDS).contains(&seconds) {
            true => Ok(Window { text: text.to_owned(), seconds }),
            false => Err(WindowError),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_units() {
        let seconds = |text: &str| text.parse::<Window>().ok().map(|window| window.seconds);
        for (text, expected) in [("24h", 86_400), ("1s", 1), ("30m", 1800), ("7d", 604_800)] {
            assert_eq!(seconds(text), Some(expected));
        }
        let bad = ["", "h", "24", "0h", "-1h", "1.5h", "24 h", "24H", "366d", "1w"];
        for text in bad.into_iter().chain(["99999999999999999999h", "9999999999999999999d"]) {
            assert_eq!(seconds(text), None, "{text}");
        }
        assert_eq!("090m".parse::<Window>().unwrap().to_string(), "090m");
    }
}
