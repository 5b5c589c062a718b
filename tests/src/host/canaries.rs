//! Canaries: files that no campaign has a reason to touch.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Directories that faults mount and link to, and an unused one.
const NAMES: [&str; 4] = ["plain", "bound", "nested", "linked"];

/// Properties of a file or directory that must not change.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FileProperties {
    inode: (u64, u64),
    mode: u32,
    owner: (u32, u32),
    changed: (i64, i64),
    /// Content of a file; `None` for a directory.
    content: Option<Vec<u8>>,
}

/// Canaries with their original properties.
#[derive(Debug)]
pub(super) struct HostCanaries {
    root: PathBuf,
    originals: BTreeMap<PathBuf, FileProperties>,
}

impl HostCanaries {
    pub(super) fn plant(root: &Path) -> Result<HostCanaries> {
        for name in NAMES {
            let dir = root.join(name);
            let doing = || format!("cannot plant {}", dir.display());
            std::fs::create_dir_all(dir.join("deep/empty")).with_context(doing)?;
            for file in ["file", "deep/file"] {
                std::fs::write(dir.join(file), format!("canary {name}/{file}\n")).with_context(doing)?;
            }
        }
        Ok(HostCanaries { root: root.to_owned(), originals: read_properties(root)? })
    }

    /// Descriptions of changed canaries.
    pub(super) fn touched(&self) -> Result<Vec<String>> {
        let now = read_properties(&self.root)?;
        let mut found = Vec::new();
        for (path, was) in &self.originals {
            match now.get(path) {
                None => found.push(format!("{} is deleted", path.display())),
                Some(is) if is != was => found.push(format!("{} was {was:?}, is {is:?}", path.display())),
                Some(_) => {}
            }
        }
        let new = now.keys().filter(|path| !self.originals.contains_key(*path));
        found.extend(new.map(|path| format!("{} is new", path.display())));
        Ok(found)
    }
}

fn read_properties(root: &Path) -> Result<BTreeMap<PathBuf, FileProperties>> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let doing = || format!("cannot check {}", path.display());
        let metadata = match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            metadata => metadata.with_context(doing)?,
        };
        let content = if metadata.is_dir() {
            for entry in std::fs::read_dir(&path).with_context(doing)? {
                open.push(entry.with_context(doing)?.path());
            }
            None
        } else {
            Some(std::fs::read(&path).with_context(doing)?)
        };
        let look = FileProperties {
            inode: (metadata.dev(), metadata.ino()),
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            content,
        };
        found.insert(path, look);
    }
    Ok(found)
}
