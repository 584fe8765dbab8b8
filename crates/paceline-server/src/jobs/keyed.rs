//! Limits of keys for lines that run elsewhere.
//!
//! The routes count what their own engine runs. A line that goes to another executor counts here:
//! as one prompt under way, and with the tokens that its answer says it has cost.

use std::sync::Arc;

use paceline_jobs::runner::Report;
use paceline_jobs::{Executor, Line, Outcome};
use serde::Deserialize;

use super::execute::{NO_KEY_WAIT, outcome_of};
use crate::app::App;

/// Bytes of a line for each token that it is taken to have until its answer says how many.
const BYTES_PER_TOKEN: usize = 4;

/// Another executor, within the limits of lines' keys.
#[derive(Debug)]
pub(super) struct Keyed<E> {
    app: Arc<App>,
    inner: E,
}

impl<E> Keyed<E> {
    pub(super) fn new(app: Arc<App>, inner: E) -> Keyed<E> {
        Keyed { app, inner }
    }
}

impl<E: Executor> Executor for Keyed<E> {
    /// `None` for a line that its key keeps waiting.
    type Task = Option<E::Task>;

    fn room(&self) -> usize {
        self.inner.room()
    }

    fn start(&self, line: Line, report: Report) -> Option<E::Task> {
        let Some(caller) = self.app.keys.holder(&line.owner) else {
            report.send(Outcome::Later(NO_KEY_WAIT));
            return None;
        };
        let n_expected = (line.body.len() / BYTES_PER_TOKEN) as u64;
        match caller.enter(1, n_expected) {
            Ok(share) => {
                let counted = report.after(move |outcome| {
                    // The whole share is kept until here, not its one field.
                    let mut share = share;
                    share.n_tokens = n_tokens(outcome).saturating_sub(n_expected);
                });
                Some(self.inner.start(line, counted))
            }
            Err(error) => {
                report.send(outcome_of(&error, String::new()));
                None
            }
        }
    }
}

/// Prompt and answer, as every route tells them.
fn n_tokens(outcome: &Outcome) -> u64 {
    #[derive(Deserialize)]
    struct Body {
        usage: Usage,
    }
    #[derive(Deserialize)]
    struct Usage {
        total_tokens: u64,
    }
    let Outcome::Answered { body, .. } = outcome else { return 0 };
    serde_json::from_str::<Body>(body.get()).map_or(0, |body| body.usage.total_tokens)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use paceline_jobs::{Endpoint, Finished, Runner, Source, Ticket};
    use serde_json::value::RawValue;

    use super::*;
    use crate::keys::KeyRule;
    use crate::options::ServerOptions;

    /// Lines of one key; those that must wait go to the end.
    struct Lines {
        todo: Vec<Line>,
        n_wanted: usize,
        n_answered: usize,
        n_later: usize,
    }

    impl Source for Lines {
        fn tend(&mut self) -> Vec<u64> {
            Vec::new()
        }

        fn take(&mut self) -> Option<Line> {
            self.todo.pop()
        }

        fn give(&mut self, finished: Vec<Finished>) {
            for ended in finished {
                match ended.outcome {
                    Outcome::Later(_) => {
                        self.n_later += 1;
                        self.todo.insert(0, line(ended.ticket.line));
                    }
                    outcome => {
                        assert!(matches!(outcome, Outcome::Answered { status: 200, .. }));
                        self.n_answered += 1;
                    }
                }
            }
        }

        fn is_over(&self) -> bool {
            self.n_answered == self.n_wanted
        }
    }

    fn line(number: u64) -> Line {
        Line {
            ticket: Ticket { job: 1, line: number },
            owner: Arc::from("ann"),
            endpoint: Endpoint::Completions,
            custom_id: number.to_string(),
            body: "{\"prompt\": \"x\"}".to_owned(),
        }
    }

    /// Answers what it has every few looks.
    #[derive(Default)]
    struct Slow {
        held: RefCell<Vec<Report>>,
        n_looks: RefCell<usize>,
        most: Arc<std::sync::atomic::AtomicUsize>,
    }

    impl Executor for Slow {
        type Task = ();

        fn room(&self) -> usize {
            *self.n_looks.borrow_mut() += 1;
            let mut held = self.held.borrow_mut();
            self.most.fetch_max(held.len(), std::sync::atomic::Ordering::Relaxed);
            if self.n_looks.borrow().is_multiple_of(16) {
                let body = r#"{"usage": {"prompt_tokens": 400, "total_tokens": 1000}}"#;
                for report in held.drain(..) {
                    let body = RawValue::from_string(body.to_owned()).unwrap();
                    let request_id = String::new();
                    report.send(Outcome::Answered { status: 200, request_id, body });
                }
            }
            100
        }

        fn start(&self, _: Line, report: Report) {
            self.held.borrow_mut().push(report);
        }
    }

    /// Runs lines of a key with such limits; returns the most under way, and how often lines
    /// waited.
    fn run(rule: KeyRule, n_lines: u64) -> (Arc<App>, usize, usize) {
        let runtime = crate::start_runtime(1).unwrap();
        let options = ServerOptions { keys: vec![rule], ..ServerOptions::default() };
        let app = App::new(options, None, runtime.handle().clone());
        let slow = Slow::default();
        let most = Arc::clone(&slow.most);
        let todo = (0..n_lines).map(line).collect();
        let source = Lines { todo, n_wanted: n_lines as usize, n_answered: 0, n_later: 0 };
        let source = Runner::new(source, Keyed::new(Arc::clone(&app), slow)).run();
        (app, most.load(std::sync::atomic::Ordering::Relaxed), source.n_later)
    }

    #[test]
    fn a_key_has_no_more_lines_under_way_than_it_may() {
        let rule = KeyRule::new("ann", "sk-ann");
        let (_, most, n_later) = run(KeyRule { max_concurrent: Some(2), ..rule.clone() }, 12);
        assert_eq!(most, 2);
        assert!(n_later > 0);
        let (_, most, n_later) = run(rule, 12);
        assert!(most > 2 && n_later == 0, "{most} {n_later}");
    }

    #[test]
    fn tokens_of_answers_are_counted() {
        let rule = KeyRule::new("ann", "sk-ann");
        for (tokens_per_minute, is_spent) in [(900, true), (2_000_000, false)] {
            let rule = KeyRule { tokens_per_minute: Some(tokens_per_minute), ..rule.clone() };
            let (app, ..) = run(rule, 1);
            let caller = app.keys.holder("ann").unwrap();
            assert_eq!(caller.check().is_err(), is_spent, "{tokens_per_minute}");
        }
    }
}
