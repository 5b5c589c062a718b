//! Tables of text: columns apart by two spaces, no lines, nothing that a program would have to strip.

use std::fmt::{self, Write as _};

use unicode_width::UnicodeWidthStr as _;

/// A table in the making.
pub struct TextTable {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// An empty one.
    pub fn new(heads: impl IntoIterator<Item: Into<String>>) -> TextTable {
        TextTable { heads: heads.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn add(&mut self, cells: impl IntoIterator<Item: Into<String>>) {
        self.rows.push(cells.into_iter().map(|text| cell(&text.into())).collect());
    }

    pub(super) fn heads(&self) -> impl Iterator<Item = &str> {
        self.heads.iter().map(String::as_str)
    }

    /// Each row's cells.
    pub(super) fn cells(&self) -> impl Iterator<Item = impl Iterator<Item = &str>> {
        self.rows.iter().map(|cells| cells.iter().map(String::as_str))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, without spaces at their ends, each after `indent`.
    pub fn lines(&self, indent: &str) -> String {
        let mut lines = StreamTable::default();
        lines.line(self.heads());
        lines.fit(self);
        let mut text = format!("{indent}{}", lines.line(self.heads()));
        text.extend(self.cells().map(|cells| format!("{indent}{}", lines.line(cells))));
        text
    }
}

fn cell(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { one_line(text) }
}

/// Lines of a table whose end is not known: a column is as wide as its widest cell so far.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    widths: Vec<usize>,
}

impl StreamTable {
    /// With columns of at least these widths.
    pub(super) fn of(widths: impl Into<Vec<usize>>) -> StreamTable {
        StreamTable { widths: widths.into() }
    }

    /// Makes room for all of these rows.
    pub(super) fn fit(&mut self, rows: &TextTable) {
        for cells in rows.cells() {
            // Of the line, only what it makes known of the widths is wanted.
            let _ = self.line(cells);
        }
    }

    /// Whether nothing is known of its columns.
    pub(super) fn is_new(&self) -> bool {
        self.widths.is_empty()
    }

    /// A row, with its line feed.
    pub(super) fn line<'a>(&mut self, cells: impl IntoIterator<Item = &'a str>) -> String {
        let mut text = String::new();
        for (at, cell) in cells.into_iter().map(cell).enumerate() {
            if at == self.widths.len() {
                self.widths.push(0);
            }
            self.widths[at] = self.widths[at].max(cell.width());
            let room = self.widths[at] - cell.width();
            add(&mut text, format_args!("{cell}{:room$}  ", ""));
        }
        format!("{}\n", text.trim_end())
    }
}

/// Adds to a text.
pub(super) fn add(text: &mut String, more: fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a text cannot fail");
}

/// A table has a line for each row: what would break it or move the cursor is shown as a space.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_stream_grow_with_what_comes() {
        let mut lines = StreamTable::of([5]);
        assert_eq!(lines.line(["a", "b"]), "a      b\n");
        assert_eq!(lines.line(["longer", "", "x\ny"]), "longer  -  x y\n");
        assert_eq!(lines.line(["c", "d", ""]), "c       d  -\n");
    }

    #[test]
    fn a_row_is_a_line_and_has_no_trailing_space() {
        let mut rows = TextTable::new(["NAME", "MESSAGE"]);
        rows.add(["a", "two\nlines \u{1b}[31m"]);
        rows.add(["longer-name", ""]);
        assert_eq!(
            rows.lines(" "),
            " NAME         MESSAGE\n a            two lines  [31m\n longer-name  -\n"
        );
    }
}
