//! Data directory of a server: only one server at a time uses it, whatever fleet it serves.
//!
//! Each fleet has a directory of its own in it, and each journal a lock of its own. The address and the
//! incarnations on this machine belong to the data directory. Its lock is taken first, and ends with the
//! process.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use chancery_cli::{CliError, CliExit};
use chancery_events::name::FleetName;
use chancery_executor::directory::{self, CopyPolicy};
use chancery_journal::segments::SegmentOptions;
use chancery_journal::{ExpectedType, private, set_aside};

use crate::config::ServiceConfig;

/// File that the server locks while it uses the directory.
const LOCK: &str = "lock";
/// File with the address on which that server listens.
const ADDRESS: &str = "address";
/// Maximum number of attempts to take a lock that another process holds.
const TRIES: u32 = 50;
/// Time between attempts: if a server is killed while it starts a process, that process keeps the lock until
/// it executes its own program.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the result of a file operation; `None` if the file does not exist, or was removed meanwhile.
pub(crate) fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the options for a fleet's journal, or its mirror, in a server's directory.
pub(crate) fn journal_options(config: &ServiceConfig, data: &Path, fleet: &FleetName) -> SegmentOptions {
    let mut options =
        SegmentOptions::new(data.join("fleets").join(fleet.as_str()).join("journal"), fleet.as_str());
    options.largest_segment = config.segment_bytes;
    options.first_segment = options.first_segment.min(config.segment_bytes);
    options
}

/// Data directory that no other server uses.
#[derive(Debug)]
pub struct ServerDataDir {
    dir: PathBuf,
    /// Handling of executors' directories in it that are copies.
    pub copies: CopyPolicy,
    _lock: File,
}

impl ServerDataDir {
    /// Locks the directory, creating it if needed. A directory that another server uses stays unchanged.
    pub fn take(dir: &Path) -> Result<ServerDataDir> {
        private::create_dir_all(dir).with_context(|| format!("cannot create directory {}", dir.display()))?;
        let path = dir.join(LOCK);
        let lock = private::options().truncate(false).open(&path);
        let lock = lock.with_context(|| format!("cannot open {}", path.display()))?;
        for tried in 1..=TRIES {
            match lock.try_lock() {
                Ok(()) => {
                    let (dir, copies) = (dir.to_owned(), CopyPolicy::Refuse);
                    return Ok(ServerDataDir { dir, copies, _lock: lock });
                }
                Err(TryLockError::WouldBlock) if tried < TRIES => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
        let listens = match std::fs::read_to_string(dir.join(ADDRESS)) {
            Ok(address) => format!(" that listens on {}", address.trim()),
            // The other server may be just starting.
            Err(_) => String::new(),
        };
        let what = format!(
            "cannot use directory {}: locked by another server{listens}\nhint: stop that server, or use another directory \
             with --data-dir",
            dir.display()
        );
        Err(CliError::new(CliExit::Conflict, what).into())
    }

    /// Records that a server will run in the directory. A copy of another directory is refused, unless copies
    /// are adopted: its journal would be a second history under the same lineage.
    pub fn claim(self, copies: CopyPolicy) -> Result<ServerDataDir> {
        directory::claim(&self.dir, copies)?;
        Ok(ServerDataDir { copies, ..self })
    }

    /// Writes the server's address atomically, for programs that started the server on a free port.
    pub fn write_address(&self, address: &str) -> Result<()> {
        let (path, temporary) = (self.dir.join(ADDRESS), self.dir.join("address.tmp"));
        for path in [&path, &temporary] {
            set_aside(path, ExpectedType::File)
                .with_context(|| format!("cannot set aside {}", path.display()))?;
        }
        private::write(&temporary, format!("{address}\n").as_bytes())
            .with_context(|| format!("cannot write {}", temporary.display()))?;
        std::fs::rename(&temporary, &path).with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_a_directory_and_the_next_reports_where_that_one_listens() {
        let parent = tempfile::tempdir().expect("a directory");
        let dir = parent.path().join("data");
        let first = ServerDataDir::take(&dir).expect("free");
        first.write_address("127.0.0.1:7").expect("an address");
        let error = ServerDataDir::take(&dir).expect_err("taken").to_string();
        let wanted = format!(
            "cannot use directory {}: locked by another server that listens on 127.0.0.1:7\nhint: stop that server, or use \
             another directory with --data-dir",
            dir.display()
        );
        assert_eq!(error, wanted);
        assert_eq!(std::fs::read_to_string(dir.join("address")).expect("an address"), "127.0.0.1:7\n");
        drop(first);
        ServerDataDir::take(&dir).expect("free again");
    }
}
