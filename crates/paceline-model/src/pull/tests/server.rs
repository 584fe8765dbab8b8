//! A hub of a few files, on this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Digest, Sha256};
use crate::pull::save::hex;

pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

struct HubFile {
    repo: String,
    name: String,
    contents: Vec<u8>,
}

/// Serves until the test process ends.
pub(super) struct Server {
    port: u16,
    ranges: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(super) fn start(files: &[(&str, &str, &[u8])]) -> Self {
        let file = |(repo, name, contents): &(&str, &str, &[u8])| HubFile {
            repo: (*repo).to_owned(),
            name: (*name).to_owned(),
            contents: contents.to_vec(),
        };
        let files: Vec<HubFile> = files.iter().map(file).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ranges);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that went away is its own affair.
                let _ = answer(stream, &files, &seen);
            }
        });
        Self { port, ranges }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(super) fn requested_ranges(&self) -> Vec<String> {
        self.ranges.lock().unwrap().clone()
    }
}

fn answer(
    mut stream: TcpStream,
    files: &[HubFile],
    ranges: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let (path, range) = read_request(&stream)?;
    ranges.lock().unwrap().extend(range.clone());
    let reply = match path.strip_prefix("/api/models/") {
        Some(rest) => listing(rest, files),
        None => file_reply(&path, range.as_deref(), files),
    };
    stream.write_all(&reply)
}

/// The path and the range asked for.
fn read_request(stream: &TcpStream) -> std::io::Result<(String, Option<String>)> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or("").to_owned();
    let mut range = None;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        if name.eq_ignore_ascii_case("range") {
            range = Some(value.trim().to_owned());
        }
    }
    Ok((path, range))
}

fn reply(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn listing(rest: &str, files: &[HubFile]) -> Vec<u8> {
    if rest.starts_with("org/gated") {
        return reply("403 Forbidden", "", b"");
    }
    let in_repo = |file: &&HubFile| rest.starts_with(&file.repo);
    let siblings: Vec<_> = files
        .iter()
        .filter(in_repo)
        .map(|file| serde_json::json!({"rfilename": file.name}))
        .collect();
    if siblings.is_empty() {
        return reply("401 Unauthorized", "", b"");
    }
    let body = serde_json::json!({"siblings": siblings, "sha": "c0ffee"}).to_string();
    reply("200 OK", "content-type: application/json\r\n", body.as_bytes())
}

fn file_reply(path: &str, range: Option<&str>, files: &[HubFile]) -> Vec<u8> {
    let is_it = |file: &&HubFile| path == format!("/{}/resolve/main/{}", file.repo, file.name);
    let Some(file) = files.iter().find(is_it) else {
        return reply("404 Not Found", "", b"");
    };
    let size = file.contents.len();
    let bounds = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let (from, to) = bounds.unwrap_or(("0", ""));
    let from: usize = from.parse().unwrap();
    let to = to.parse().map_or(size, |to: usize| to + 1).min(size);
    if from >= size {
        return reply("416 Range Not Satisfiable", "", b"");
    }
    let last = to - 1;
    let headers = format!(
        "etag: \"{}\"\r\nx-repo-commit: c0ffee\r\ncontent-range: bytes {from}-{last}/{size}\r\n",
        sha256(&file.contents)
    );
    reply("206 Partial Content", &headers, &file.contents[from..to])
}
