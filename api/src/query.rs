//! Query of a request: each parameter at most once, no unknown parameter.

use std::fmt::Display;
use std::str::FromStr;

use axum::http::Uri;

use super::problem::{INVALID_PARAMETER, ProblemDetails, RequestPart, parsed, pointer_to};

/// Remaining parameters of a query.
#[derive(Debug)]
pub(super) struct QueryParams(Vec<(String, String)>);

impl QueryParams {
    /// Reads a query.
    pub(super) fn read(uri: &Uri) -> Result<QueryParams, ProblemDetails> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        let pairs = pairs
            .map_err(|error| ProblemDetails::new(INVALID_PARAMETER, format!("invalid query: {error}")))?;
        Ok(QueryParams(pairs.0))
    }

    /// Takes a parameter out of the query.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<String>, ProblemDetails> {
        let mut found = None;
        while let Some(at) = self.0.iter().position(|(key, _)| key == name) {
            if found.replace(self.0.remove(at).1).is_some() {
                return Err(ProblemDetails::query(name, "must be given once"));
            }
        }
        Ok(found)
    }

    /// Takes a parameter out of the query, and parses it.
    pub(super) fn parsed<T: FromStr<Err: Display>>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, ProblemDetails> {
        self.take(name)?.map(|text| parsed(RequestPart::Query, name, &text)).transpose()
    }

    /// Takes an unsigned integer out of the query.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<u64>, ProblemDetails> {
        let read =
            |text: String| text.parse().map_err(|_| ProblemDetails::query(name, "must be a whole number"));
        self.take(name)?.map(read).transpose()
    }

    /// Takes a boolean out of the query.
    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, ProblemDetails> {
        match self.take(name)?.as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(ProblemDetails::query(name, "must be true or false")),
        }
    }

    /// Returns all remaining parameters.
    pub(super) fn rest(self) -> Vec<(String, String)> {
        self.0
    }

    /// Refuses parameters other than these.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), ProblemDetails> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => Err(unknown(name, known)),
        }
    }

    /// Refuses remaining parameters.
    pub(super) fn end(&self, known: &[&str]) -> Result<(), ProblemDetails> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(unknown(name, known)),
        }
    }
}

/// Returns the problem of an unknown parameter.
pub(super) fn unknown(name: &str, known: &[&str]) -> ProblemDetails {
    let name: String = name.chars().take(100).collect();
    let known = if known.is_empty() {
        "the route has no parameters".into()
    } else {
        format!("must be one of {}", known.join(", "))
    };
    ProblemDetails::new(INVALID_PARAMETER, format!("invalid query parameter {name:?}: {known}")).at(
        RequestPart::Query,
        pointer_to(&name),
        "unknown parameter",
    )
}
