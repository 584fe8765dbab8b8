//! Lines of a stream, each within a bound: a file with no newline in it cannot fill the memory.

use std::io::{self, BufRead};

/// The longest line that is taken.
pub(super) const MAX_LINE_BYTES: usize = 16 << 20;

/// What stands on a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    Blank,
    NotUtf8,
    TooLong,
}

/// The next line without its end; `None` at the end of the stream.
pub(super) fn next_line(input: &mut impl BufRead, max_bytes: usize) -> io::Result<Option<Line>> {
    let mut bytes = Vec::new();
    let (mut is_empty, mut is_too_long) = (true, false);
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            break;
        }
        is_empty = false;
        let end = chunk.iter().position(|&byte| byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        is_too_long |= bytes.len() + part.len() > max_bytes;
        if !is_too_long {
            bytes.extend_from_slice(part);
        }
        let n_used = part.len() + usize::from(end.is_some());
        input.consume(n_used);
        if end.is_some() {
            break;
        }
    }
    Ok(match (is_empty, is_too_long) {
        (true, _) => None,
        (_, true) => Some(Line::TooLong),
        _ => Some(classify(bytes)),
    })
}

fn classify(mut bytes: Vec<u8>) -> Line {
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    match String::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() => Line::Blank,
        Ok(text) => Line::Text(text),
        Err(_) => Line::NotUtf8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    #[test]
    fn lines_of_every_kind_whatever_the_buffer() {
        let bytes = b"one\r\n\n  \ntwo \xff\nabcdefghij\nlast".as_slice();
        let text = |text: &str| Line::Text(text.to_owned());
        let expected =
            [text("one"), Line::Blank, Line::Blank, Line::NotUtf8, Line::TooLong, text("last")];
        for capacity in [1, 2, 3, 7, 64] {
            let mut input = BufReader::with_capacity(capacity, bytes);
            let mut lines = Vec::new();
            while let Some(line) = next_line(&mut input, 9).unwrap() {
                lines.push(line);
            }
            assert_eq!(lines, expected, "capacity {capacity}");
        }
    }

    #[test]
    fn an_empty_stream_has_no_lines() {
        assert_eq!(next_line(&mut b"".as_slice(), 9).unwrap(), None);
        assert_eq!(next_line(&mut b"\n".as_slice(), 9).unwrap(), Some(Line::Blank));
    }
}
