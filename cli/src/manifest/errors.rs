//! Errors of a manifest file, with their locations.

use std::fmt;
use std::sync::Arc;

use serde_saphyr::{Error, Location};

use super::reader::FormError;

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
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ManifestErrors(pub Vec<ManifestError>);

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
    /// Converts a location of the parser, which is zero if the parser only knows the document.
    pub(super) fn place(&self, at: Location) -> FileLocation {
        let (line, column) = (at.line().max(1), at.column().max(1));
        FileLocation { file: Arc::clone(&self.file), line: self.lines_before + line, column }
    }

    pub(super) fn fault(&self, at: Location, what: impl Into<String>) -> ManifestError {
        ManifestError { place: self.place(at), what: what.into() }
    }

    /// Converts an error of a form.
    pub(super) fn form_error(&self, error: &FormError) -> ManifestError {
        self.fault(error.at, error.what.as_str())
    }

    /// Converts an error of the parser.
    pub(super) fn parser_error(&self, error: &Error) -> ManifestError {
        let error = error.without_snippet();
        let text = error.to_string();
        let text = text.find(" at line ").map_or(text.as_str(), |end| text[..end].trim_end_matches(','));
        let what = match error {
            Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => {
                format!("the document is larger or deeper than is allowed: {text}")
            }
            _ => text.to_owned(),
        };
        self.fault(error.location().unwrap_or(Location::UNKNOWN), what)
    }
}
