//! The store's batches as a [`Source`] of lines.
//!
//! Batches take turns, line by line, so that a short one does not wait behind a long one. All that
//! must survive a kill is in the store and in the files of results; this holds what is needed to
//! run, and is made anew from those at each start.

mod active;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::JobsError;
use crate::prepare::{Plan, Prepared, Preparer};
use crate::runner::{Finished, Line, News, Source};
use crate::store::{BadLine, Batch, Counts, Ending, Status, Store};
use active::ActiveJob;

pub use crate::prepare::CheckBody;

/// How often results are synced to the disk and counts to the database. A kill loses nothing of
/// either; a power cut loses at most this much work, which is done again.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How often files past their time are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How long to leave a job alone after the disk or the database failed it.
const PAUSE: Duration = Duration::from_secs(2);

/// How long to leave a batch alone that cannot go on: its model or its files are not there.
const HOLD: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Requests a batch may have.
    pub max_lines: usize,
    /// Lines of one batch that may be under way at once.
    pub max_concurrency: usize,
    /// Seconds that ended batches and their results are kept.
    pub retention: u64,
}

#[derive(Debug)]
pub struct JobQueue {
    store: Arc<Store>,
    options: QueueOptions,
    jobs: Vec<ActiveJob>,
    /// Whose turn it is.
    turn: usize,
    /// Batches that are being prepared, on a thread of their own.
    preparing: HashSet<u64>,
    /// Batches that could not be prepared, and when to try again.
    held: HashMap<u64, Instant>,
    preparer: Preparer,
    synced: Instant,
    swept: Option<Instant>,
}

impl JobQueue {
    /// `check` says whether a request could be run here at all; `news` go to the runner.
    pub fn new(
        store: Arc<Store>,
        check: Arc<CheckBody>,
        options: QueueOptions,
        news: Sender<News>,
    ) -> std::io::Result<JobQueue> {
        let preparer = Preparer::start(Arc::clone(&store), check, options.max_lines, news)?;
        Ok(JobQueue {
            store,
            options,
            jobs: Vec::new(),
            turn: 0,
            preparing: HashSet::new(),
            held: HashMap::new(),
            preparer,
            synced: Instant::now(),
            swept: None,
        })
    }

    /// Takes in batches that are ready to run, or never will be.
    fn receive_prepared(&mut self, now: u64) {
        while let Some(Prepared { batch, plan }) = self.preparer.next() {
            self.preparing.remove(&batch.seq);
            let (id, seq) = (batch.id.clone(), batch.seq);
            if let Err(error) = self.admit(batch, plan, now) {
                tracing::error!(batch = id, %error, "a batch waits");
                self.held.insert(seq, Instant::now() + HOLD);
            }
        }
    }

    fn admit(
        &mut self,
        mut batch: Batch,
        plan: Result<Result<Plan, Vec<BadLine>>, JobsError>,
        now: u64,
    ) -> Result<(), JobsError> {
        let plan = match plan? {
            Ok(plan) => plan,
            Err(bad) => {
                tracing::info!(batch = batch.id, n_bad = bad.len(), "a batch failed validation");
                return self.store.fail(batch.seq, &bad, now);
            }
        };
        if batch.status == Status::Validating {
            if !self.store.begin(batch.seq, plan.counts.total, now)? {
                // Cancelled meanwhile: the next look at the store ends it.
                return Ok(());
            }
            batch.status = Status::InProgress;
        }
        tracing::info!(
            batch = batch.id,
            total = plan.counts.total,
            done = plan.counts.completed + plan.counts.failed,
            "a batch runs"
        );
        self.held.remove(&batch.seq);
        self.jobs.push(ActiveJob::new(batch, plan, self.options.max_concurrency));
        Ok(())
    }

    /// Looks at a batch as the store has it. True if its lines under way are to be given up.
    fn look_at(&mut self, batch: Batch, now: u64) -> Result<bool, JobsError> {
        let is_late = batch.expires_at <= now && batch.status != Status::Finalizing;
        let ending = match batch.status {
            Status::Cancelling => Some(Status::Cancelled),
            _ if is_late => Some(Status::Expired),
            _ => None,
        };
        let active = self.jobs.iter().position(|job| job.batch.seq == batch.seq);
        match (active, ending) {
            (Some(place), Some(status)) => {
                self.end(place, status, now)?;
                Ok(true)
            }
            (None, Some(status)) if self.cannot_begin(&batch) => {
                self.end_unbegun(&batch, status, now)?;
                Ok(false)
            }
            (None, _) => {
                self.begin_preparing(batch);
                Ok(false)
            }
            (Some(_), None) => Ok(false),
        }
    }

    /// Whether a batch has not begun, or cannot go on.
    fn cannot_begin(&self, batch: &Batch) -> bool {
        !self.preparing.contains(&batch.seq)
            && (batch.in_progress_at.is_none() || self.held.contains_key(&batch.seq))
    }

    fn begin_preparing(&mut self, batch: Batch) {
        let is_held = self.held.get(&batch.seq).is_some_and(|until| *until > Instant::now());
        if !is_held && self.preparing.insert(batch.seq) {
            self.preparer.begin(batch);
        }
    }

    fn end_unbegun(&self, batch: &Batch, status: Status, now: u64) -> Result<(), JobsError> {
        let bytes = |name: &str| {
            std::fs::metadata(self.store.path_of(name)).map_or(0, |metadata| metadata.len())
        };
        let (output, errors) = (bytes(&batch.output_name), bytes(&batch.errors_name));
        self.store.finish(batch, &self.ending(status, batch.counts, (output, errors), now))
    }

    fn ending(&self, status: Status, counts: Counts, bytes: (u64, u64), now: u64) -> Ending {
        Ending {
            status,
            counts,
            output_bytes: bytes.0,
            error_bytes: bytes.1,
            now,
            files_expire_at: Some(now.saturating_add(self.options.retention)),
        }
    }

    /// Ends an active job; it is gone only if that worked.
    fn end(&mut self, place: usize, status: Status, now: u64) -> Result<(), JobsError> {
        let job = &mut self.jobs[place];
        if status == Status::Expired {
            job.expire_rest()?;
        }
        if status == Status::Completed && !self.store.begin_finalizing(job.batch.seq, now)? {
            return Ok(());
        }
        job.sync()?;
        let (counts, bytes) = (job.counts, job.bytes());
        let ending = self.ending(status, counts, bytes, now);
        self.store.finish(&self.jobs[place].batch, &ending)?;
        let job = self.jobs.swap_remove(place);
        job.remove_empty_files();
        tracing::info!(
            batch = job.batch.id,
            status = status.name(),
            completed = counts.completed,
            failed = counts.failed,
            "a batch has ended"
        );
        Ok(())
    }

    fn finish_done(&mut self, now: u64) {
        let mut place = 0;
        while place < self.jobs.len() {
            let job = &self.jobs[place];
            if !job.is_done() || job.is_paused() {
                place += 1;
                continue;
            }
            let n_jobs = self.jobs.len();
            if let Err(error) = self.end(place, Status::Completed, now) {
                self.jobs[place].pause(&error, PAUSE);
            }
            place += usize::from(self.jobs.len() == n_jobs);
        }
    }

    fn keep_house(&mut self, now: u64) {
        if self.synced.elapsed() >= SYNC_EVERY {
            self.synced = Instant::now();
            for job in &mut self.jobs {
                let seq = job.batch.seq;
                let noted = job.sync().and_then(|()| match job.take_new_counts() {
                    Some(counts) => self.store.set_counts(seq, counts),
                    None => Ok(()),
                });
                if let Err(error) = noted {
                    tracing::error!(batch = job.batch.id, %error, "progress could not be saved");
                }
            }
        }
        if self.swept.is_none_or(|swept| swept.elapsed() >= SWEEP_EVERY) {
            self.swept = Some(Instant::now());
            if let Err(error) = self.store.sweep(now, self.options.retention) {
                tracing::error!(%error, "old files could not be removed");
            }
        }
    }
}

impl Source for JobQueue {
    fn tend(&mut self) -> Vec<u64> {
        let now = unix_seconds();
        self.receive_prepared(now);
        let unfinished = match self.store.unfinished() {
            Ok(unfinished) => unfinished,
            Err(error) => {
                tracing::error!(%error, "the batches could not be read");
                return Vec::new();
            }
        };
        let mut given_up = Vec::new();
        for batch in unfinished {
            let (seq, id) = (batch.seq, batch.id.clone());
            match self.look_at(batch, now) {
                Ok(is_over) => given_up.extend(is_over.then_some(seq)),
                Err(error) => tracing::error!(batch = id, %error, "a batch could not be ended"),
            }
        }
        self.finish_done(now);
        self.keep_house(now);
        given_up
    }

    fn take(&mut self) -> Option<Line> {
        for _ in 0..self.jobs.len() {
            let place = self.turn % self.jobs.len();
            self.turn = place + 1;
            let job = &mut self.jobs[place];
            match job.take() {
                Ok(Some(line)) => return Some(line),
                Ok(None) => {}
                Err(error) => job.pause(&error, PAUSE),
            }
        }
        None
    }

    fn give(&mut self, finished: Vec<Finished>) {
        let mut by_job: HashMap<u64, Vec<Finished>> = HashMap::new();
        for ended in finished {
            by_job.entry(ended.ticket.job).or_default().push(ended);
        }
        for job in &mut self.jobs {
            if let Some(finished) = by_job.remove(&job.batch.seq)
                && let Err(error) = job.give(finished)
            {
                job.pause(&error, PAUSE);
            }
        }
        self.finish_done(unix_seconds());
    }

    fn is_over(&self) -> bool {
        false
    }
}

impl Drop for JobQueue {
    /// An orderly end leaves everything on the disk.
    fn drop(&mut self) {
        for job in &mut self.jobs {
            if let Err(error) = job.sync() {
                tracing::error!(batch = job.batch.id, %error, "results could not be synced");
            }
        }
    }
}

pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
