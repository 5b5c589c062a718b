//! Problems of a server in the words of the command line.
//!
//! A problem is written for clients of the API. The command line shows its `detail`, except for the codes below, whose
//! detail names parts of the API. [`own_words`] has the words for these codes.
//!
//! | code | words |
//! |---|---|
//! | `invalid_parameter` | the flag or the argument that becomes the parameter, and the rule |
//! | `invalid` | each field and its rule |
//! | the other codes of [`own_words`] | constant |

use std::fmt::Display;

use serde::Deserialize;

use super::super::error::{CliError, PointerError, advice, exit_of};
use super::super::table::add;

/// Advice for a request that only a server of another build does not know.
const OTHER_BUILD: &str =
    "the server does not know a request of this program\nhint: compare their builds\ntry: chancery version";

/// Flags and arguments that become parameters of the API. Any other parameter in a path is named as it is, and any other
/// one in a query is a filter.
const FLAGS: &[(&str, &str)] = &[
    ("as_of", "--as-of"),
    ("from", "start"),
    ("to", "end"),
    ("limit", "--limit"),
    ("payload", "--payload"),
    ("process", "--process"),
    ("stream", "--stream"),
    ("tail", "--tail"),
    ("since", "--since"),
    ("kinds", "--kind"),
    ("types", "--types"),
    ("subject", "--subject"),
    ("field", "field"),
    ("value", "value"),
    ("idempotency-key", "--idempotency-key"),
    ("chancery-actor", "--actor"),
];

/// Start of the reason for a filter that a kind does not have.
const NO_SUCH_FILTER: &str = "no such filter:";

/// Parameters that the program sends on its own.
const INTERNAL: &[&str] =
    &["page_token", "min_position", "consistency", "after", "recompute", "marked", "follow", "position"];

/// Problem in an answer (RFC 9457).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ProblemResponse {
    pub(super) code: String,
    title: String,
    detail: String,
    pub(super) errors: Vec<PointerError>,
    retryable: bool,
}

/// Returns the problem code of an answer; empty if it is no problem.
pub(super) fn code(body: &str) -> String {
    serde_json::from_str::<ProblemResponse>(body).unwrap_or_default().code
}

/// Whether the same request may succeed later.
pub(super) fn retryable(status: u16, body: &str) -> bool {
    status == 503
        || (status >= 429 && serde_json::from_str::<ProblemResponse>(body).unwrap_or_default().retryable)
}

/// Returns the error of an answer that is not the requested one; it starts with `doing`.
pub fn problem(doing: &str, status: u16, body: &str) -> CliError {
    if let Ok(problem) = serde_json::from_str::<ProblemResponse>(body) {
        return error_of(doing, status, problem);
    }
    let what = format!("{doing}: answer {status} is not that of a Chancery server\nhint: check --server");
    CliError::new(exit_of("", status), what)
}

/// Returns the error of a problem.
pub(super) fn error_of(doing: &str, status: u16, problem: ProblemResponse) -> CliError {
    let what = own_words(&problem).unwrap_or_else(|| {
        let text = if problem.detail.is_empty() { &problem.title } else { &problem.detail };
        text.clone()
    });
    let mut message = format!("{doing}: {what}");
    let advice = advice(&problem.code);
    if !advice.is_empty() {
        add(&mut message, format_args!("\n{advice}"));
    }
    let mut faults = problem.errors;
    for fault in &mut faults {
        fault.pointer = within_intent(&fault.pointer).to_owned();
    }
    CliError { exit: exit_of(&problem.code, status), message, faults }
}

/// Returns the words for a problem whose detail names parts of the API; `None` if its detail is shown.
fn own_words(problem: &ProblemResponse) -> Option<String> {
    let constant = match problem.code.as_str() {
        "invalid_parameter" => return problem.errors.first().map(parameter).or(Some(OTHER_BUILD.into())),
        "invalid" => {
            return match problem.errors.as_slice() {
                [] => None,
                [fault] => Some(field(fault)),
                faults => {
                    Some(faults.iter().fold("invalid fields".to_owned(), |text, fault| {
                        format!("{text}\n  {}", field(fault))
                    }))
                }
            };
        }
        "route_not_found"
        | "method_not_allowed"
        | "not_acceptable"
        | "unsupported_media_type"
        | "malformed" => OTHER_BUILD,
        "invalid_host" => "invalid name of the server\nhint: check --server",
        "origin_not_allowed" => {
            "the request arrived as one of a web page\nhint: a proxy before the server may have changed it"
        }
        "uri_too_long" | "headers_too_large" => {
            "the request is too large\nhint: use shorter names, or fewer filters"
        }
        "request_timeout" => "the server did not receive the request in time; nothing was recorded",
        "misdirected" => "the leader has changed; nothing was recorded\nhint: try again",
        _ => return None,
    };
    Some(constant.to_owned())
}

/// Returns the error of a parameter, by the flag or argument that it was made of.
fn parameter(fault: &PointerError) -> String {
    let PointerError { pointer, detail, part } = fault;
    let name = pointer.trim_start_matches('/').replace("~1", "/").replace("~0", "~");
    if INTERNAL.contains(&name.as_str()) {
        return OTHER_BUILD.to_owned();
    }
    match FLAGS.iter().find(|(known, _)| *known == name) {
        Some((_, flag)) => format!("invalid {flag}: {detail}"),
        None if part == "header" => OTHER_BUILD.to_owned(),
        None if part == "query" && detail.starts_with(NO_SUCH_FILTER) => {
            format!("invalid filter {name:?}: {}", detail[NO_SUCH_FILTER.len()..].trim_start())
        }
        None if part == "query" => format!("invalid value of filter {name:?}: {detail}"),
        None => format!("invalid {name}: {detail}"),
    }
}

/// Returns the error of a field, as `chancery explain` names fields.
fn field(fault: &PointerError) -> String {
    let mut name = String::new();
    let path = within_intent(&fault.pointer);
    for step in path.strip_prefix("/spec/").unwrap_or(path).split('/').filter(|step| !step.is_empty()) {
        if step.bytes().all(|b| b.is_ascii_digit()) {
            add(&mut name, format_args!("[{step}]"));
        } else {
            let dot = if name.is_empty() { "" } else { "." };
            add(&mut name, format_args!("{dot}{}", step.replace("~1", "/").replace("~0", "~")));
        }
    }
    if name.is_empty() { fault.detail.clone() } else { format!("invalid {name}: {}", fault.detail) }
}

/// Returns a pointer into the intent: the intent is the data of the CloudEvent that was sent.
fn within_intent(pointer: &str) -> &str {
    let within = pointer.strip_prefix("/data").filter(|rest| rest.is_empty() || rest.starts_with('/'));
    within.unwrap_or(pointer)
}

/// Returns the error of an answer that cannot be read.
pub(crate) fn not_ours(doing: &str, why: impl Display) -> CliError {
    CliError::failure(format!("{doing}: invalid answer: {why}"))
}
