//! Tables of text: columns separated by two spaces, without lines or other decoration that a program must
//! strip.

use std::fmt::{self, Write as _};

use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

/// Cell without a value.
pub(super) const ABSENT: &str = "-";

/// Table of text with a head for each column.
pub struct TextTable {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    hides_heads: bool,
}

impl TextTable {
    /// Creates an empty table.
    pub fn new(heads: impl IntoIterator<Item: Into<String>>) -> TextTable {
        TextTable { heads: heads.into_iter().map(Into::into).collect(), rows: Vec::new(), hides_heads: false }
    }

    /// Adds a row.
    pub fn add(&mut self, cells: impl IntoIterator<Item: Into<String>>) {
        self.rows.push(cells.into_iter().map(|text| cell(&text.into())).collect());
    }

    pub(super) fn heads(&self) -> impl Iterator<Item = &str> {
        self.heads.iter().map(String::as_str)
    }

    /// Returns the cells of each row.
    pub(super) fn cells(&self) -> impl Iterator<Item = impl Iterator<Item = &str>> {
        self.rows.iter().map(|cells| cells.iter().map(String::as_str))
    }

    /// Returns the table without its heads.
    pub(super) fn without_heads(self) -> TextTable {
        TextTable { hides_heads: true, ..self }
    }

    /// Returns the table with another column, after the first `at`.
    pub(super) fn with_column(
        mut self,
        at: usize,
        head: &str,
        cells: impl IntoIterator<Item = String>,
    ) -> TextTable {
        self.heads.insert(at, head.to_owned());
        for (row, text) in self.rows.iter_mut().zip(cells) {
            row.insert(at, cell(&text));
        }
        self
    }

    /// Returns the cells of each line: those of the heads, unless they are hidden, and of each row.
    fn shown(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.heads).filter(|_| !self.hides_heads).chain(&self.rows)
    }

    /// Formats the table as comma-separated values (RFC 4180, with line feeds alone). Empty cells are empty.
    pub(super) fn csv(&self) -> String {
        let mut text = String::new();
        for cells in self.shown() {
            let quoted = |cell: &String| match cell.as_str() {
                ABSENT => String::new(),
                cell if cell.contains([',', '"']) => format!("\"{}\"", cell.replace('"', "\"\"")),
                cell => cell.to_owned(),
            };
            add(&mut text, format_args!("{}\n", cells.iter().map(quoted).collect::<Vec<_>>().join(",")));
        }
        text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table, each line after `indent` and without spaces at its end.
    pub fn lines(&self, indent: &str) -> String {
        StreamTable::default().lines(self, indent)
    }
}

fn cell(text: &str) -> String {
    if text.is_empty() { ABSENT.to_owned() } else { one_line(text) }
}

/// Lines of a table of unknown length: a column is as wide as its widest cell so far.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    widths: Vec<usize>,
}

impl StreamTable {
    /// Creates a table with columns of at least these widths, in characters.
    pub(super) fn of(widths: impl Into<Vec<usize>>) -> StreamTable {
        StreamTable { widths: widths.into() }
    }

    /// Formats a table whose columns are as wide as all its cells, each line after `indent`.
    pub(super) fn lines(&mut self, table: &TextTable, indent: &str) -> String {
        for cells in table.shown() {
            // The line is dropped: only its widths are needed.
            let _ = self.line(cells);
        }
        let lines = table.shown().map(|cells| format!("{indent}{}", self.line(cells)));
        lines.collect()
    }

    /// Formats a row, with its line feed.
    fn line(&mut self, cells: impl IntoIterator<Item: AsRef<str>>) -> String {
        let mut text = String::new();
        for (at, cell) in cells.into_iter().map(|text| cell(text.as_ref())).enumerate() {
            if at == self.widths.len() {
                self.widths.push(0);
            }
            self.widths[at] = self.widths[at].max(cell.width());
            let padding = self.widths[at] - cell.width();
            add(&mut text, format_args!("{cell}{:padding$}  ", ""));
        }
        format!("{}\n", text.trim_end())
    }
}

/// Appends to a text.
pub(super) fn add(text: &mut String, more: fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a text cannot fail");
}

/// Text of a value: that of a string without quotes.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Replaces control characters by spaces, so that a cell stays on the line of its row.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_stream_grow_with_their_values() {
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
