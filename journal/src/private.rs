//! Files and directories that only their owner can read: a journal contains plan specs and their
//! environments.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Returns options that open a file for writing, and create it with mode 0600 if it is missing.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

/// Creates an empty file, or truncates an existing one.
pub fn create(path: &Path) -> io::Result<File> {
    options().truncate(true).open(path)
}

/// Replaces the content of a file, which is created if it is missing.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Creates a directory and its missing parents, with mode 0700.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
