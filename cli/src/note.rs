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
    let _ = std::io::stderr().write_all(plain(&format!("{line}\n")).as_bytes());
}

/// Text that a terminal only shows: what a server or a payload sent may hold sequences that command it.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_commands_no_terminal() {
        let sent = "one\u{1b}]0;title\u{7}\n\ttwo\u{9b}31m\r";
        assert_eq!(plain(sent), "one ]0;title \n\ttwo 31m ");
    }
}
