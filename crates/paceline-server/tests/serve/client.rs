//! Just enough of an HTTP client: one request per connection, every byte visible.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than any test takes; a hang becomes a failure.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The JSON of each event; the last must be `[DONE]` and is left out.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> =
            self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", self.body);
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Status and the error object, which must have OpenAI's four fields.
    pub(crate) fn error(&self) -> (u16, Value) {
        let error = self.json()["error"].clone();
        let mut fields: Vec<&String> = error.as_object().unwrap().keys().collect();
        fields.sort();
        assert_eq!(fields, ["code", "message", "param", "type"]);
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        (self.status, error)
    }
}

/// A connection on which a request has been sent.
pub(crate) struct Exchange {
    reader: BufReader<TcpStream>,
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

impl Exchange {
    pub(crate) fn send(address: SocketAddr, bytes: &[u8]) -> Exchange {
        let mut socket = connect(address);
        socket.write_all(bytes).unwrap();
        Exchange { reader: BufReader::new(socket) }
    }

    pub(crate) fn of(socket: TcpStream) -> Exchange {
        Exchange { reader: BufReader::new(socket) }
    }

    /// Reads the head of the response.
    pub(crate) fn head(&mut self) -> Response {
        let status = self.line();
        let status = status.split(' ').nth(1).unwrap_or_else(|| panic!("no status: {status:?}"));
        let mut response =
            Response { status: status.parse().unwrap(), headers: Vec::new(), body: String::new() };
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else {
                return response;
            };
            response.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }

    /// The next line of the body or head, without its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads lines until one starts so.
    pub(crate) fn line_starting(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "the end, and no {start:?}");
            if line.starts_with(start) {
                return line.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn finish(mut self) -> Response {
        let mut response = self.head();
        let body = match response.header("transfer-encoding") {
            Some(_) => self.chunked(),
            None => {
                let n: usize = response.header("content-length").unwrap_or("0").parse().unwrap();
                let mut body = vec![0; n];
                self.reader.read_exact(&mut body).unwrap();
                body
            }
        };
        response.body = String::from_utf8(body).unwrap();
        response
    }

    fn chunked(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(&self.line(), 16).unwrap();
            let mut chunk = vec![0; size];
            self.reader.read_exact(&mut chunk).unwrap();
            self.line();
            if size == 0 {
                return body;
            }
            body.extend(chunk);
        }
    }
}

/// The bytes of a request with a body.
pub(crate) fn post_bytes(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head =
        format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

pub(crate) fn get_bytes(path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("GET {path} HTTP/1.1\r\nHost: test\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}
