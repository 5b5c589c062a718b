//! The folder of a server: one server at a time has it, whatever fleet it serves.
//!
//! Fleets have folders of their own in it, and each journal has a lock of its own; but what runs on this machine and
//! the address are of the folder. The lock is taken before anything else is touched, and goes with the process.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use chancery_events::name::FleetName;
use chancery_executor::directory::{self, CopyPolicy};
use chancery_journal::segments::Options;
use chancery_journal::{Wanted, private, set_aside};

use crate::config::Config;

/// Held by the server that has the folder.
const LOCK: &str = "lock";
/// Where that server listens.
const ADDRESS: &str = "address";
/// A lock that is held is asked for again so often,
const TRIES: u32 = 50;
/// so far apart: a server that is killed while it starts a process leaves the lock to that one until it runs its own
/// program.
const PAUSE: Duration = Duration::from_millis(20);

/// Where a fleet's journal, or its mirror, is in a server's folder, and how it is opened.
pub(crate) fn journal_options(config: &Config, data: &Path, fleet: &FleetName) -> Options {
    let mut options = Options::new(data.join("fleets").join(fleet.as_str()).join("journal"), fleet.as_str());
    options.largest_segment = config.segment_bytes;
    options.first_segment = options.first_segment.min(config.segment_bytes);
    options
}

/// A folder that no other server has.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    copies: CopyPolicy,
    _lock: File,
}

impl Folder {
    /// Takes the folder, which is made if it is not there. If another server has it, nothing in it is changed.
    pub fn take(dir: &Path) -> Result<Folder> {
        private::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let path = dir.join(LOCK);
        let lock = private::options().truncate(false).open(&path);
        let lock = lock.with_context(|| format!("open {}", path.display()))?;
        for tried in 1..=TRIES {
            match lock.try_lock() {
                Ok(()) => {
                    return Ok(Folder { dir: dir.to_owned(), copies: CopyPolicy::Refuse, _lock: lock });
                }
                Err(TryLockError::WouldBlock) if tried < TRIES => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("lock {}", path.display()));
                }
            }
        }
        let listens = match std::fs::read_to_string(dir.join(ADDRESS)) {
            Ok(address) => format!(", and listens on {}", address.trim()),
            // It may be just starting.
            Err(_) => String::new(),
        };
        bail!(
            "another server has the folder {}{listens}: stop that one, or give this one a folder of its own with \
             --data-dir",
            dir.display()
        )
    }

    /// Records that a server is to run in the folder. One that was copied from another folder is refused, unless copies
    /// are to be adopted: its journal would be a second history under the same lineage.
    pub fn claim(self, copies: CopyPolicy) -> Result<Folder> {
        directory::claim(&self.dir, copies)?;
        Ok(Folder { copies, ..self })
    }

    /// What to do with folders of executors in it that are copies.
    pub fn copies(&self) -> CopyPolicy {
        self.copies
    }

    /// Says where the server listens, for programs that started it on a free port. It appears whole or not at all.
    pub fn write_address(&self, address: &str) -> Result<()> {
        let (path, temporary) = (self.dir.join(ADDRESS), self.dir.join("address.tmp"));
        for path in [&path, &temporary] {
            set_aside(path, Wanted::File).with_context(|| format!("set aside {}", path.display()))?;
        }
        private::write(&temporary, format!("{address}\n").as_bytes())
            .with_context(|| format!("write {}", temporary.display()))?;
        std::fs::rename(&temporary, &path).with_context(|| format!("write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_a_folder_and_the_next_is_told_where_that_one_listens() {
        let home = tempfile::tempdir().expect("a folder");
        let dir = home.path().join("data");
        let first = Folder::take(&dir).expect("free");
        first.write_address("127.0.0.1:7").expect("an address");
        let error = Folder::take(&dir).expect_err("taken").to_string();
        let wanted = format!(
            "another server has the folder {}, and listens on 127.0.0.1:7: stop that one, or give this one a folder of \
             its own with --data-dir",
            dir.display()
        );
        assert_eq!(error, wanted);
        assert_eq!(std::fs::read_to_string(dir.join("address")).expect("an address"), "127.0.0.1:7\n");
        drop(first);
        Folder::take(&dir).expect("free again");
    }
}
