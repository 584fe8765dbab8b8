//! Files of results that survive a kill.
//!
//! A result file is only ever appended to, whole lines at a time. What a kill can leave behind is
//! one torn line at its end, and [`ResultFile::recover`] cuts that off; everything before it is
//! kept. A write that fails (a full disk) is undone, so that the file never holds half a result
//! that a later one is appended to.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use crate::error::{JobsError, failed_to};
use crate::line::ResultHead;

#[derive(Debug)]
pub struct ResultFile {
    file: File,
    path: PathBuf,
    /// Bytes of whole results.
    len: u64,
    is_synced: bool,
}

impl ResultFile {
    /// Opens or creates a file, hands each whole result in it to `found`, and cuts off a torn one
    /// at the end. Refuses a file with anything else in it, and does not touch it then.
    pub fn recover(
        path: &Path,
        mut found: impl FnMut(ResultHead),
    ) -> Result<ResultFile, JobsError> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.map_err(failed_to("open", path))?;
        lock(&file, path)?;
        let len = scan(&file, path, &mut found)?;
        let cut = |file: &File| match file.metadata()?.len() > len {
            true => file.set_len(len),
            false => Ok(()),
        };
        cut(&file).map_err(failed_to("cut a torn line off", path))?;
        Ok(ResultFile { file, path: path.to_owned(), len, is_synced: false })
    }

    /// Appends whole lines, or nothing.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), JobsError> {
        if lines.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all(lines) {
            // If even this fails, the next start cuts the line off.
            let _ = self.file.set_len(self.len);
            return Err(failed_to("write to", &self.path)(error));
        }
        self.len += lines.len() as u64;
        self.is_synced = false;
        Ok(())
    }

    /// Returns when everything is on the disk.
    pub fn sync(&mut self) -> Result<(), JobsError> {
        if !self.is_synced {
            self.file.sync_data().map_err(failed_to("sync", &self.path))?;
            self.is_synced = true;
        }
        Ok(())
    }

    /// Bytes of results.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Two runs that append to one file would run each line twice.
fn lock(file: &File, path: &Path) -> Result<(), JobsError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(JobsError::Busy { path: path.to_owned() }),
        // Not every file system has locks; without one it is the user's care.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Where the whole results end.
fn scan(file: &File, path: &Path, found: &mut impl FnMut(ResultHead)) -> Result<u64, JobsError> {
    let mut reader = BufReader::new(file);
    let mut groups = Groups::default();
    let (mut line, mut end, mut number) = (Vec::new(), 0u64, 0);
    loop {
        line.clear();
        let n = reader.read_until(b'\n', &mut line).map_err(failed_to("read", path))?;
        if n == 0 || line.last() != Some(&b'\n') {
            break;
        }
        number += 1;
        let Some(head) = ResultHead::parse(&line) else {
            // Nothing of ours may follow; a last line cut at a bad place has no end.
            return Err(JobsError::NoResult { path: path.to_owned(), line: number });
        };
        groups.push(head, end);
        end += n as u64;
        groups.hand_out(found);
    }
    if end == 0 && !line.is_empty() && !is_torn_result(&line) {
        return Err(JobsError::NoResult { path: path.to_owned(), line: 1 });
    }
    Ok(groups.whole_end(end))
}

/// The beginning of a result: all of ours are objects with an id first.
fn is_torn_result(line: &[u8]) -> bool {
    const STARTS: [&[u8]; 2] = [b"{\"id\":", b"{\"custom_id\":"];
    STARTS.iter().any(|start| start.starts_with(line) || line.starts_with(start))
}

/// Puts results of several lines together: one counts only when all its lines are there.
#[derive(Default)]
struct Groups {
    /// Lines of a result that is not whole yet, with where they begin.
    open: VecDeque<(ResultHead, u64)>,
}

impl Groups {
    fn push(&mut self, head: ResultHead, offset: u64) {
        let continues = self
            .open
            .back()
            .is_none_or(|(last, _)| (&last.custom_id, last.index) == (&head.custom_id, head.index));
        if !continues {
            // A group is written at once; what was cut short was cut off by an earlier recovery.
            self.open.clear();
        }
        self.open.push_back((head, offset));
    }

    fn hand_out(&mut self, found: &mut impl FnMut(ResultHead)) {
        let is_whole = self
            .open
            .back()
            .is_some_and(|(head, _)| head.n.is_none_or(|n| self.open.len() as u64 >= n));
        if is_whole {
            found(self.open.drain(..).next_back().map(|(head, _)| head).unwrap_or_default());
        }
    }

    /// Before the lines of a result that is not whole.
    fn whole_end(&self, end: u64) -> u64 {
        self.open.front().map_or(end, |&(_, offset)| offset)
    }
}

/// Makes a file's name durable, where directories can be synced.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovered(path: &Path) -> Result<(Vec<String>, u64), JobsError> {
        let mut ids = Vec::new();
        let file = ResultFile::recover(path, |head| ids.push(head.custom_id.unwrap()))?;
        Ok((ids, file.len()))
    }

    #[test]
    fn whatever_a_kill_leaves_whole_results_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let line = |id: &str| format!("{{\"id\":\"r\",\"custom_id\":\"{id}\",\"error\":null}}\n");
        let part = |id: &str, choice: u32| {
            format!("{{\"custom_id\":\"{id}\",\"index\":7,\"choice\":{choice},\"n\":3}}\n")
        };
        let group = (0..3).map(|choice| part("c", choice)).collect::<String>();
        let whole = [line("a"), line("b"), group];
        let text = whole.concat();
        for cut in 0..=text.len() {
            std::fs::write(&path, &text[..cut]).unwrap();
            let mut ends = 0;
            let n_whole = whole
                .iter()
                .take_while(|w| {
                    ends += w.len();
                    ends <= cut
                })
                .count();
            let n_bytes: usize = whole[..n_whole].iter().map(String::len).sum();
            let (ids, len) = recovered(&path).unwrap();
            assert_eq!(ids, ["a", "b", "c"][..n_whole], "cut at {cut}");
            assert_eq!(len, n_bytes as u64, "cut at {cut}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text[..n_bytes]);
        }
    }

    #[test]
    fn what_is_no_result_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        for text in ["precious\n", "precious", "{\"custom_id\":\"a\"}\nprecious\n", "\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(recovered(&path), Err(JobsError::NoResult { .. })), "{text:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn results_are_appended_after_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, "{\"custom_id\":\"a\"}\n{\"custom_id\":\"tor").unwrap();
        let mut file = ResultFile::recover(&path, |_| {}).unwrap();
        file.append(b"{\"custom_id\":\"b\"}\n").unwrap();
        file.sync().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"custom_id\":\"a\"}\n{\"custom_id\":\"b\"}\n");
        assert_eq!(file.len(), text.len() as u64);
    }
}
