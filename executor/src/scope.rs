//! What an executor keeps on disk for itself: the lock of its scope, and the highest head that it has seen.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::durable::{self, Lock};
use crate::session::Seen;

/// The folder of one executor, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct Scope {
    head: PathBuf,
    _lock: File,
}

/// Why a scope cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScopeError {
    /// Another executor has it.
    #[error("another executor holds the scope's lock")]
    Taken,
    /// The disk failed.
    #[error("read or write the executor's folder")]
    Storage(#[source] io::Error),
}

impl Scope {
    /// Locks the folder, which is made if it is missing, and gives the head that it remembers.
    pub(crate) fn open(root: &Path) -> Result<(Scope, Option<Seen>), ScopeError> {
        let head = root.join("head.json");
        durable::make_folder(root).map_err(ScopeError::Storage)?;
        match durable::lock(&root.join("lock")).map_err(ScopeError::Storage)? {
            Lock::Theirs => Err(ScopeError::Taken),
            Lock::Ours(lock) => {
                let seen = durable::read(&head).map_err(ScopeError::Storage)?;
                Ok((Scope { head, _lock: lock }, seen))
            }
        }
    }

    /// Where the head is kept.
    pub(crate) fn head(&self) -> PathBuf {
        self.head.clone()
    }
}

/// Remembers a head; it is on disk when this returns.
pub(crate) fn remember(head: &Path, seen: &Seen) -> io::Result<()> {
    durable::write(head, seen)
}
