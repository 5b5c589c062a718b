//! Check that the directory of volumes is the one in which they were made.
//!
//! It may be a separate disk, which is mounted late, or no longer. With the first volume, a mark is written
//! to it and to the executor's directory. Without the mark, no volume is reported, neither as deleted nor as
//! lost, and none is made.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::super::lock;
use crate::locked_directory::random;
use crate::state_file::{self, FileAccess};

/// Name of the mark, in both directories.
const NAME: &str = "volumes.json";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct RootMarkerFile {
    mark: u64,
}

/// Whether the path is a mark in the directory of volumes.
pub(super) fn is_mark(path: &Path) -> bool {
    path.parent()
        .is_some_and(|volumes| state_file::copies(&volumes.join(NAME)).iter().any(|copy| copy == path))
}

/// Returns why the state of volumes cannot be determined, if that is the case.
pub(super) fn missing(root: &Path) -> io::Result<Option<String>> {
    let ours = state_file::read::<RootMarkerFile>(&root.join(NAME), FileAccess::Observer)?;
    let Some(ours) = ours else { return Ok(None) };
    let volumes = super::root(root);
    if state_file::read::<RootMarkerFile>(&volumes.join(NAME), FileAccess::Observer)? == Some(ours) {
        return Ok(None);
    }
    Ok(Some(format!(
        "{} is not the directory of the volumes\nhint: mount its disk, or, if that is permanently lost, remove {}",
        volumes.display(),
        state_file::copies(&root.join(NAME)).map(|copy| copy.display().to_string()).join(" and ")
    )))
}

/// Marks the directory before the first volume is made. An existing mark is kept.
pub(super) fn make(root: &Path) -> io::Result<()> {
    /// Lock for the first volumes, which several threads may make concurrently.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = lock(&MAKING);
    let (ours, theirs) = (root.join(NAME), super::root(root).join(NAME));
    if state_file::read::<RootMarkerFile>(&ours, FileAccess::Owner)?.is_some() {
        return Ok(());
    }
    if let Some(mark) = state_file::read::<RootMarkerFile>(&theirs, FileAccess::Owner)? {
        return state_file::write(&ours, &mark);
    }
    let mark = RootMarkerFile { mark: random()? };
    state_file::make_directory(&super::root(root))?;
    state_file::write(&theirs, &mark)?;
    state_file::write(&ours, &mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_first_volumes_agree_on_the_mark() {
        for _ in 0..20 {
            let root = tempfile::tempdir().unwrap();
            let made: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(|| make(root.path()))).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(made.iter().all(Result::is_ok), "{made:?}");
            assert_eq!(missing(root.path()).unwrap(), None);
        }
    }
}
