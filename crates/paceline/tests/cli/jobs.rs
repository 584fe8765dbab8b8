//! Batches of a real server that is killed, runs out of disk, or has a rival.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::Bench;
use super::resume::{answers, openai_line, random, rough_ride};
use super::served::Served;

fn start(bench: &Bench, data_dir: &str) -> Served {
    let args = ["--data-dir", data_dir, "--max-num-seqs", "2", "--served-model-name", "tiny"];
    Served::start(bench, &args)
}

/// Results that are on the disk, whoever may see them.
fn n_results(bench: &Bench, data_dir: &str, input: &str) -> usize {
    let files = std::fs::read_dir(bench.path(data_dir).join("files")).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let count = |path: std::path::PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.iter().filter(|&&byte| byte == b'\n').count()
    };
    paths.filter(|path| path.file_name() != Path::new(input).file_name()).map(count).sum()
}

fn results(server: &Served, batch: &Value) -> std::collections::BTreeMap<String, Value> {
    let output = server.content(&batch["output_file_id"]);
    let errors = server.content(&batch["error_file_id"]);
    answers(&[&output, &errors])
}

#[test]
fn killed_at_any_moment_each_line_is_answered_once() {
    let bench = Bench::new();
    let (n, n_kills) = rough_ride();
    let text: String = (0..n).map(openai_line).collect();
    let calm_server = start(&bench, "calm");
    let batch = calm_server.start_batch(&calm_server.upload(&text));
    let batch = calm_server.wait_for_batch(&batch);
    let calm = results(&calm_server, &batch);
    let counts = json!({"total": n, "completed": n - n / 10, "failed": n / 10});
    assert_eq!((&batch["status"], &batch["request_counts"]), (&json!("completed"), &counts));
    assert_eq!(calm_server.terminate().0, Some(0));

    let mut server = start(&bench, "rough");
    let input = server.upload(&text);
    let id = server.start_batch(&input);
    for kill in 0..n_kills {
        // The first comes before or while the file is checked.
        let enough = if kill == 0 { 0 } else { random(kill, n as u64) as usize };
        for _ in 0..20_000 {
            if n_results(&bench, "rough", &input) >= enough {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        server.kill();
        server = start(&bench, "rough");
    }
    let batch = server.wait_for_batch(&id);
    assert_eq!((&batch["status"], &batch["request_counts"]), (&json!("completed"), &counts));
    assert_eq!(results(&server, &batch), calm);
    // What ended before a kill is there after it.
    server.kill();
    let server = start(&bench, "rough");
    assert_eq!(server.batch(&id), batch);
    assert_eq!(results(&server, &batch), calm);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn an_orderly_end_is_gone_on_from() {
    let bench = Bench::new();
    let text: String = (0..40).map(openai_line).collect();
    let server = start(&bench, "data");
    let id = server.start_batch(&server.upload(&text));
    let (code, log) = server.terminate();
    assert_eq!(code, Some(0), "{log}");
    let server = start(&bench, "data");
    let batch = server.wait_for_batch(&id);
    assert_eq!(results(&server, &batch).len(), 40);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn a_data_directory_has_one_server() {
    let bench = Bench::new();
    let server = start(&bench, "data");
    let second = ["serve", "tiny.gguf", "--port", "0", "--data-dir", "data"];
    bench.call(&second).expect_error(1, "data is in use by another server");
    assert_eq!(server.terminate().0, Some(0));
    bench.write("file", "");
    let impossible = ["serve", "tiny.gguf", "--port", "0", "--data-dir", "file/data"];
    bench.call(&impossible).expect_error(1, "cannot create file/data");
}

/// Results stop fitting in mid-job; the batch waits, and goes on when there is room.
#[cfg(unix)]
#[test]
fn a_full_disk_loses_nothing() {
    let bench = Bench::new();
    let text: String = (0..400).map(openai_line).collect();
    let server = start(&bench, "data");
    let input = server.upload(&text);
    assert_eq!(server.terminate().0, Some(0));
    let args = [
        "serve",
        "tiny.gguf",
        "--port",
        "0",
        "--threads",
        "1",
        "--data-dir",
        "data",
        "--served-model-name",
        "tiny",
    ];
    // 96 KiB: enough for the database's log of a moment, not for all results.
    let server = Served::of(bench.spawn_on_full_disk(192, &args));
    let id = server.start_batch(&input);
    let log = server.wait_for_log("a batch pauses");
    assert!(log.contains("File too large"), "{log}");
    let n_before = n_results(&bench, "data", &input);
    assert!((1..400).contains(&n_before), "{n_before}");
    assert_eq!(server.batch(&id)["status"], "in_progress");
    server.kill();
    let server = start(&bench, "data");
    let batch = server.wait_for_batch(&id);
    assert_eq!(results(&server, &batch).len(), 400);
    assert_eq!(server.terminate().0, Some(0));
}
