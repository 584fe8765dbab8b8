//! Both ends of a queue on a real `nats-server`, with nothing that computes behind them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod nats_server;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nats_server::NatsServer;
use paceline_jobs::nats::{
    Address, ModelId, NatsError, RemoteExecutor, SenderId, StopWorker, WorkerOptions, WorkerSource,
};
use paceline_jobs::runner::Report;
use paceline_jobs::{Endpoint, Executor, Finished, Line, Outcome, Runner, Source, Ticket};
use serde_json::value::RawValue;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

fn line(i: u64, body: String) -> Line {
    Line {
        ticket: Ticket { job: 1, line: i },
        owner: Arc::from(""),
        endpoint: Endpoint::Completions,
        custom_id: format!("id-{i}"),
        body,
    }
}

fn lines(n: u64) -> Vec<Line> {
    (0..n).map(|i| line(i, format!("{{\"n\":{i}}}"))).collect()
}

/// Lines of one job; over when `n_wanted` results are there. Gives all others up on the way.
struct Job {
    todo: Vec<Line>,
    n_wanted: usize,
    gives_up: bool,
    outcomes: BTreeMap<u64, Outcome>,
    start: Instant,
}

impl Job {
    fn of(todo: Vec<Line>) -> Job {
        let n_wanted = todo.len();
        let (outcomes, start) = (BTreeMap::new(), Instant::now());
        Job { todo, n_wanted, gives_up: false, outcomes, start }
    }

    fn run(self, executor: RemoteExecutor) -> BTreeMap<u64, Outcome> {
        Runner::new(self, executor).run().outcomes
    }
}

impl Source for Job {
    fn tend(&mut self) -> Vec<u64> {
        assert!(self.start.elapsed() < PATIENCE, "only {:?}", self.outcomes);
        if self.gives_up && self.todo.is_empty() { vec![1] } else { Vec::new() }
    }

    fn take(&mut self) -> Option<Line> {
        self.todo.pop()
    }

    fn give(&mut self, finished: Vec<Finished>) {
        for ended in finished {
            assert_eq!(ended.custom_id, format!("id-{}", ended.ticket.line));
            assert!(self.outcomes.insert(ended.ticket.line, ended.outcome).is_none());
        }
    }

    fn is_over(&self) -> bool {
        self.outcomes.len() >= self.n_wanted
    }
}

/// Answers each line with its own body; `{"n":7}` it puts off at first.
#[derive(Default)]
struct Echo {
    has_put_off: std::cell::Cell<bool>,
    n_run: Arc<std::sync::atomic::AtomicUsize>,
}

impl Executor for Echo {
    type Task = ();

    fn room(&self) -> usize {
        3
    }

    fn start(&self, line: Line, report: Report) {
        if line.body == "{\"n\":7}" && !self.has_put_off.replace(true) {
            return report.send(Outcome::Later(Duration::from_millis(10)));
        }
        self.n_run.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let body = RawValue::from_string(line.body).unwrap();
        report.send(Outcome::Answered { status: 200, request_id: line.custom_id, body });
    }
}

fn options(max_deliveries: u32) -> WorkerOptions {
    WorkerOptions { redeliver_after: Duration::from_secs(1), max_deliveries }
}

fn model(name: &str) -> ModelId {
    ModelId { name: name.to_owned(), fingerprint: format!("fp-of-{name}") }
}

struct Working {
    stop: StopWorker,
    thread: std::thread::JoinHandle<()>,
    n_run: Arc<std::sync::atomic::AtomicUsize>,
}

impl Working {
    fn start(address: &Address, max_deliveries: u32) -> Working {
        let stop = StopWorker::default();
        let source = WorkerSource::connect(address, options(max_deliveries), stop.clone()).unwrap();
        source.serve(model("a")).unwrap();
        let echo = Echo::default();
        let n_run = Arc::clone(&echo.n_run);
        let thread = std::thread::spawn(move || {
            let wakes = source.wakes();
            let runner = Runner::new(source, echo);
            wakes(runner.sender());
            drop(runner.run());
        });
        Working { stop, thread, n_run }
    }

    /// Returns how many lines it has run.
    fn stop(self) -> usize {
        self.stop.stop();
        self.thread.join().unwrap();
        self.n_run.load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn is_answer(outcome: &Outcome, i: u64) -> bool {
    matches!(outcome, Outcome::Answered { status: 200, request_id, body }
        if *request_id == format!("id-{i}") && body.get() == format!("{{\"n\":{i}}}"))
}

fn fault_code(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Broken(fault) => &fault.code,
        _ => "",
    }
}

#[test]
fn lines_go_out_and_results_come_back() {
    let Some(server) = NatsServer::start() else { return };
    let address: Address = server.url().parse().unwrap();
    let workers = [Working::start(&address, 5), Working::start(&address, 5)];
    let elsewhere: Address = format!("{}/elsewhere", server.url()).parse().unwrap();
    let other = Working::start(&elsewhere, 5);
    let executor = RemoteExecutor::connect(&address, &SenderId::for_once()).unwrap();
    let mut todo = lines(200);
    todo.push(line(200, format!("{{\"n\":\"{}\"}}", "x".repeat(2 << 20))));
    let outcomes = Job::of(todo).run(executor);
    assert!((0..200).all(|i| is_answer(&outcomes[&i], i)));
    assert_eq!(fault_code(&outcomes[&200]), "line_too_large");
    let n_run: usize = workers.map(Working::stop).iter().sum();
    assert_eq!((n_run, other.stop()), (200, 0));
}

/// Who takes lines and dies has them taken away; a line that nobody survives is an error.
#[test]
fn a_line_that_no_worker_survives_fails() {
    let Some(server) = NatsServer::start() else { return };
    let address: Address = server.url().parse().unwrap();
    let executor = RemoteExecutor::connect(&address, &SenderId::for_once()).unwrap();
    let job = std::thread::spawn(move || Job::of(lines(1)).run(executor));
    for _ in 0..2 {
        let mut dying = WorkerSource::connect(&address, options(2), StopWorker::default()).unwrap();
        dying.serve(model("a")).unwrap();
        let start = Instant::now();
        while dying.take().is_none() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let last = Working::start(&address, 2);
    let outcomes = job.join().unwrap();
    assert_eq!(fault_code(&outcomes[&0]), "workers_lost");
    assert_eq!(last.stop(), 0, "it was not run again");
}

/// A sender that ends finds what was done meanwhile when it starts again, and nothing is run twice.
#[test]
fn a_sender_goes_on_where_it_stopped() {
    let Some(server) = NatsServer::start() else { return };
    let address: Address = server.url().parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sender = SenderId::kept_in(&dir.path().join("sender")).unwrap();
    // Nobody is there to answer: what it gets to know is that one line is too large.
    let executor = RemoteExecutor::connect(&address, &sender).unwrap();
    let mut todo = vec![line(50, format!("{{\"n\":\"{}\"}}", "x".repeat(2 << 20)))];
    todo.extend(lines(50));
    let first = Job { n_wanted: 1, ..Job::of(todo) }.run(executor);
    assert_eq!(first.len(), 1);
    let worker = Working::start(&address, 5);
    let executor = RemoteExecutor::connect(&address, &sender).unwrap();
    let outcomes = Job::of(lines(50)).run(executor);
    assert!((0..50).all(|i| is_answer(&outcomes[&i], i)));
    assert_eq!(worker.stop(), 50);
}

/// Lines of a job that was given up do not run, and can be sent again later.
#[test]
fn what_is_given_up_is_taken_back() {
    let Some(server) = NatsServer::start() else { return };
    let address: Address = server.url().parse().unwrap();
    let sender = SenderId::for_once();
    let executor = RemoteExecutor::connect(&address, &sender).unwrap();
    let mut todo = lines(3);
    // Of another job, so that it survives; it goes last, when the others are on the queue.
    todo.insert(0, Line { ticket: Ticket { job: 2, line: 9 }, ..line(9, "{\"n\":9}".to_owned()) });
    let job = Job { n_wanted: 1, gives_up: true, ..Job::of(todo) };
    let job = std::thread::spawn(move || job.run(executor));
    wait_for_only(&server, "{\"n\":9}");
    let worker = Working::start(&address, 5);
    let outcomes = job.join().unwrap();
    assert!(is_answer(&outcomes[&9], 9));
    assert_eq!(worker.stop(), 1);
    let worker = Working::start(&address, 5);
    let executor = RemoteExecutor::connect(&address, &sender).unwrap();
    let outcomes = Job::of(lines(3)).run(executor);
    assert!((0..3).all(|i| is_answer(&outcomes[&i], i)));
    assert_eq!(worker.stop(), 3);
}

/// Waits until the queue holds a single line, which says `text`.
fn wait_for_only(server: &NatsServer, text: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = async_nats::connect(server.url()).await.unwrap();
        let queue = async_nats::jetstream::new(client);
        let start = Instant::now();
        loop {
            let lines = queue.get_stream("paceline-lines").await.unwrap();
            let held = lines.cached_info().state.clone();
            let first = lines.get_raw_message(held.first_sequence).await;
            let is_it = |line: &[u8]| std::str::from_utf8(line).unwrap().contains(text);
            if held.messages == 1 && first.is_ok_and(|line| is_it(&line.payload)) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{held:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// A queue has one model: workers with another do not come to it, and lines for another are refused
/// by those that are there. When these have gone, others may have the queue.
#[test]
fn workers_of_a_queue_have_the_model_that_lines_are_for() {
    let Some(server) = NatsServer::start() else { return };
    let address: Address = server.url().parse().unwrap();
    let worker = Working::start(&address, 5);
    let stranger = || WorkerSource::connect(&address, options(5), StopWorker::default()).unwrap();
    let refused = stranger().serve(model("b")).unwrap_err();
    assert!(matches!(&refused, NatsError::OtherModel { theirs, ours, .. }
        if **theirs == model("a") && **ours == model("b")));
    assert!(refused.to_string().contains("another queue"), "{refused}");
    for (asked, is_answered) in [(model("a"), true), (model("b"), false)] {
        let executor = RemoteExecutor::connect(&address, &SenderId::for_once()).unwrap();
        executor.ask_for(asked);
        let outcomes = Job::of(lines(10)).run(executor);
        assert!((0..10).all(|i| is_answer(&outcomes[&i], i) == is_answered));
        let is_refused = |outcome| fault_code(outcome) == "wrong_model";
        assert!(is_answered || outcomes.values().all(is_refused));
    }
    assert_eq!(worker.stop(), 10, "what is for another model was not run");
    // What the last worker asked for last stands for some seconds more.
    let start = Instant::now();
    while let Err(error) = stranger().serve(model("b")) {
        assert!(start.elapsed() < PATIENCE, "{error}");
    }
}
