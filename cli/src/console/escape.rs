//! Key that detaches from a console.

use std::fmt;
use std::str::FromStr;

/// Key that detaches: a control character, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EscapeKey(Option<u8>);

impl FromStr for EscapeKey {
    type Err = String;

    fn from_str(text: &str) -> Result<EscapeKey, String> {
        match text.as_bytes() {
            b"none" => Ok(EscapeKey(None)),
            [b'^', key] if matches!(key.to_ascii_uppercase(), b'A'..=b'_') => {
                Ok(EscapeKey(Some(key.to_ascii_uppercase() & 0x1f)))
            }
            _ => Err(format!(
                "invalid key {text:?}: must be ^ and a letter or one of [ \\ ] ^ _, as in ^], or none"
            )),
        }
    }
}

impl fmt::Display for EscapeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(byte) => write!(f, "Ctrl-{}", char::from(byte | 0x40)),
            None => f.write_str("none"),
        }
    }
}

impl EscapeKey {
    /// Returns the typed bytes for the guest, and whether the key ended them: the guest gets neither the key nor what follows it.
    pub(super) fn split(self, typed: &[u8]) -> (&[u8], bool) {
        match self.0.and_then(|key| typed.iter().position(|byte| *byte == key)) {
            Some(end) => (&typed[..end], true),
            None => (typed, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_gets_everything_up_to_the_key_and_nothing_more() {
        for (key, typed, bytes, detaches) in [
            ("^]", &b"ls\r"[..], &b"ls\r"[..], false),
            ("^]", b"ls\r\x1dmore", b"ls\r", true),
            ("^]", b"\x1d", b"", true),
            ("^]", b"", b"", false),
            ("^a", b"\x1dx\x01", b"\x1dx", true),
            ("none", b"\x1d\x00\xff", b"\x1d\x00\xff", false),
        ] {
            let key: EscapeKey = key.parse().expect("a key");
            assert_eq!(key.split(typed), (bytes, detaches), "{key}");
        }
    }

    #[test]
    fn a_key_is_a_control_character() {
        for (text, shown) in [("^]", "Ctrl-]"), ("^x", "Ctrl-X"), ("^\\", "Ctrl-\\"), ("none", "none")] {
            assert_eq!(text.parse::<EscapeKey>().expect(text).to_string(), shown);
        }
        for text in ["", "^", "]", "^]]", "^1", "^\u{e9}", "Ctrl-]"] {
            assert!(text.parse::<EscapeKey>().is_err(), "{text}");
        }
    }
}
