//! Server-sent events out of pieces of bytes.

/// Splits a stream into the values of its `data:` lines. Events of OpenAI's streams have one line
/// each.
#[derive(Debug, Default)]
pub(super) struct EventLines {
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
}

/// More than any event has.
const MAX_LINE: usize = 16 << 20;

impl EventLines {
    /// Calls `f` with each value that is complete now. False if a line grows beyond all bounds.
    pub(super) fn push(&mut self, bytes: &[u8], mut f: impl FnMut(&[u8])) -> bool {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            if self.rest.is_empty() {
                data(line, &mut f);
            } else {
                self.rest.extend_from_slice(line);
                data(&self.rest, &mut f);
                self.rest.clear();
            }
            bytes = after;
        }
        self.rest.extend_from_slice(bytes);
        self.rest.len() <= MAX_LINE
    }
}

fn data(line: &[u8], f: &mut impl FnMut(&[u8])) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if let Some(value) = line.strip_prefix(b"data:") {
        f(value.strip_prefix(b" ").unwrap_or(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_stream_is_cut() {
        let stream = b": ping\n\ndata: {\"a\": 1}\n\nevent: x\r\ndata:two\r\n\r\ndata: [DONE]\n\n";
        for size in 1..=stream.len() {
            let mut lines = EventLines::default();
            let mut found = Vec::new();
            for piece in stream.chunks(size) {
                assert!(lines.push(piece, |value| found.push(value.to_vec())));
            }
            let expected: [&[u8]; 3] = [b"{\"a\": 1}", b"two", b"[DONE]"];
            assert_eq!(found, expected, "pieces of {size}");
        }
    }
}
