//! Libraries in C that replace functions of the system in one process (`LD_PRELOAD`).

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a file of this crate into a library in a directory.
pub(crate) fn build(source: &str, dir: &Path) -> PathBuf {
    let path = dir.join("preload.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .arg(&path)
        .arg(source)
        .status();
    assert!(built.expect("the C compiler runs").success(), "the library is not built");
    path
}
