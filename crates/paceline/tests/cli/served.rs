//! The real server as a process of its own, and just enough HTTP to talk to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::Bench;

/// A server that has told where it listens.
pub(crate) struct Served {
    pub(crate) child: Child,
    /// Lines of its log; read all the time, or a full pipe would hold it up.
    log: Receiver<String>,
    pub(crate) address: String,
}

impl Served {
    /// Starts a server on a free port and waits until it is ready.
    pub(crate) fn start(bench: &Bench, args: &[&str]) -> Served {
        let args = [&["serve", "tiny.gguf", "--port", "0", "--threads", "1"], args].concat();
        Served::of(bench.spawn(&args))
    }

    #[allow(clippy::zombie_processes, reason = "a test that panics ends the process")]
    pub(crate) fn of(mut child: Child) -> Served {
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        let mut server = Served { child, log, address: String::new() };
        let ready = server.wait_for_log("ready: http://");
        let address = ready.trim_start_matches("ready: http://").trim_end_matches("/v1");
        server.address = address.to_owned();
        server
    }

    /// Waits for a line of its log that says this.
    pub(crate) fn wait_for_log(&self, says: &str) -> String {
        let mut said = Vec::new();
        loop {
            let line = self.log.recv_timeout(Duration::from_secs(120));
            let line = line.unwrap_or_else(|_| panic!("it never said {says:?}: {said:#?}"));
            if line.contains(says) {
                return line;
            }
            said.push(line);
        }
    }

    /// Sends a request; returns the head and the body of the answer.
    pub(crate) fn send(&self, start: &str, headers: &str, body: &[u8]) -> (String, String) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let n = body.len();
        let head = format!(
            "{start} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
             {headers}Content-Length: {n}\r\n\r\n"
        );
        socket.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    pub(crate) fn post(&self, path: &str, headers: &str, body: &Value) -> (String, String) {
        self.send(&format!("POST {path}"), headers, body.to_string().as_bytes())
    }

    /// The JSON of an answer that must be good.
    pub(crate) fn ask(&self, start: &str, headers: &str, body: &[u8]) -> Value {
        let (head, body) = self.send(start, headers, body);
        assert!(head.starts_with("HTTP/1.1 200"), "{start}: {head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Uploads a file of lines; returns its id.
    pub(crate) fn upload(&self, lines: &str) -> String {
        let form = format!(
            "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--XX\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n\
             {lines}\r\n--XX--\r\n"
        );
        let headers = "Content-Type: multipart/form-data; boundary=XX\r\n";
        let file = self.ask("POST /v1/files", headers, form.as_bytes());
        file["id"].as_str().unwrap().to_owned()
    }

    /// Starts a batch of completions; returns its id.
    pub(crate) fn start_batch(&self, file: &str) -> String {
        let ask = json!({"input_file_id": file, "endpoint": "/v1/completions",
                         "completion_window": "24h"});
        let batch = self.ask("POST /v1/batches", "", ask.to_string().as_bytes());
        assert_eq!(batch["status"], "validating");
        batch["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn batch(&self, id: &str) -> Value {
        self.ask(&format!("GET /v1/batches/{id}"), "", b"")
    }

    /// Waits until a batch has ended.
    pub(crate) fn wait_for_batch(&self, id: &str) -> Value {
        for _ in 0..6000 {
            let batch = self.batch(id);
            let status = batch["status"].as_str().unwrap();
            if ["completed", "failed", "expired", "cancelled"].contains(&status) {
                return batch;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end: {}", self.batch(id));
    }

    pub(crate) fn content(&self, file: &Value) -> String {
        let id = file.as_str().unwrap();
        let (head, body) = self.send(&format!("GET /v1/files/{id}/content"), "", b"");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body
    }

    /// SIGKILL: it has no chance to do anything.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM; returns the exit code and what was logged.
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let log: Vec<String> = self.log.iter().collect();
        (self.child.wait().unwrap().code(), log.join("\n"))
    }
}
