//! The bytes of a model file, mapped or in memory.

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::Mmap;

/// A file's bytes.
#[derive(Debug)]
pub(crate) enum FileBytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps a file. An empty one, which cannot be mapped, is empty memory.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if metadata.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        Ok(Self::Mapped(map_read_only(file)?))
    }
}

#[allow(unsafe_code, reason = "mapping is how weights are read without a copy")]
fn map_read_only(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is private to this process and never written. The bytes are sound to read
    // as long as no other process truncates or rewrites the file meanwhile; model files are
    // written once (our own downloads appear by an atomic rename), and every reader of a model
    // file by mapping makes this same assumption.
    unsafe { Mmap::map(file) }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
