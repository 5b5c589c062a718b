//! What the program writes for people to its standard error, beside its log.

use std::fmt::Arguments;
use std::io::Write as _;

/// Writes a line, as [`eprintln!`] does. One that cannot be written is dropped: the reader has gone, or the disk is full.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::note::write(::std::format_args!($($text)*)) };
}

/// See [`note!`].
pub fn write(line: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
