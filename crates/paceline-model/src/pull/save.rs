//! Files that are whole or not there.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::PullError;
use super::progress::Progress;
use super::scratch::ScratchDir;

const CHUNK_BYTES: usize = 1 << 20;

/// What a file must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    pub(super) name: &'a str,
    pub(super) size: u64,
    pub(super) sha256: &'a str,
}

/// Writes what `reader` gives into the scratch directory, checks it, and only then moves it to
/// `dest`. Whatever fails, `dest` is untouched and the unfinished file goes with the scratch
/// directory, which must be on the same file system.
pub(super) fn save_checked(
    reader: &mut dyn Read,
    dest: &Path,
    scratch: &ScratchDir,
    expected: Expected<'_>,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    let part = scratch.path().join("model.part");
    let mut file = File::create(&part).map_err(|error| PullError::writing(&part, error))?;
    copy_checked(reader, &mut file, dest, expected, progress)?;
    let failed = |error| PullError::writing(dest, error);
    file.sync_all().map_err(failed)?;
    fs::rename(&part, dest).map_err(failed)?;
    sync_parent(dest).map_err(failed)
}

/// A rename lasts through a power cut only once the directory is on the disk too.
fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Copies exactly the expected bytes. `dest` is only named in errors.
fn copy_checked(
    reader: &mut dyn Read,
    writer: &mut dyn Write,
    dest: &Path,
    expected: Expected<'_>,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    progress.start(expected.name, Some(expected.size));
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut copied: u64 = 0;
    // One byte more than expected is enough to see that there is too much.
    let mut limited = reader.take(expected.size.saturating_add(1));
    loop {
        let n = match limited.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(PullError::Unreadable {
                    name: expected.name.to_owned(),
                    why: error.to_string(),
                });
            }
        };
        hasher.update(&buffer[..n]);
        writer.write_all(&buffer[..n]).map_err(|error| PullError::writing(dest, error))?;
        copied += n as u64;
        progress.at(copied);
    }
    progress.finish();
    check(expected, copied, &hex(&hasher.finalize()))
}

fn check(expected: Expected<'_>, size: u64, sha256: &str) -> Result<(), PullError> {
    let name = expected.name.to_owned();
    if size != expected.size {
        return Err(PullError::WrongSize { name, expected: expected.size, found: size });
    }
    if !sha256.eq_ignore_ascii_case(expected.sha256) {
        return Err(PullError::Checksum {
            name,
            expected: expected.sha256.to_owned(),
            found: sha256.to_owned(),
        });
    }
    Ok(())
}

/// The sha256 of a file, in hexadecimal digits.
pub(super) fn file_sha256(path: &Path) -> Result<String, PullError> {
    let failed = |source| PullError::Io { path: path.to_path_buf(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => hasher.update(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(hex(&hasher.finalize()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::progress::Silent;
    use super::*;

    /// Takes some bytes and then fails as a full or locked disk does.
    struct FailingWriter {
        room: usize,
        kind: io::ErrorKind,
    }

    impl Write for FailingWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(self.kind.into());
            }
            let n = bytes.len().min(self.room);
            self.room -= n;
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn copy_to_failing(kind: io::ErrorKind) -> PullError {
        let mut writer = FailingWriter { room: 10, kind };
        let expected = Expected { name: "model", size: 100, sha256: "" };
        let dest = Path::new("/models/m.gguf");
        copy_checked(&mut [7; 100].as_slice(), &mut writer, dest, expected, &Silent).unwrap_err()
    }

    #[test]
    fn a_full_disk_is_said_in_a_sentence() {
        let error = copy_to_failing(io::ErrorKind::StorageFull);
        assert!(matches!(&error, PullError::DiskFull { .. }));
        assert!(error.to_string().contains("disk is full"), "{error}");
        assert!(error.to_string().contains("/models/m.gguf"), "{error}");
        let error = copy_to_failing(io::ErrorKind::PermissionDenied);
        assert!(matches!(error, PullError::Unwritable { .. }));
        let error = copy_to_failing(io::ErrorKind::BrokenPipe);
        assert!(matches!(error, PullError::Io { .. }));
    }
}
