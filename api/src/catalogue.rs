//! Error catalogue: an entry for each code of a problem, in Markdown. `/errors/{code}` serves one entry, and
//! `docs/errors.md` has all.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::body::Body;
use axum::http::Response;

use super::middleware::with_type;
use super::problem::{KINDS, NOT_FOUND, ProblemDetails, ProblemKind};

/// Entry of each code.
static ENTRIES: LazyLock<BTreeMap<&'static str, String>> = LazyLock::new(|| {
    let same_code = KINDS.chunk_by(|kind, next| kind.code == next.code);
    same_code.map(|kinds| (kinds[0].code, entry(kinds))).collect()
});

/// Returns the entry of each code, by code.
pub fn error_entries() -> &'static BTreeMap<&'static str, String> {
    &ENTRIES
}

/// Returns the entry of a code: `kinds` are its kinds, one for each status.
fn entry(kinds: &[&ProblemKind]) -> String {
    let kind = kinds[0];
    let statuses: Vec<_> = kinds.iter().map(|kind| kind.status.to_string()).collect();
    let retry = if kind.retryable { "retryable" } else { "not retryable" };
    format!(
        "## `{}`\n\n{}: HTTP status {}, {retry}. {}\n\n**Remedy:** {}\n",
        kind.code,
        kind.title(),
        statuses.join(" or "),
        kind.meaning,
        kind.remedy
    )
}

/// Answers a request for the entry of a code.
pub(super) fn get(code: &str) -> Result<Response<Body>, ProblemDetails> {
    let Some(entry) = ENTRIES.get(code) else {
        let shown: String = code.chars().take(100).collect();
        let detail = format!(
            "cannot describe error code {shown:?}: no problem has it\nhint: x-problems of the OpenAPI description lists the \
             codes"
        );
        return Err(ProblemDetails::new(NOT_FOUND, detail));
    };
    Ok(with_type("text/markdown; charset=utf-8", entry.as_str()))
}
