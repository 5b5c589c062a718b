//! Renaming of paths of the wrong type where rebuildable data is expected: they are renamed, never removed.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Type that a path should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpectedType {
    /// Regular file.
    File,
    /// Any directory.
    Directory,
}

/// Renames `path`, unless it is missing or has the wanted type, and returns the new name. A symbolic link
/// counts as its target.
pub fn set_aside(path: &Path, wanted: ExpectedType) -> io::Result<Option<PathBuf>> {
    let found = match path.symlink_metadata() {
        // A dangling link is neither a file nor a directory.
        Ok(link) => path.metadata().unwrap_or(link),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let fits = match wanted {
        ExpectedType::File => found.is_file(),
        ExpectedType::Directory => found.is_dir(),
    };
    if fits {
        return Ok(None);
    }
    let mut number = 1;
    let aside = loop {
        let mut name = OsString::from(path);
        name.push(format!(".set-aside-{number}"));
        let name = PathBuf::from(name);
        match name.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break name,
            Err(error) => return Err(error),
            Ok(_) => number += 1,
        }
    };
    std::fs::rename(path, &aside)?;
    tracing::warn!(path = %path.display(), aside = %aside.display(), wanted = ?wanted, "path of the wrong type set aside");
    Ok(Some(aside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_wrong_type_is_renamed_and_nothing_else_is_touched() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("spare");
        assert_eq!(set_aside(&path, ExpectedType::File).expect("missing"), None);
        for number in 1..=2 {
            std::fs::create_dir(&path).expect("created");
            assert_eq!(set_aside(&path, ExpectedType::Directory).expect("as wanted"), None);
            let aside = set_aside(&path, ExpectedType::File).expect("renamed");
            assert_eq!(aside, Some(dir.path().join(format!("spare.set-aside-{number}"))));
        }
        std::fs::write(&path, "kept").expect("written");
        assert_eq!(set_aside(&path, ExpectedType::File).expect("as wanted"), None);
        let aside = set_aside(&path, ExpectedType::Directory).expect("renamed").expect("a name");
        assert_eq!(std::fs::read_to_string(aside).expect("read"), "kept");
        std::os::unix::fs::symlink("nowhere", &path).expect("a link");
        assert!(set_aside(&path, ExpectedType::File).expect("renamed").is_some(), "a dangling link");
    }
}
