//! The database's tables.

use rusqlite::Connection;

use crate::JobsError;

/// Counts up with every change of the tables.
const VERSION: i64 = 1;

const TABLES: &str = "
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
);
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT NOT NULL,
    max_concurrency INTEGER,
    status TEXT NOT NULL,
    errors TEXT NOT NULL DEFAULT '[]',
    -- The files that results go to; clients see them when the batch has ended.
    output_name TEXT NOT NULL,
    errors_name TEXT NOT NULL,
    output_file_id TEXT,
    error_file_id TEXT,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER
);
CREATE INDEX batches_by_status ON batches (status);
";

/// Opens the database's settings and makes its tables if there are none.
pub(super) fn prepare(database: &mut Connection) -> Result<(), JobsError> {
    // A transaction that returned is on the disk.
    database.pragma_update(None, "journal_mode", "WAL")?;
    database.pragma_update(None, "synchronous", "FULL")?;
    let version: i64 = database.pragma_query_value(None, "user_version", |row| row.get(0))?;
    match version {
        VERSION => Ok(()),
        0 => {
            let transaction = database.transaction()?;
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            Ok(transaction.commit()?)
        }
        _ => Err(JobsError::NewerVersion),
    }
}
