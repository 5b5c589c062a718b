//! Tables of text: columns apart by two spaces, no lines, nothing that a program would have to strip.

use std::fmt::{self, Write as _};

use comfy_table::{ContentArrangement, Table, presets};

/// A table in the making.
pub(super) struct Rows {
    table: Table,
}

impl Rows {
    pub(super) fn new(heads: impl IntoIterator<Item: Into<String>>) -> Rows {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .force_no_tty()
            .set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(heads.into_iter().map(Into::into).collect::<Vec<String>>());
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Rows { table }
    }

    pub(super) fn add(&mut self, cells: impl IntoIterator<Item: Into<String>>) {
        let cell = |text: String| if text.is_empty() { "-".to_owned() } else { one_line(&text) };
        self.table.add_row(cells.into_iter().map(|text| cell(text.into())).collect::<Vec<String>>());
    }

    /// The lines, without spaces at their ends, each after `indent`.
    pub(super) fn lines(&self, indent: &str) -> String {
        let mut text = String::new();
        for line in self.table.lines() {
            text.push_str(format!("{indent}{line}").trim_end());
            text.push('\n');
        }
        text
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
    fn a_row_is_a_line_and_has_no_trailing_space() {
        let mut rows = Rows::new(["NAME", "MESSAGE"]);
        rows.add(["a", "two\nlines \u{1b}[31m"]);
        rows.add(["longer-name", ""]);
        assert_eq!(
            rows.lines(" "),
            " NAME         MESSAGE\n a            two lines  [31m\n longer-name  -\n"
        );
    }
}
