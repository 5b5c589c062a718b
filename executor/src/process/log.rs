//! Log of a supervisor: its standard error, the file `supervisor.log`.

use std::fmt::Arguments;
use std::io::Write as _;

/// Writes a line. An unwritable line is dropped, as on a full disk: a supervisor must not end because of its
/// log.
pub(super) fn log(line: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
