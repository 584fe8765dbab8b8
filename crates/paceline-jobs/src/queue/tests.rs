//! The queue under a test that plays the runner: it takes lines, answers some, and is "killed" by
//! being dropped and made again from the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::channel;

use serde_json::Value;
use serde_json::value::RawValue;

use super::*;
use crate::Endpoint;
use crate::line::Fault;
use crate::runner::Outcome;
use crate::store::{NewBatch, NewFile};

fn options() -> QueueOptions {
    QueueOptions { max_lines: 1000, max_concurrency: usize::MAX, retention: 1000 }
}

fn queue(store: &Arc<Store>) -> JobQueue {
    let check: Arc<CheckBody> = Arc::new(|head| match head.model.as_deref() {
        None | Some("tiny") => Ok(()),
        Some(other) => Err(Fault::of_param("model", "model_not_found", other)),
    });
    JobQueue::new(Arc::clone(store), check, options(), channel().0).unwrap()
}

fn request(id: &str) -> String {
    format!(
        "{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"/v1/completions\",\
         \"body\":{{\"model\":\"tiny\",\"prompt\":\"p {id}\"}}}}\n"
    )
}

struct Made<'a> {
    id: &'a str,
    text: &'a str,
    created_at: u64,
    max_concurrency: Option<u32>,
}

fn create(store: &Store, made: Made<'_>) -> Batch {
    let file = format!("file-{}", made.id);
    let mut upload = store.upload(file.clone()).unwrap();
    upload.write(made.text.as_bytes()).unwrap();
    let meta = NewFile {
        owner: "ann".to_owned(),
        filename: "in".to_owned(),
        purpose: "batch".to_owned(),
        created_at: made.created_at,
        expires_at: None,
    };
    upload.finish(meta).unwrap();
    let new = NewBatch {
        id: made.id.to_owned(),
        owner: "ann".to_owned(),
        endpoint: Endpoint::Completions,
        input_file_id: file,
        window: "1h".parse().unwrap(),
        metadata: BTreeMap::new(),
        max_concurrency: made.max_concurrency,
        output_name: format!("{}-out", made.id),
        errors_name: format!("{}-err", made.id),
        created_at: made.created_at,
    };
    store.create_batch(&new).unwrap()
}

fn create_now(store: &Store, id: &str, text: &str) -> Batch {
    create(store, Made { id, text, created_at: unix_seconds(), max_concurrency: None })
}

fn open(dir: &Path) -> Arc<Store> {
    Arc::new(Store::open(dir).unwrap())
}

fn status(store: &Store, id: &str) -> Status {
    store.batch(None, id).unwrap().unwrap().status
}

/// Looks after the queue until something holds.
fn tend_until(queue: &mut JobQueue, mut holds: impl FnMut(&JobQueue) -> bool) {
    for _ in 0..2000 {
        queue.tend();
        if holds(queue) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it never came");
}

/// Odd lines fail.
fn answer(line: &Line) -> Finished {
    let status = if line.ticket.line.is_multiple_of(2) { 200 } else { 400 };
    let body = RawValue::from_string(format!("{{\"echo\":{}}}", line.body)).unwrap();
    let outcome = Outcome::Answered { status, request_id: "r".to_owned(), body };
    Finished { ticket: line.ticket, custom_id: line.custom_id.clone(), outcome }
}

fn run_to_end(queue: &mut JobQueue, store: &Store, id: &str) {
    tend_until(queue, |_| true);
    for _ in 0..2000 {
        while let Some(line) = queue.take() {
            queue.give(vec![answer(&line)]);
        }
        if status(store, id) == Status::Completed {
            return;
        }
        queue.tend();
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it never ended");
}

fn lines(store: &Store, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(store.path_of(file)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A small generator with a state of 64 bits.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn each_line_once_through_kills_at_any_moment() {
    for seed in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..40).map(|i| request(&format!("id-{i}"))).collect();
        let store = open(dir.path());
        create_now(&store, "batch_a", &text);
        drop(store);
        let mut random = seed;
        for _ in 0..4 {
            let store = open(dir.path());
            let mut queue = queue(&store);
            let n_looks = next(&mut random) % 4;
            (0..n_looks).for_each(|_| _ = queue.tend());
            if next(&mut random).is_multiple_of(2) {
                tend_until(&mut queue, |queue| !queue.jobs.is_empty());
            }
            let n_taken = next(&mut random) % 12;
            let taken: Vec<Line> = (0..n_taken).map_while(|_| queue.take()).collect();
            let n_given = next(&mut random) as usize % (taken.len() + 1);
            queue.give(taken[..n_given].iter().map(answer).collect());
            drop((queue, store));
            // A kill in the middle of a write.
            for name in ["batch_a-out", "batch_a-err"] {
                let path = dir.path().join("files").join(name);
                if path.exists() && next(&mut random).is_multiple_of(2) {
                    let mut text = std::fs::read(&path).unwrap();
                    text.extend_from_slice(b"{\"id\":\"batch_req_a_");
                    std::fs::write(&path, text).unwrap();
                }
            }
        }
        let store = open(dir.path());
        run_to_end(&mut queue(&store), &store, "batch_a");
        let (good, bad) = (lines(&store, "batch_a-out"), lines(&store, "batch_a-err"));
        assert_eq!((good.len(), bad.len()), (20, 20), "seed {seed}");
        let mut ids: Vec<&str> =
            good.iter().chain(&bad).map(|line| line["custom_id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 40, "seed {seed}");
        let batch = store.batch(None, "batch_a").unwrap().unwrap();
        assert_eq!(batch.counts, Counts { total: 40, completed: 20, failed: 20 });
        let meta = store.file(None, "batch_a-out").unwrap().unwrap();
        assert_eq!(meta.bytes, std::fs::metadata(store.path_of("batch_a-out")).unwrap().len());
    }
}

#[test]
fn the_runner_hears_when_a_batch_can_run() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    create_now(&store, "batch_a", &request("a"));
    let (news, inbox) = channel();
    let check: Arc<CheckBody> = Arc::new(|_| Ok(()));
    let mut queue = JobQueue::new(Arc::clone(&store), check, options(), news).unwrap();
    queue.tend();
    let heard = inbox.recv_timeout(Duration::from_secs(60));
    assert!(matches!(heard, Ok(News::Look)), "{heard:?}");
    queue.tend();
    assert!(queue.take().is_some(), "the first look after that finds it");
}

#[test]
fn bad_files_fail_before_anything_runs() {
    let good = request("a");
    let long: String = (0..1001).map(|i| request(&i.to_string())).collect();
    let other = good.replace("/v1/completions", "/v1/chat/completions").replace("\"a\"", "\"b\"");
    let model = good.replace("tiny", "huge");
    let streamed = good.replace("\"prompt\"", "\"stream\":true,\"prompt\"");
    let cases: [(&str, String, Option<u64>, &str); 10] = [
        ("empty", String::new(), None, "empty_file"),
        ("blank", "\n \n".to_owned(), None, "empty_file"),
        ("long", long, None, "too_many_requests"),
        ("torn", format!("{good}{{\"custom_id\""), Some(2), "invalid_json_line"),
        ("bytes", format!("\n{good}\u{0}\n"), Some(3), "invalid_json_line"),
        ("twice", format!("{good}\n{good}"), Some(3), "duplicate_custom_id"),
        ("mixed", format!("{good}{other}"), Some(2), "mismatched_endpoint"),
        ("model", model, Some(1), "model_not_found"),
        ("stream", streamed, Some(1), "invalid_request"),
        ("method", good.replace("POST", "PUT"), Some(1), "invalid_method"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut queue = queue(&store);
    for (id, text, line, code) in cases {
        create_now(&store, id, &text);
        tend_until(&mut queue, |_| status(&store, id) != Status::Validating);
        let batch = store.batch(None, id).unwrap().unwrap();
        assert_eq!(batch.status, Status::Failed, "{id}");
        let bad = &batch.errors[0];
        assert_eq!((bad.line, bad.fault.code.as_ref()), (line, code), "{id}: {bad:?}");
        assert!(batch.failed_at.is_some() && !bad.fault.message.is_empty());
    }
    assert!(queue.take().is_none());
    let gone = create_now(&store, "gone", &good);
    std::fs::remove_file(store.path_of(&gone.input_file_id)).unwrap();
    tend_until(&mut queue, |_| status(&store, "gone") == Status::Failed);
    // A file of nonsense is not told of line by line for ever.
    create_now(&store, "noise", &"x\n".repeat(900));
    tend_until(&mut queue, |_| status(&store, "noise") == Status::Failed);
    assert_eq!(store.batch(None, "noise").unwrap().unwrap().errors.len(), 100);
}

#[test]
fn batches_take_turns_and_keep_to_their_caps() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let text: String = (0..9).map(|i| request(&i.to_string())).collect();
    let now = unix_seconds();
    let capped = Made { id: "capped", text: &text, created_at: now, max_concurrency: Some(2) };
    let capped = create(&store, capped).seq;
    create_now(&store, "free", &text);
    let mut queue = queue(&store);
    tend_until(&mut queue, |queue| queue.jobs.len() == 2);
    let taken: Vec<Line> = std::iter::from_fn(|| queue.take()).collect();
    let jobs: Vec<bool> = taken.iter().map(|line| line.ticket.job == capped).collect();
    assert_eq!(jobs.iter().filter(|&&is_capped| is_capped).count(), 2);
    assert_eq!(taken.len(), 11);
    assert_ne!(jobs[0], jobs[1], "they take turns");
    assert_ne!(jobs[2], jobs[3], "they take turns");
    queue.give(taken.iter().map(answer).collect());
    assert_eq!(status(&store, "free"), Status::Completed);
    let next = queue.take().unwrap();
    assert_eq!(next.ticket.job, capped);
}

#[test]
fn a_line_without_room_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    create_now(&store, "batch_a", &request("only"));
    let mut queue = queue(&store);
    tend_until(&mut queue, |queue| !queue.jobs.is_empty());
    let line = queue.take().unwrap();
    let later = Outcome::Later(Duration::from_millis(20));
    let (ticket, custom_id) = (line.ticket, line.custom_id.clone());
    queue.give(vec![Finished { ticket, custom_id, outcome: later }]);
    assert!(queue.take().is_none(), "not at once");
    let mut again = None;
    tend_until(&mut queue, |_| true);
    for _ in 0..2000 {
        again = queue.take();
        if again.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(again.unwrap().ticket, ticket);
}

#[test]
fn cancelled_and_expired_batches_keep_their_results() {
    for (id, is_cancelled) in [("cancelled", true), ("expired", false)] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let text: String = (0..6).map(|i| request(&i.to_string())).collect();
        // An hour's window that is over in a moment: the batch still gets to begin.
        let created_at = unix_seconds() - if is_cancelled { 0 } else { 3598 };
        create(&store, Made { id, text: &text, created_at, max_concurrency: None });
        let mut queue = queue(&store);
        tend_until(&mut queue, |queue| !queue.jobs.is_empty());
        let taken: Vec<Line> = (0..4).map_while(|_| queue.take()).collect();
        queue.give(taken[..3].iter().map(answer).collect());
        if is_cancelled {
            assert!(store.cancel(id, unix_seconds()).unwrap());
        }
        let ended = if is_cancelled { Status::Cancelled } else { Status::Expired };
        let mut given_up = Vec::new();
        for _ in 0..2000 {
            given_up.extend(queue.tend());
            if status(&store, id) == ended {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let batch = store.batch(None, id).unwrap().unwrap();
        assert_eq!((batch.status, given_up), (ended, vec![batch.seq]));
        assert!(queue.take().is_none());
        // What comes in late is not heard.
        queue.give(vec![answer(&taken[3])]);
        assert_eq!(lines(&store, batch.output_file_id.as_ref().unwrap()).len(), 2);
        let errors = lines(&store, batch.error_file_id.as_ref().unwrap());
        let n_expired =
            errors.iter().filter(|line| line["error"]["code"] == "batch_expired").count();
        assert_eq!((errors.len(), n_expired), if is_cancelled { (1, 0) } else { (4, 3) });
        assert_eq!(batch.counts.total, 6);
    }
}

#[test]
fn a_batch_for_a_model_that_left_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    create_now(&store, "batch_a", &request("a"));
    let mut first = queue(&store);
    tend_until(&mut first, |queue| !queue.jobs.is_empty());
    drop(first);
    let check: Arc<CheckBody> = Arc::new(|_| Err(Fault::new("model_not_found", "gone")));
    let mut other = JobQueue::new(Arc::clone(&store), check, options(), channel().0).unwrap();
    tend_until(&mut other, |queue| !queue.held.is_empty());
    assert_eq!(status(&store, "batch_a"), Status::InProgress);
    drop(other);
    run_to_end(&mut queue(&store), &store, "batch_a");
}
