//! Errors of a manifest file, with their locations.

use std::fmt;
use std::sync::Arc;

use serde_saphyr::{Error, Location};

use super::suggest;

/// Maximum length of a value that its error repeats, in bytes.
const LONGEST: usize = 80;

/// Location in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileLocation {
    /// Name of the file as the caller gave it; `-` is the standard input.
    pub file: Arc<str>,
    /// Line number, from 1.
    pub line: u64,
    /// Column number in characters, from 1.
    pub column: u64,
}

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Error at one location of a file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ManifestError {
    /// Location of the error.
    pub place: FileLocation,
    /// Message, which includes what to write instead.
    pub what: String,
}

/// Errors of a file, document by document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManifestErrors(pub Vec<ManifestError>);

impl fmt::Display for ManifestErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ManifestErrors {}

impl From<ManifestError> for ManifestErrors {
    fn from(fault: ManifestError) -> ManifestErrors {
        ManifestErrors(vec![fault])
    }
}

/// Document and the lines before it, which turn the parser's locations into locations in the file.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct YamlDocument {
    pub(super) file: Arc<str>,
    pub(super) lines_before: u64,
    pub(super) text: Arc<str>,
}

impl YamlDocument {
    pub(super) fn place(&self, at: Location) -> FileLocation {
        // The parser gives a location of zero if it only knows the document.
        let (line, column) = (at.line().max(1), at.column().max(1));
        FileLocation { file: Arc::clone(&self.file), line: self.lines_before + line, column }
    }

    pub(super) fn fault(&self, at: Location, what: impl Into<String>) -> ManifestError {
        ManifestError { place: self.place(at), what: what.into() }
    }

    /// Converts an error of the parser; `start` is the start of the document's content.
    pub(super) fn read_error(&self, error: &Error, start: Location) -> ManifestError {
        let error = error.without_snippet();
        let at = error.location().filter(|at| at.line() > 0).unwrap_or(start);
        let (mut what, value) = (message_of(error), self.value(at));
        if let (true, Some(value)) = (is_about_a_value(error), value)
            && !what.contains(value)
        {
            what = format!("{what}: {value:?}");
        }
        self.fault(at, what)
    }

    /// Returns the text at the location, if it is a single value of one line.
    pub(super) fn value(&self, at: Location) -> Option<&str> {
        let (from, len) = (usize::try_from(at.span().offset()).ok()?, usize::try_from(at.span().len()).ok()?);
        let mut ends = self.text.char_indices().map(|(at, _)| at).chain([self.text.len()]).skip(from);
        let begin = ends.next()?;
        let end = if len == 0 { begin } else { ends.nth(len - 1)? };
        let value = self.text[begin..end].trim();
        let is_block = value.starts_with(['{', '[']);
        let value = value.trim_matches(['"', '\'']);
        (!value.is_empty() && !is_block && value.len() <= LONGEST && !value.contains('\n')).then_some(value)
    }
}

/// Whether the error is about a value that its message does not contain.
fn is_about_a_value(error: &Error) -> bool {
    match error {
        Error::InvalidScalar { .. } => true,
        Error::Message { msg, .. } => {
            !msg.starts_with("missing field") && !msg.starts_with("duplicate field")
        }
        _ => false,
    }
}

/// Returns the message of an error in the terms of manifests, without its location.
fn message_of(error: &Error) -> String {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            format!("invalid field {field:?}{}", suggest::instead(field, expected))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            format!("invalid value {variant:?}{}", suggest::instead(variant, expected))
        }
        Error::SerdeMissingField { field, .. } => format!("{field:?} is missing here"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("{key:?} is given twice"),
        Error::NullIntoString { .. } => "missing value: give a value, or omit the field".into(),
        Error::InvalidScalar { ty, .. } => format!("must be a {}", number(ty)),
        Error::Unexpected { expected, .. } => format!("a {} is expected here", shape(expected)),
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => {
            format!("the document is larger or deeper than is allowed: {}", without_place(error))
        }
        _ => without_place(error),
    }
}

/// Returns the common name of a YAML shape, from the parser's name.
fn shape(expected: &str) -> &str {
    match expected {
        "mapping start" => "block of 'name: value' lines",
        "sequence start" => "list",
        "string scalar" => "single value",
        other => other,
    }
}

fn number(ty: &str) -> &str {
    match ty {
        "u16" => "whole number from 0 to 65535",
        "u32" => "whole number from 0 to 4294967295",
        other => other,
    }
}

fn without_place(error: &Error) -> String {
    let text = error.to_string();
    let text = text.find(" at line ").map_or(text.as_str(), |end| text[..end].trim_end_matches(','));
    // The parser reports fields with an alias as plain text.
    let field = |before: &str| text.strip_prefix(before)?.strip_suffix('`');
    match (field("missing field `"), field("duplicate field `")) {
        (Some(field), _) => format!("{field:?} is missing here"),
        (_, Some(field)) => format!("{field:?} is given twice"),
        _ => text.to_owned(),
    }
}
