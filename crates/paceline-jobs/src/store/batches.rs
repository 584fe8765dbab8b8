//! Batches: what was asked for, and how far it is.

use std::collections::BTreeMap;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::files::{self, FileMeta};
use super::{Choice, Page, Store};
use crate::error::JobsError;
use crate::line::Fault;
use crate::{Endpoint, Window};

/// Where a batch is in its life; the names are OpenAI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    const ALL: [Status; 8] = [
        Status::Validating,
        Status::Failed,
        Status::InProgress,
        Status::Finalizing,
        Status::Completed,
        Status::Expired,
        Status::Cancelling,
        Status::Cancelled,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Status::Validating => "validating",
            Status::Failed => "failed",
            Status::InProgress => "in_progress",
            Status::Finalizing => "finalizing",
            Status::Completed => "completed",
            Status::Expired => "expired",
            Status::Cancelling => "cancelling",
            Status::Cancelled => "cancelled",
        }
    }
}

/// How many requests of a batch are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub total: u64,
    pub completed: u64,
    pub failed: u64,
}

/// A line that keeps a batch from running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadLine {
    /// From 1; `None` when it is the file as a whole.
    pub line: Option<u64>,
    #[serde(flatten)]
    pub fault: Fault,
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct NewBatch {
    pub id: String,
    pub owner: String,
    pub endpoint: Endpoint,
    pub input_file_id: String,
    pub window: Window,
    pub metadata: BTreeMap<String, String>,
    /// Lines that may be under way at once.
    pub max_concurrency: Option<u32>,
    /// Ids for the files of its results.
    pub output_name: String,
    pub errors_name: String,
    pub created_at: u64,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub seq: u64,
    pub id: String,
    pub owner: String,
    pub endpoint: Endpoint,
    pub input_file_id: String,
    pub completion_window: String,
    pub metadata: BTreeMap<String, String>,
    pub max_concurrency: Option<u32>,
    pub status: Status,
    pub errors: Vec<BadLine>,
    pub output_name: String,
    pub errors_name: String,
    pub output_file_id: Option<String>,
    pub error_file_id: Option<String>,
    pub counts: Counts,
    pub created_at: u64,
    pub expires_at: u64,
    pub in_progress_at: Option<u64>,
    pub finalizing_at: Option<u64>,
    pub completed_at: Option<u64>,
    pub failed_at: Option<u64>,
    pub expired_at: Option<u64>,
    pub cancelling_at: Option<u64>,
    pub cancelled_at: Option<u64>,
}

/// How a batch that has begun ends, with the sizes of its files of results.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub status: Status,
    pub counts: Counts,
    pub output_bytes: u64,
    pub error_bytes: u64,
    pub now: u64,
    /// When its files of results may go.
    pub files_expire_at: Option<u64>,
}

const UNFINISHED: &str = "('validating', 'in_progress', 'finalizing', 'cancelling')";

impl Store {
    /// Returns the batch as it was made, whatever has been done with it since.
    pub fn create_batch(&self, new: &NewBatch) -> Result<Batch, JobsError> {
        let expires_at = new.created_at.saturating_add(new.window.seconds);
        let metadata = serde_json::to_string(&new.metadata).unwrap_or_default();
        // Held until the batch is read, so that whoever looks for work does not come between.
        let database = self.database();
        database.execute(
            "INSERT INTO batches (id, owner, endpoint, input_file_id, completion_window, metadata, \
             max_concurrency, status, output_name, errors_name, created_at, expires_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'validating', ?8, ?9, ?10, ?11)",
            params![
                new.id,
                new.owner,
                new.endpoint.path(),
                new.input_file_id,
                new.window.to_string(),
                metadata,
                new.max_concurrency,
                new.output_name,
                new.errors_name,
                new.created_at as i64,
                expires_at as i64,
            ],
        )?;
        let made = find(&database, None, &new.id)?;
        made.ok_or_else(|| JobsError::Inconsistent(format!("the batch {} is gone", new.id)))
    }

    /// `owner` sees its own batches; `None` sees all.
    pub fn batch(&self, owner: Option<&str>, id: &str) -> Result<Option<Batch>, JobsError> {
        find(&self.database(), owner, id)
    }

    /// A page of batches, newest first, and whether there are more.
    pub fn batches(
        &self,
        owner: Option<&str>,
        page: &Page,
    ) -> Result<(Vec<Batch>, bool), JobsError> {
        let choice = Choice { table: "batches", owner, column: "status", value: None };
        self.page(choice, page, read)
    }

    /// Batches that have not ended, oldest first.
    pub fn unfinished(&self) -> Result<Vec<Batch>, JobsError> {
        let database = self.database();
        let query = format!("SELECT * FROM batches WHERE status IN {UNFINISHED} ORDER BY seq");
        let mut query = database.prepare(&query)?;
        Ok(query.query_map([], read)?.collect::<Result<_, _>>()?)
    }

    /// Asks for a batch to be cancelled. False if it has ended already, or is about to.
    pub fn cancel(&self, id: &str, now: u64) -> Result<bool, JobsError> {
        let n = self.database().execute(
            "UPDATE batches SET status = 'cancelling', cancelling_at = ?2 \
             WHERE id = ?1 AND status IN ('validating', 'in_progress')",
            params![id, now as i64],
        )?;
        Ok(n > 0)
    }

    /// A batch whose lines are all well formed. False if it was cancelled meanwhile.
    pub fn begin(&self, seq: u64, total: u64, now: u64) -> Result<bool, JobsError> {
        let n = self.database().execute(
            "UPDATE batches SET status = 'in_progress', in_progress_at = ?2, total = ?3 \
             WHERE seq = ?1 AND status = 'validating'",
            params![seq as i64, now as i64, total as i64],
        )?;
        Ok(n > 0)
    }

    /// A batch that cannot run.
    pub fn fail(&self, seq: u64, errors: &[BadLine], now: u64) -> Result<(), JobsError> {
        let errors = serde_json::to_string(errors).unwrap_or_default();
        self.database().execute(
            "UPDATE batches SET status = 'failed', failed_at = ?2, errors = ?3 \
             WHERE seq = ?1 AND status = 'validating'",
            params![seq as i64, now as i64, errors],
        )?;
        Ok(())
    }

    /// Notes how far a batch is. The files of results know better, should this be lost.
    pub fn set_counts(&self, seq: u64, counts: Counts) -> Result<(), JobsError> {
        self.database().execute(
            "UPDATE batches SET total = ?2, completed = ?3, failed = ?4 WHERE seq = ?1",
            params![seq as i64, counts.total as i64, counts.completed as i64, counts.failed as i64],
        )?;
        Ok(())
    }

    /// All lines have run; what is left is to hand the results out. False if it was cancelled
    /// meanwhile.
    pub fn begin_finalizing(&self, seq: u64, now: u64) -> Result<bool, JobsError> {
        let n = self.database().execute(
            "UPDATE batches SET status = 'finalizing', finalizing_at = coalesce(finalizing_at, ?2) \
             WHERE seq = ?1 AND status IN ('in_progress', 'finalizing')",
            params![seq as i64, now as i64],
        )?;
        Ok(n > 0)
    }

    /// Ends a batch: its results become files, and it gets its last status, both or neither.
    pub fn finish(&self, batch: &Batch, ending: &Ending) -> Result<(), JobsError> {
        let mut database = self.database();
        let transaction = database.transaction()?;
        let publish = |name: &str, bytes: u64, what: &str| -> Result<_, JobsError> {
            if bytes == 0 {
                return Ok(None);
            }
            files::insert(
                &transaction,
                &FileMeta {
                    id: name.to_owned(),
                    owner: batch.owner.clone(),
                    filename: format!("{}_{what}.jsonl", batch.id),
                    purpose: "batch_output".to_owned(),
                    bytes,
                    created_at: ending.now,
                    expires_at: ending.files_expire_at,
                },
            )?;
            Ok(Some(name.to_owned()))
        };
        let output = publish(&batch.output_name, ending.output_bytes, "output")?;
        let errors = publish(&batch.errors_name, ending.error_bytes, "error")?;
        let column = match ending.status {
            Status::Completed => "completed_at",
            Status::Expired => "expired_at",
            _ => "cancelled_at",
        };
        transaction.execute(
            &format!(
                "UPDATE batches SET status = ?2, {column} = ?3, output_file_id = ?4, \
                 error_file_id = ?5, completed = ?6, failed = ?7 WHERE seq = ?1"
            ),
            params![
                batch.seq as i64,
                ending.status.name(),
                ending.now as i64,
                output,
                errors,
                ending.counts.completed as i64,
                ending.counts.failed as i64,
            ],
        )?;
        Ok(transaction.commit()?)
    }
}

fn find(database: &Connection, owner: Option<&str>, id: &str) -> Result<Option<Batch>, JobsError> {
    let query = "SELECT * FROM batches WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)";
    Ok(database.query_row(query, params![id, owner], read).optional()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Batch> {
    let count = |name: &str| row.get::<_, i64>(name).map(|n| n as u64);
    let time = |name: &str| row.get::<_, Option<i64>>(name).map(|at| at.map(|at| at as u64));
    let counts =
        Counts { total: count("total")?, completed: count("completed")?, failed: count("failed")? };
    let status: String = row.get("status")?;
    let status = Status::ALL.into_iter().find(|known| known.name() == status);
    let endpoint: String = row.get("endpoint")?;
    Ok(Batch {
        seq: count("seq")?,
        id: row.get("id")?,
        owner: row.get("owner")?,
        endpoint: endpoint.parse().map_err(|error| strange("endpoint", error))?,
        input_file_id: row.get("input_file_id")?,
        completion_window: row.get("completion_window")?,
        metadata: read_json(row, "metadata")?,
        max_concurrency: row.get("max_concurrency")?,
        status: status.ok_or_else(|| strange("status", std::fmt::Error))?,
        errors: read_json(row, "errors")?,
        output_name: row.get("output_name")?,
        errors_name: row.get("errors_name")?,
        output_file_id: row.get("output_file_id")?,
        error_file_id: row.get("error_file_id")?,
        counts,
        created_at: count("created_at")?,
        expires_at: count("expires_at")?,
        in_progress_at: time("in_progress_at")?,
        finalizing_at: time("finalizing_at")?,
        completed_at: time("completed_at")?,
        failed_at: time("failed_at")?,
        expired_at: time("expired_at")?,
        cancelling_at: time("cancelling_at")?,
        cancelled_at: time("cancelled_at")?,
    })
}

fn read_json<T: serde::de::DeserializeOwned>(row: &Row<'_>, name: &str) -> rusqlite::Result<T> {
    let text: String = row.get(name)?;
    serde_json::from_str(&text).map_err(|error| strange(name, error))
}

/// A value that no version of this program has written.
fn strange(name: &str, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    let message = format!("the column {name} of a batch: {error}");
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, message.into())
}
