//! Whether the folder of volumes is the one in which they were made.
//!
//! It may be a disk of its own, which is mounted late, or not any more. With the first volume, a mark is put into it, and
//! into the executor's folder: without the mark nothing is said of any volume, neither that it is gone nor that it is
//! lost, and none is made.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::durable::{self, Reader};
use crate::scope::random;

/// The name of the mark, in both folders.
const NAME: &str = "volumes.json";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Mark {
    mark: u64,
}

/// Whether the path is a mark in the folder of volumes.
pub(super) fn is_mark(path: &Path) -> bool {
    path.parent().is_some_and(|volumes| durable::copies(&volumes.join(NAME)).iter().any(|copy| copy == path))
}

/// Why nothing can be said of volumes now, if that is so.
pub(super) fn missing(root: &Path) -> io::Result<Option<String>> {
    let ours = durable::read::<Mark>(&root.join(NAME), Reader::Another)?;
    let Some(ours) = ours else { return Ok(None) };
    let volumes = super::root(root);
    if durable::read::<Mark>(&volumes.join(NAME), Reader::Another)? == Some(ours) {
        return Ok(None);
    }
    Ok(Some(format!(
        "{} is not the folder in which volumes were made: is its disk mounted? If it is lost for good, remove {}",
        volumes.display(),
        durable::copies(&root.join(NAME)).map(|copy| copy.display().to_string()).join(" and ")
    )))
}

/// Marks the folder, before the first volume is made in it. One that is marked already keeps its mark.
pub(super) fn make(root: &Path) -> io::Result<()> {
    /// Volumes are made by several threads, and the first ones may come at once.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs): (PathBuf, PathBuf) = (root.join(NAME), super::root(root).join(NAME));
    if durable::read::<Mark>(&ours, Reader::Writer)?.is_some() {
        return Ok(());
    }
    if let Some(mark) = durable::read::<Mark>(&theirs, Reader::Writer)? {
        return durable::write(&ours, &mark);
    }
    let mark = Mark { mark: random()? };
    durable::make_folder(&super::root(root))?;
    durable::write(&theirs, &mark)?;
    durable::write(&ours, &mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_volumes_that_come_at_once_agree_on_the_mark() {
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
