//! Files and batches in a data directory.
//!
//! ```text
//! DATA/lock          held by the one server that may use the directory
//! DATA/jobs.sqlite   what files and batches there are, and how far each batch is
//! DATA/files/ID      contents: inputs, outputs, errors
//! ```
//!
//! A file exists when its row does, and its row is written when its bytes are on the disk; what a
//! kill left in `files/` without a row is swept away at the next start. Times are seconds since
//! 1970 and come from the caller.

mod batches;
mod files;
mod schema;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, Row, params};

use crate::error::{JobsError, failed_to};
use crate::results::sync_dir;

pub use batches::{BadLine, Batch, Counts, Ending, NewBatch, Status};
pub use files::{Deleted, FileMeta, NewFile, Upload};

/// A page of a list.
#[derive(Clone, Debug)]
pub struct Page {
    /// Begin after the entry with this id.
    pub after: Option<String>,
    pub limit: usize,
    pub oldest_first: bool,
}

/// Which entries of a table a list is of.
#[derive(Clone, Copy, Debug)]
struct Choice<'a> {
    table: &'static str,
    /// Whose; `None` is everybody's.
    owner: Option<&'a str>,
    /// Those with this value in this column, if there is a value.
    column: &'static str,
    value: Option<&'a str>,
}

/// The data directory. Dropping it lets others have it.
#[derive(Debug)]
pub struct Store {
    files_dir: PathBuf,
    database: Mutex<Connection>,
    _lock: File,
}

impl Store {
    /// Opens a data directory, makes it if it is not there, and sweeps up after a kill.
    pub fn open(dir: &Path) -> Result<Store, JobsError> {
        let files_dir = dir.join("files");
        fs::create_dir_all(&files_dir).map_err(failed_to("create", &files_dir))?;
        let lock = lock(dir)?;
        let mut database = Connection::open(dir.join("jobs.sqlite"))?;
        schema::prepare(&mut database)?;
        sync_dir(dir).map_err(failed_to("sync", dir))?;
        let store = Store { files_dir, database: Mutex::new(database), _lock: lock };
        store.remove_strays()?;
        Ok(store)
    }

    pub fn path_of(&self, file_id: &str) -> PathBuf {
        // Ids are ours: letters, digits and dashes.
        self.files_dir.join(file_id)
    }

    /// Removes what has outlived its time: files past theirs, and batches that ended `retention`
    /// seconds ago. Nothing that a batch still needs.
    pub fn sweep(&self, now: u64, retention: u64) -> Result<(), JobsError> {
        let ids: Vec<String> = {
            let database = self.database();
            database.execute(
                "DELETE FROM batches WHERE ?1 - ?2 >= coalesce(completed_at, failed_at, \
                 expired_at, cancelled_at)",
                params![now as i64, retention as i64],
            )?;
            let mut query = database.prepare(
                "SELECT id FROM files WHERE expires_at <= ?1 AND id NOT IN \
                 (SELECT input_file_id FROM batches WHERE status IN \
                 ('validating', 'in_progress', 'finalizing', 'cancelling'))",
            )?;
            query.query_map([now as i64], |row| row.get(0))?.collect::<Result<_, _>>()?
        };
        ids.iter().try_for_each(|id| self.remove_file(id))
    }

    fn database(&self) -> MutexGuard<'_, Connection> {
        // A panic in another thread has left whole statements behind.
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Contents without a row, but for those that running batches write.
    fn remove_strays(&self) -> Result<(), JobsError> {
        let database = self.database();
        let mut is_known = database.prepare(
            "SELECT EXISTS (SELECT 1 FROM files WHERE id = ?1) OR EXISTS (SELECT 1 FROM batches \
             WHERE ?1 IN (output_name, errors_name) AND status IN \
             ('validating', 'in_progress', 'finalizing', 'cancelling'))",
        )?;
        let entries = fs::read_dir(&self.files_dir).map_err(failed_to("read", &self.files_dir))?;
        for entry in entries {
            let path = entry.map_err(failed_to("read", &self.files_dir))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !is_known.query_row([name], |row| row.get::<_, bool>(0))? {
                fs::remove_file(&path).map_err(failed_to("remove", &path))?;
            }
        }
        Ok(())
    }

    /// A page of a list, and whether there is more.
    fn page<T>(
        &self,
        choice: Choice<'_>,
        page: &Page,
        read: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<(Vec<T>, bool), JobsError> {
        let Choice { table, owner, column, value } = choice;
        let (sign, order) = if page.oldest_first { (">", "ASC") } else { ("<", "DESC") };
        let query = format!(
            "SELECT * FROM {table} WHERE (?1 IS NULL OR owner = ?1) \
             AND (?2 IS NULL OR {column} = ?2) \
             AND (?3 IS NULL OR seq {sign} (SELECT seq FROM {table} WHERE id = ?3)) \
             ORDER BY seq {order} LIMIT ?4"
        );
        let database = self.database();
        let mut query = database.prepare(&query)?;
        // One more than fit tells whether there is more.
        let limit = page.limit as i64 + 1;
        let rows = query.query_map(params![owner, value, page.after, limit], read)?;
        let mut found = rows.collect::<Result<Vec<_>, _>>()?;
        let has_more = found.len() > page.limit;
        found.truncate(page.limit);
        Ok((found, has_more))
    }

    fn remove_file(&self, id: &str) -> Result<(), JobsError> {
        self.database().execute("DELETE FROM files WHERE id = ?1", [id])?;
        let path = self.path_of(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(failed_to("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }
}

/// Two servers on one directory would run each line twice.
fn lock(dir: &Path) -> Result<File, JobsError> {
    let path = dir.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(failed_to("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JobsError::Locked { path: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(failed_to("lock", &path)(error)),
    }
}
