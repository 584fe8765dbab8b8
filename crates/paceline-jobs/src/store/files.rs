//! Uploaded files and files of results.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use rusqlite::{OptionalExtension, Row, params};

use super::{Choice, Page, Store};
use crate::error::{JobsError, failed_to};
use crate::results::sync_dir;

/// What is known of a file beside its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMeta {
    pub id: String,
    pub owner: String,
    pub filename: String,
    pub purpose: String,
    pub bytes: u64,
    pub created_at: u64,
    pub expires_at: Option<u64>,
}

/// What a file is called when its contents are there.
#[derive(Clone, Debug)]
pub struct NewFile {
    pub owner: String,
    pub filename: String,
    pub purpose: String,
    pub created_at: u64,
    pub expires_at: Option<u64>,
}

/// How a wish to delete a file was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deleted {
    Yes,
    /// There is none.
    Unknown,
    /// This batch is not done with it.
    InUse {
        batch_id: String,
    },
}

/// Contents on their way in. Dropping it without [`Upload::finish`] forgets them.
#[derive(Debug)]
pub struct Upload<'a> {
    store: &'a Store,
    id: String,
    path: PathBuf,
    file: File,
    bytes: u64,
    is_kept: bool,
}

const COLUMNS: &str = "id, owner, filename, purpose, bytes, created_at, expires_at";

impl Store {
    /// Begins to take contents in.
    pub fn upload(&self, id: String) -> Result<Upload<'_>, JobsError> {
        let path = self.path_of(&id);
        let file = File::create_new(&path).map_err(failed_to("create", &path))?;
        Ok(Upload { store: self, id, path, file, bytes: 0, is_kept: false })
    }

    /// `owner` sees its own files; `None` sees all.
    pub fn file(&self, owner: Option<&str>, id: &str) -> Result<Option<FileMeta>, JobsError> {
        let query =
            format!("SELECT {COLUMNS} FROM files WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)");
        Ok(self.database().query_row(&query, params![id, owner], read).optional()?)
    }

    /// A page of files, and whether there are more.
    pub fn files(
        &self,
        owner: Option<&str>,
        purpose: Option<&str>,
        page: &Page,
    ) -> Result<(Vec<FileMeta>, bool), JobsError> {
        let choice = Choice { table: "files", owner, column: "purpose", value: purpose };
        self.page(choice, page, read)
    }

    pub fn delete_file(&self, owner: Option<&str>, id: &str) -> Result<Deleted, JobsError> {
        if self.file(owner, id)?.is_none() {
            return Ok(Deleted::Unknown);
        }
        let user: Option<String> = self
            .database()
            .query_row(
                "SELECT id FROM batches WHERE input_file_id = ?1 AND status IN \
                 ('validating', 'in_progress', 'finalizing', 'cancelling')",
                [id],
                |row| row.get(0),
            )
            .optional()?;
        if let Some(batch_id) = user {
            return Ok(Deleted::InUse { batch_id });
        }
        self.remove_file(id)?;
        Ok(Deleted::Yes)
    }
}

impl Upload<'_> {
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), JobsError> {
        self.file.write_all(bytes).map_err(failed_to("write to", &self.path))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the contents durable, and then a file.
    pub fn finish(mut self, new: NewFile) -> Result<FileMeta, JobsError> {
        self.file.sync_all().map_err(failed_to("sync", &self.path))?;
        let dir = &self.store.files_dir;
        sync_dir(dir).map_err(failed_to("sync", dir))?;
        let NewFile { owner, filename, purpose, created_at, expires_at } = new;
        let (id, bytes) = (self.id.clone(), self.bytes);
        let meta = FileMeta { id, owner, filename, purpose, bytes, created_at, expires_at };
        insert(&self.store.database(), &meta)?;
        self.is_kept = true;
        Ok(meta)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // The next start would sweep it away too.
            let _ = fs::remove_file(&self.path);
        }
    }
}

pub(super) fn insert(
    database: &rusqlite::Connection,
    meta: &FileMeta,
) -> Result<(), rusqlite::Error> {
    database.execute(
        &format!("INSERT INTO files ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"),
        params![
            meta.id,
            meta.owner,
            meta.filename,
            meta.purpose,
            meta.bytes as i64,
            meta.created_at as i64,
            meta.expires_at.map(|at| at as i64),
        ],
    )?;
    Ok(())
}

fn read(row: &Row<'_>) -> rusqlite::Result<FileMeta> {
    Ok(FileMeta {
        id: row.get("id")?,
        owner: row.get("owner")?,
        filename: row.get("filename")?,
        purpose: row.get("purpose")?,
        bytes: row.get::<_, i64>("bytes")? as u64,
        created_at: row.get::<_, i64>("created_at")? as u64,
        expires_at: row.get::<_, Option<i64>>("expires_at")?.map(|at| at as u64),
    })
}
