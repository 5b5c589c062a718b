//! Messages for the user on standard error, separate from the log.

use std::fmt::Arguments;
use std::io::Write as _;

/// Writes a line, as [`eprintln!`] does. If the line cannot be written, as on a full disk, it is dropped.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::note::write(::std::format_args!($($text)*)) };
}

/// Writes a line; called by [`note!`].
pub fn write(line: Arguments<'_>) {
    let _ = std::io::stderr().write_all(plain(&format!("{line}\n")).as_bytes());
}

/// Replaces control characters: text of a server or a payload may contain sequences that control the
/// terminal.
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
