//! Moves lines from a [`Source`] through an [`Executor`] and back.
//!
//! The runner is the one loop that all ways of running batches share: the store of a server, a file
//! on the command line, a queue that many machines take from. It keeps just enough lines under way
//! to keep the executor busy, so that whoever else uses it is not behind a flood.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use crate::Endpoint;
use crate::line::Fault;

/// How long changes that nobody told of (time passing, a user's interrupt) may go unnoticed.
const TICK: Duration = Duration::from_millis(100);

/// Results taken in at once.
const AT_ONCE: usize = 1024;

/// Which line of which job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub job: u64,
    pub line: u64,
}

/// A line to be run.
#[derive(Clone, Debug)]
pub struct Line {
    pub ticket: Ticket,
    /// Whose job it is.
    pub owner: Arc<str>,
    pub endpoint: Endpoint,
    pub custom_id: String,
    /// The request's body, JSON.
    pub body: String,
}

/// How a line ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// What the route answered, whether that is a result or an error.
    Answered { status: u16, request_id: String, body: Box<RawValue> },
    /// The route never came to answer.
    Broken(Fault),
    /// There is no room now; the line has not run and may be tried again.
    Later(Duration),
}

#[derive(Clone, Debug)]
pub struct Finished {
    pub ticket: Ticket,
    pub custom_id: String,
    pub outcome: Outcome,
}

/// Where lines come from and results go.
pub trait Source {
    /// Called now and then, and when something was told: does what is due, and names the jobs
    /// whose lines under way shall be given up.
    fn tend(&mut self) -> Vec<u64>;

    /// The next line to run, if there is one now.
    fn take(&mut self) -> Option<Line>;

    /// Takes results over. Each line that was taken comes back once, unless its job was given up.
    fn give(&mut self, finished: Vec<Finished>);

    /// Whether nothing is left to run and nothing will come.
    fn is_over(&self) -> bool;
}

/// What runs lines.
pub trait Executor {
    /// A line under way. Dropping it gives the line up.
    type Task;

    /// How many lines keep it busy; none while it cannot run any.
    fn room(&self) -> usize;

    /// Begins a line and returns at once.
    fn start(&self, line: Line, report: Report) -> Self::Task;
}

/// Something the runner should know.
#[derive(Debug)]
pub enum News {
    Ended(Finished),
    /// The source has changed.
    Look,
    /// Take in what has ended, give up the rest.
    Stop,
}

/// The end of a line, on its way back. A report that is dropped says that the line broke.
#[derive(Debug)]
pub struct Report {
    ended: Option<(Ticket, String)>,
    to: Sender<News>,
    first: Option<First>,
}

/// What hears of the end before the runner does.
struct First(Box<dyn FnOnce(&Outcome) + Send>);

impl fmt::Debug for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("First")
    }
}

impl Report {
    /// The same report, which tells `first` of the end before the runner. For whoever passes a
    /// line on to another executor.
    pub fn after(mut self, first: impl FnOnce(&Outcome) + Send + 'static) -> Report {
        self.first = Some(First(Box::new(first)));
        self
    }

    pub fn send(mut self, outcome: Outcome) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Outcome) {
        if let Some((ticket, custom_id)) = self.ended.take() {
            if let Some(First(first)) = self.first.take() {
                first(&outcome);
            }
            // A runner that has stopped wants to know nothing.
            let _ = self.to.send(News::Ended(Finished { ticket, custom_id, outcome }));
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.tell(Outcome::Broken(Fault::new("server_error", "the line ended unexpectedly")));
    }
}

#[derive(Debug)]
pub struct Runner<S, E: Executor> {
    source: S,
    executor: E,
    running: HashMap<Ticket, E::Task>,
    inbox: Receiver<News>,
    sender: Sender<News>,
    tended: Option<Instant>,
}

impl<S: Source, E: Executor> Runner<S, E> {
    pub fn new(source: S, executor: E) -> Runner<S, E> {
        Runner::listening(source, executor, channel())
    }

    /// A runner that others can already reach through the sender's copies.
    pub fn listening(
        source: S,
        executor: E,
        (sender, inbox): (Sender<News>, Receiver<News>),
    ) -> Runner<S, E> {
        Runner { source, executor, running: HashMap::new(), inbox, sender, tended: None }
    }

    /// Reaches the runner from other threads.
    pub fn sender(&self) -> Sender<News> {
        self.sender.clone()
    }

    /// Runs until the source is over or somebody says [`News::Stop`]; returns the source.
    pub fn run(mut self) -> S {
        loop {
            self.tend();
            self.fill();
            if self.source.is_over() || !self.listen() {
                return self.source;
            }
        }
    }

    fn tend(&mut self) {
        if self.tended.is_some_and(|tended| tended.elapsed() < TICK) {
            return;
        }
        self.tended = Some(Instant::now());
        for job in self.source.tend() {
            self.running.retain(|ticket, _| ticket.job != job);
        }
    }

    fn fill(&mut self) {
        while self.running.len() < self.executor.room() {
            let Some(line) = self.source.take() else { return };
            let ended = Some((line.ticket, line.custom_id.clone()));
            let report = Report { ended, to: self.sender.clone(), first: None };
            let ticket = line.ticket;
            let task = self.executor.start(line, report);
            self.running.insert(ticket, task);
        }
    }

    /// Waits for news and takes in all there is. False at the end.
    fn listen(&mut self) -> bool {
        let mut finished = Vec::new();
        let mut is_stopping = false;
        let mut next = self.inbox.recv_timeout(TICK);
        loop {
            match next {
                Ok(News::Ended(ended)) => {
                    // What was given up is not heard.
                    let is_running = self.running.remove(&ended.ticket).is_some();
                    finished.extend(is_running.then_some(ended));
                }
                Ok(News::Look) => self.tended = None,
                Ok(News::Stop) => is_stopping = true,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
            if finished.len() >= AT_ONCE {
                break;
            }
            next = self.inbox.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        if !finished.is_empty() {
            self.source.give(finished);
        }
        !is_stopping
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Two jobs of four lines; the second is given up at the second look.
    #[derive(Default)]
    struct TwoJobs {
        n_looks: usize,
        todo: Vec<Ticket>,
        given: Vec<Finished>,
    }

    impl Source for TwoJobs {
        fn tend(&mut self) -> Vec<u64> {
            self.n_looks += 1;
            if self.n_looks == 2 { vec![2] } else { Vec::new() }
        }

        fn take(&mut self) -> Option<Line> {
            self.todo.pop().map(|ticket| Line {
                ticket,
                owner: Arc::from(""),
                endpoint: Endpoint::Completions,
                custom_id: ticket.line.to_string(),
                body: "{}".to_owned(),
            })
        }

        fn give(&mut self, finished: Vec<Finished>) {
            self.given.extend(finished);
        }

        fn is_over(&self) -> bool {
            self.given.len() == 4
        }
    }

    /// Holds the second job's reports, answers half of the first's, and drops the other half.
    #[derive(Default)]
    struct Fake {
        held: RefCell<Vec<Report>>,
    }

    impl Executor for Fake {
        type Task = ();

        fn room(&self) -> usize {
            6
        }

        fn start(&self, line: Line, report: Report) {
            if line.ticket.job == 2 {
                self.held.borrow_mut().push(report);
            } else if line.ticket.line < 2 {
                report.send(Outcome::Later(Duration::ZERO));
            }
        }
    }

    #[test]
    fn what_is_dropped_broke_and_what_is_given_up_is_not_heard() {
        let ticket = |job| move |line| Ticket { job, line };
        let todo = (0..4).map(ticket(1)).chain((0..4).map(ticket(2))).collect();
        let runner = Runner::new(TwoJobs { todo, ..TwoJobs::default() }, Fake::default());
        let source = runner.run();
        assert!(source.given.iter().all(|ended| ended.ticket.job == 1));
        let is_broken = |ended: &&Finished| matches!(ended.outcome, Outcome::Broken(_));
        assert_eq!(source.given.iter().filter(is_broken).count(), 2);
    }
}
