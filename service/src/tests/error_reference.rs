//! Error catalogue, `docs/errors.md`, generated from the register of problems and from the exit codes, so that
//! it cannot deviate from them. `UPDATE=1` writes it.

use std::fmt::Write as _;

use chancery_api::error_entries;
use chancery_api::problem::KINDS;
use chancery_cli::{CliExit, exit_of};
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
