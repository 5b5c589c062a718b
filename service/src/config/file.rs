//! Settings of a file, each with its line, and the errors of the file.

use chancery_cli::manifest::suggest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{SETTINGS, SettingEntry};

/// Value of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileSetting {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) line: usize,
}

/// Reads all values of a file; errors start with `file:line:column`.
pub(super) fn read(file: &str, text: &str) -> Result<Vec<FileSetting>, String> {
    let lines = ConfigLines { file, text };
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        lines.error(offset, error.message())
    })?;
    let mut found = Vec::new();
    collect(&lines, table.get_ref(), "", &mut found)?;
    found.sort_by_key(|given| given.line);
    Ok(found)
}

fn collect(
    lines: &ConfigLines<'_>,
    table: &DeTable<'_>,
    prefix: &str,
    found: &mut Vec<FileSetting>,
) -> Result<(), String> {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        let at = key.span().start;
        if let DeValue::Table(inner) = value.get_ref() {
            let inside = format!("{name}.");
            if !SETTINGS.iter().any(|setting| setting.name.starts_with(&inside)) {
                return Err(lines.error(at, &unknown(&name)));
            }
            collect(lines, inner, &inside, found)?;
            continue;
        }
        let setting = SettingEntry::of(&name).ok_or_else(|| lines.error(at, &unknown(&name)))?;
        let text = text_of(value).ok_or_else(|| {
            lines.error(value.span().start, &format!("invalid {name}: must be a string or a number"))
        })?;
        if let Some(fault) = setting.fault(&text) {
            return Err(lines.error(value.span().start, &format!("invalid {name}: {fault}")));
        }
        found.push(FileSetting { name: setting.name, text, line: lines.place(at).0 });
    }
    Ok(())
}

fn text_of(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        _ => None,
    }
}

pub(super) fn unknown(name: &str) -> String {
    let names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    format!("invalid setting {name:?}{}", suggest::instead(name, &names))
}

struct ConfigLines<'a> {
    file: &'a str,
    text: &'a str,
}

impl ConfigLines<'_> {
    /// Returns line and column of a byte, both from 1.
    fn place(&self, offset: usize) -> (usize, usize) {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
    }

    fn error(&self, offset: usize, what: &str) -> String {
        let (line, column) = self.place(offset);
        format!("{}:{line}:{column}: {what}", self.file)
    }
}
