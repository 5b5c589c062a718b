//! Part of the terminal that is redrawn.

use terminal_size::{Height, Width, terminal_size};

/// Lines above the cursor that the next drawing replaces.
#[derive(Debug, Default)]
pub(super) struct LiveScreen {
    drawn: usize,
}

impl LiveScreen {
    /// Returns the output that replaces the previous lines by `text`.
    pub(super) fn draw(&mut self, text: &str) -> String {
        let (Width(width), Height(height)) = terminal_size().unwrap_or((Width(80), Height(24)));
        self.draw_in(text, usize::from(width), usize::from(height))
    }

    /// Limits the text to the terminal's width and height: lines that have scrolled away cannot be redrawn.
    fn draw_in(&mut self, text: &str, width: usize, height: usize) -> String {
        let all: Vec<&str> = text.lines().collect();
        let space = height.saturating_sub(1).max(1);
        let shown = if all.len() > space { space - 1 } else { all.len() };
        let hidden = all.len() - shown;
        let mut drawn = match self.drawn {
            0 => String::new(),
            // Moves to the start of the first line, and erases everything below.
            lines => format!("\u{1b}[{lines}F\u{1b}[J"),
        };
        let more = (hidden > 0).then(|| format!("and {hidden} more"));
        for line in all.into_iter().take(shown).chain(more.as_deref()) {
            drawn.extend(line.chars().take(width));
            drawn.push('\n');
        }
        self.drawn = shown + usize::from(hidden > 0);
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redraw_replaces_the_last_one_and_stays_within_the_terminal() {
        let mut screen = LiveScreen::default();
        assert_eq!(screen.draw_in("a\nb\n", 10, 5), "a\nb\n");
        assert_eq!(screen.draw_in("longer than that\n", 6, 5), "\u{1b}[2F\u{1b}[Jlonger\n");
        assert_eq!(screen.draw_in("a\nb\nc\nd\ne\n", 10, 5), "\u{1b}[1F\u{1b}[Ja\nb\nc\nand 2 more\n");
        assert_eq!(screen.draw_in("a\nb\nc\nd\n", 10, 5), "\u{1b}[4F\u{1b}[Ja\nb\nc\nd\n");
    }
}
