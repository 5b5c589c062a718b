//! Lines from the pieces of a response body.

use std::io;

#[derive(Debug)]
pub(super) struct LineSplitter {
    longest: usize,
    begun: Vec<u8>,
}

impl LineSplitter {
    /// Creates an assembler of lines of at most `longest` bytes.
    pub(super) fn new(longest: usize) -> LineSplitter {
        LineSplitter { longest, begun: Vec::new() }
    }

    /// Returns the lines that a piece completes, without empty ones.
    pub(super) fn take(&mut self, piece: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut whole = Vec::new();
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.add(&rest[..end])?;
            let line = std::mem::take(&mut self.begun);
            whole.extend((!line.is_empty()).then_some(line));
            rest = &rest[end + 1..];
        }
        self.add(rest)?;
        Ok(whole)
    }

    fn add(&mut self, part: &[u8]) -> io::Result<()> {
        if self.begun.len() + part.len() > self.longest {
            let longest = self.longest;
            return Err(io::Error::other(format!("invalid message: must have at most {longest} bytes")));
        }
        self.begun.extend_from_slice(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        let text = b"one\n\ntwo\n\n\nthree\nrest";
        for size in 1..=text.len() {
            let mut lines = LineSplitter::new(5);
            let found: Vec<_> =
                text.chunks(size).flat_map(|piece| lines.take(piece).expect("short")).collect();
            assert_eq!(found, [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()], "{size}");
        }
    }

    #[test]
    fn an_unterminated_line_is_bounded() {
        let mut lines = LineSplitter::new(5);
        assert!(lines.take(b"ok\nlong").is_ok());
        assert!(lines.take(b"er").is_err());
    }
}
