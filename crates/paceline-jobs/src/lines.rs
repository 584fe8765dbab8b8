//! Lines of a stream, each within a bound: a file with no newline in it cannot fill the memory.

use std::fs::File;
use std::io::{self, BufRead, Read, Seek, SeekFrom};

/// The longest line that is taken.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// What stands on a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Text(String),
    Blank,
    NotUtf8,
    TooLong,
}

/// Where a line of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub offset: u64,
    /// Bytes, with the line's end.
    pub len: u64,
}

impl Span {
    /// Reads the line again.
    pub fn read(self, file: &mut File) -> io::Result<Line> {
        file.seek(SeekFrom::Start(self.offset))?;
        let mut part = io::BufReader::new(file.take(self.len));
        Ok(next_line(&mut part, MAX_LINE_BYTES)?.unwrap_or(Line::Blank))
    }
}

/// The lines of a stream, one after another, and where they are.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    offset: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R) -> Lines<R> {
        Lines { input, offset: 0 }
    }

    /// The next line; `None` at the end of the stream.
    pub fn next_line(&mut self) -> io::Result<Option<(Span, Line)>> {
        let mut counted = Counted { input: &mut self.input, n_read: 0 };
        let line = next_line(&mut counted, MAX_LINE_BYTES)?;
        let span = Span { offset: self.offset, len: counted.n_read };
        self.offset += span.len;
        Ok(line.map(|line| (span, line)))
    }
}

/// Counts what is consumed.
struct Counted<'a, R> {
    input: &'a mut R,
    n_read: u64,
}

impl<R: BufRead> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.n_read += n as u64;
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Counted<'_, R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        self.n_read += n as u64;
        self.input.consume(n);
    }
}

/// The next line without its end; `None` at the end of the stream.
fn next_line(input: &mut impl BufRead, max_bytes: usize) -> io::Result<Option<Line>> {
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
    fn a_line_is_found_again_by_its_place() {
        let mut file = tempfile::tempfile().unwrap();
        let text = "one\r\n\n\u{fc}ber\nlast";
        io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let mut lines = Lines::new(text.as_bytes());
        let mut n_bytes = 0;
        while let Some((span, line)) = lines.next_line().unwrap() {
            assert_eq!(span.offset, n_bytes);
            n_bytes += span.len;
            assert_eq!(span.read(&mut file).unwrap(), line);
        }
        assert_eq!(n_bytes, text.len() as u64);
    }

    #[test]
    fn an_empty_stream_has_no_lines() {
        assert_eq!(next_line(&mut b"".as_slice(), 9).unwrap(), None);
        assert_eq!(next_line(&mut b"\n".as_slice(), 9).unwrap(), Some(Line::Blank));
    }
}
