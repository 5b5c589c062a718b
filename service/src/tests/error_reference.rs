//! Error catalogue, `docs/errors.md`, generated from the register of problems and from the exit codes, so that
//! it cannot deviate from them. `UPDATE=1` writes it.

use std::fmt::Write as _;

use chancery_api::error_entries;
use chancery_api::problem::{ABOUT_THE_API, API_TERMS, KINDS, ProblemDetails, RequestPart};
use chancery_cli::{CliExit, exit_of, problem};
use chancery_events::refusal::RefusalCode;

use super::settings_reference::keep;

const PAGE: &str = "../docs/errors.md";

fn reference() -> String {
    let refusals: Vec<_> = RefusalCode::ALL.iter().map(|code| format!("`{code}`")).collect();
    let mut text = format!(
        "# Errors\n\n\
         This page is generated from the program.\n\n\
         An answer of the HTTP API that is not the requested one is a problem (RFC 9457). Its member `code` is one of the \
         codes below.\n`type` is `/errors/CODE`, where the server serves the entry of the code. `detail` describes this \
         occurrence, `errors` has the\nlocations in the request, and `request_id` identifies the request in the server's \
         log. The command line ends with an\n[exit code](#exit-codes).\n\n\
         - **Retryable:** the same request may succeed later. Send it again after the time in `Retry-After`, an intent \
         with the same\n  idempotency key.\n\
         - **Not retryable:** apply the remedy first. Send a corrected intent with a new idempotency key: a repeat with \
         the same key\n  and body gets the recorded refusal again.\n\n\
         The decider refuses an intent with one of these codes, and records the refusal in the journal:\n{}.\n",
        refusals.join(", ")
    );
    for entry in error_entries().values() {
        write!(text, "\n{entry}").expect("text");
    }
    text.push_str(
        "\n## Exit codes\n\n\
         A command that ends because of a problem has the exit code of the problem's code.\n\n\
         | exit code | meaning | codes of problems |\n|---|---|---|\n",
    );
    for (exit, meaning) in CliExit::ALL {
        let mut codes: Vec<_> = KINDS
            .iter()
            .filter(|kind| exit_of(kind.code, kind.status) == *exit)
            .map(|kind| format!("`{}`", kind.code))
            .collect();
        codes.dedup();
        writeln!(text, "| {} | {meaning} | {} |", *exit as u8, codes.join(", ")).expect("text");
    }
    text
}

#[test]
fn the_page_of_errors_has_every_code_and_every_exit_code() {
    let page = reference();
    keep(PAGE, &page);
    for kind in KINDS {
        assert!(page.contains(&format!("\n## `{}`\n", kind.code)), "{kind:?}");
    }
    for (exit, meaning) in CliExit::ALL {
        assert!(page.contains(&format!("\n| {} | {meaning} | ", *exit as u8)), "{exit:?}");
    }
}

#[test]
fn the_command_line_shows_no_terms_of_the_api() {
    let every_term = API_TERMS.join(" ");
    let parts = [
        (RequestPart::Query, vec!["page_token", "min_position", "as_of", "limit", "state", "x"]),
        (RequestPart::Path, vec!["name", "id"]),
        (RequestPart::Header, vec!["if-match", "chancery-actor", "content-type", "idempotency-key"]),
        (RequestPart::Body, vec!["data/spec/payloads/0/limits", "data", "spec/count", ""]),
    ];
    for kind in KINDS {
        let is_about_the_api = ABOUT_THE_API.contains(kind);
        let detail = if is_about_the_api { every_term.as_str() } else { "cannot do this: a reason" };
        let bare = ProblemDetails::new(kind, if kind.code == "invalid" { "a reason" } else { detail });
        // Only the fields of an intent are invalid, and only parameters are invalid parameters.
        let of_kind = parts.iter().filter(|(part, _)| match kind.code {
            "invalid" => *part == RequestPart::Body,
            "invalid_parameter" => *part != RequestPart::Body,
            _ => true,
        });
        let located = of_kind.flat_map(|(part, names)| {
            names
                .iter()
                .map(move |name| ProblemDetails::new(kind, detail).at(*part, format!("/{name}"), "a rule"))
        });
        for sample in located.chain([bare]) {
            let body = serde_json::to_string(&sample.shown("1")).expect("JSON");
            let text = problem("cannot list nodes", kind.status, &body).message;
            let lower = text.to_lowercase();
            let shown = API_TERMS.iter().find(|term| lower.contains(**term));
            assert_eq!(shown, None, "{body}: {text}");
        }
    }
}
