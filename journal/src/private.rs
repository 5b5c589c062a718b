//! Files and directories that nobody but their owner may read: a journal holds what plans say, environments among it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// How a file is opened for writing, and made for its owner alone if it is not there.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

/// Makes an empty file, or empties the one that is there.
pub fn create(path: &Path) -> io::Result<File> {
    options().truncate(true).open(path)
}

/// Writes a file whole.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Makes a directory, and those above it that are missing.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
