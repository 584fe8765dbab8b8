//! Batches over real workers on a real `nats-server`, all of which may be killed.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::bench::Bench;
use super::nats_server::NatsServer;
use super::resume::{answers, n_lines, random};
use super::served::Served;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(240);

const FILES: [&str; 2] = ["rough.jsonl", "rough.errors.jsonl"];

/// Lines that take a moment each; every tenth cannot be run.
fn line(i: usize) -> String {
    let prompt = "word ".repeat(1 + i * 3 % 17);
    let temperature = if i % 10 == 9 { -1.0 } else { 0.9 };
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 90 + i % 60, "seed": i,
                      "temperature": temperature, "ignore_eos": true});
    let line = json!({"custom_id": format!("id-{i}"), "method": "POST",
                      "url": "/v1/completions", "body": body});
    line.to_string() + "\n"
}

/// How many lines, and how often to kill; more of both for a longer night.
fn rough_ride() -> (usize, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let n_lines = number("PACELINE_KILL_LINES").unwrap_or(200);
    (n_lines as usize, number("PACELINE_KILLS").unwrap_or(6))
}

struct Workers<'a> {
    bench: &'a Bench,
    url: String,
    children: Vec<Child>,
}

impl<'a> Workers<'a> {
    fn start(bench: &'a Bench, url: String, n: usize) -> Workers<'a> {
        let mut workers = Workers { bench, url, children: Vec::new() };
        workers.children = (0..n).map(|_| workers.spawn()).collect();
        workers
    }

    fn spawn(&self) -> Child {
        self.bench.spawn(&[
            "worker",
            "tiny.gguf",
            "-q",
            "--queue",
            &self.url,
            "--threads",
            "1",
            "--max-num-seqs",
            "2",
            "--redeliver-after",
            "2",
            // Nothing here is the fault of a line.
            "--max-deliveries",
            "1000",
        ])
    }

    /// SIGKILL for one, and another in its place.
    fn replace(&mut self, place: usize) {
        let mut child = self.spawn();
        std::mem::swap(&mut child, &mut self.children[place]);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits until all have found the queue and loaded the model.
    fn wait_until_up(&mut self) {
        self.children.iter_mut().for_each(wait_until_it_hears);
    }

    /// SIGTERM for all; they end in good order.
    fn terminate(&mut self) {
        self.wait_until_up();
        for child in &self.children {
            let pid = child.id().to_string();
            let kill = std::process::Command::new("kill").args(["-TERM", &pid]).status();
            assert!(kill.unwrap().success());
        }
        for mut child in self.children.drain(..) {
            assert_eq!(child.wait().unwrap().code(), Some(0));
        }
    }
}

/// Waits until a process that was just started does something of its own on SIGTERM.
fn wait_until_it_hears(child: &mut Child) {
    const SIGTERM: u32 = 15;
    let start = Instant::now();
    let pid = child.id();
    let hears = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap_or_default().trim(), 16).unwrap_or(0);
        caught >> (SIGTERM - 1) & 1 == 1
    };
    while !hears() {
        if let Some(status) = child.try_wait().unwrap() {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("worker {pid} has ended, {status}: {said}");
        }
        assert!(start.elapsed() < PATIENCE, "worker {pid} does not hear SIGTERM");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a run without a queue says.
fn calm(bench: &Bench) -> BTreeMap<String, Value> {
    let args = ["batch", "-m", "tiny.gguf", "-q", "-i", "in.jsonl", "-o", "calm.jsonl"];
    bench.call(&args).expect(1);
    answers(&[&bench.read("calm.jsonl"), &bench.read("calm.errors.jsonl")])
}

/// Waits for so many results, or the end.
fn wait_for(bench: &Bench, n: usize, child: &mut Child) {
    let start = Instant::now();
    while n_lines(bench, &FILES) < n && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "{} of {n} lines", n_lines(bench, &FILES));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn whoever_is_killed_each_line_is_answered_once() {
    let Some(mut server) = NatsServer::start() else { return };
    let bench = Bench::new();
    let (n, n_kills) = rough_ride();
    bench.write("in.jsonl", (0..n).map(line).collect::<String>());
    let calm = calm(&bench);
    let url = server.url();
    let mut workers = Workers::start(&bench, url.clone(), 3);
    let args = ["batch", "-q", "--queue", &url, "-i", "in.jsonl", "-o", FILES[0]];
    let mut batch = bench.spawn(&args);
    for kill in 0..n_kills {
        // Seeded, and further on each time.
        let part = n as u64 / n_kills;
        let enough = kill * part + random(kill, part);
        wait_for(&bench, enough as usize, &mut batch);
        workers.replace(random(kill + 100, 3) as usize);
        if kill == n_kills / 3 {
            // One that is started without a queue ends at once, and says so.
            workers.wait_until_up();
            server.restart();
        }
        if kill == n_kills / 2 {
            batch.kill().unwrap();
            batch.wait().unwrap();
            batch = bench.spawn(&args);
        }
    }
    wait_for(&bench, n, &mut batch);
    let code = batch.wait().unwrap().code();
    assert!(code.is_some_and(|code| code <= 1), "{code:?}");
    let rough = FILES.map(|name| bench.read(name));
    assert_eq!(answers(&[&rough[0], &rough[1]]), calm);
    assert!(!bench.path("rough.jsonl.queue").exists(), "nothing is to come back");
    workers.terminate();
    // Nothing is left to do, and nothing is done.
    bench.call(&args).expect(0);
    assert_eq!(FILES.map(|name| bench.read(name)), rough);
}

#[test]
fn batches_of_a_server_run_on_workers() {
    let Some(server) = NatsServer::start() else { return };
    let bench = Bench::new();
    let text: String = (0..40).map(line).collect();
    bench.write("in.jsonl", &text);
    let calm = calm(&bench);
    let url = server.url();
    let args = ["--data-dir", "data", "--served-model-name", "tiny", "--queue", &url];
    let serving = Served::start(&bench, &args);
    let id = serving.start_batch(&serving.upload(&text));
    let cancelled = serving.start_batch(&serving.upload(&text));
    let ask = format!("POST /v1/batches/{cancelled}/cancel");
    // Whether it has ended by the time of the answer is a matter of luck.
    assert!(serving.ask(&ask, "", b"")["cancelling_at"].is_u64());
    assert_eq!(serving.wait_for_batch(&cancelled)["status"], "cancelled");
    assert_ne!(serving.batch(&id)["status"], "completed", "there are no workers yet");
    let mut workers = Workers::start(&bench, url.clone(), 2);
    serving.kill();
    workers.replace(0);
    let serving = Served::start(&bench, &args);
    let batch = serving.wait_for_batch(&id);
    let counts = json!({"total": 40, "completed": 36, "failed": 4});
    assert_eq!((&batch["status"], &batch["request_counts"]), (&json!("completed"), &counts));
    let output = serving.content(&batch["output_file_id"]);
    let errors = serving.content(&batch["error_file_id"]);
    assert_eq!(answers(&[&output, &errors]), calm);
    workers.terminate();
    assert_eq!(serving.terminate().0, Some(0));
}

#[test]
fn what_cannot_be_is_said() {
    let bench = Bench::new();
    bench.write("in.jsonl", line(0));
    bench.write("in.txt", "on the\n");
    let batch = |queue, input| ["batch", "--queue", queue, "-i", input, "-o", "out.jsonl"];
    let nobody = "nats://127.0.0.1:1";
    let says = "cannot reach the queue at 127.0.0.1:1/paceline";
    bench.call(&batch(nobody, "in.jsonl")).expect_error(1, says);
    bench.call(&["worker", "--queue", nobody, "tiny.gguf"]).expect_error(1, says);
    let serve = ["serve", "tiny.gguf", "--port", "0", "--data-dir", "data", "--queue", nobody];
    bench.call(&serve).expect_error(1, says);
    bench.call(&batch(nobody, "in.txt")).expect_error(2, "--queue takes OpenAI's batch lines");
    let ran = bench.call(&batch("localhost:4222", "in.jsonl")).expect(2);
    assert!(ran.stderr.contains("a queue is nats://HOST:PORT"), "{ran:?}");
    let ran = bench.call(&["serve", "tiny.gguf", "--queue", nobody]).expect(2);
    assert!(ran.stderr.contains("--data-dir"), "{ran:?}");
}
