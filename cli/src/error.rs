//! Exit codes of the program, and the only mapping of errors to exit codes.

use std::process::ExitCode;

use serde::Deserialize;

macro_rules! exits {
    ($($name:ident = $number:literal $meaning:literal;)*) => {
        /// Exit code of the program.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum CliExit {
            $(#[doc = $meaning] $name = $number,)*
        }

        impl CliExit {
            /// Every exit code with its meaning, in ascending order.
            pub const ALL: &[(CliExit, &str)] = &[$((CliExit::$name, $meaning)),*];
        }
    };
}

exits! {
    Done = 0 "Command succeeded, or its accepted request waits for approval (202), or the process was asked to stop.";
    Failure = 1 "Command failed, or `diff -f` found differences.";
    Usage = 2 "Invalid command line, or `diff -f` failed.";
    NotFound = 3 "Entity not found.";
    Conflict = 4 "Conflict with a state, version or name, or with another process that uses the directory.";
    Denied = 5 "Request denied, or executor permanently refused.";
    Awaiting = 6 "Timeout exceeded while an operation or a request awaits approval.";
    Unknown = 7 "Outcome unknown, or timeout exceeded.";
    Unreachable = 8 "Server unreachable, busy or without a leader.";
    StaleDecider = 9 "Executor stopped: a newer decider exists elsewhere.";
    Interrupted = 130 "Server ended by a second signal, before it had stopped.";
}

impl CliExit {
    /// List of the exit codes for the help of a command.
    pub fn help() -> String {
        let line = |(exit, meaning): &(CliExit, &str)| format!("  {:>3}  {meaning}", *exit as u8);
        format!("Exit codes:\n{}", CliExit::ALL.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Failure of a command, with its reason and what to try.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// Exit code of the process.
    pub exit: CliExit,
    /// Message for the user; empty for none.
    pub message: String,
    /// Errors of fields of the intent, from the server; the message contains them too.
    pub(super) faults: Vec<PointerError>,
}

/// Error of a field of an intent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct PointerError {
    /// JSON Pointer into the intent.
    pub(super) pointer: String,
    /// Rule that the field violates.
    pub(super) detail: String,
    /// Part of the request that contains the field: `body`, `path`, `query` or `header`.
    #[serde(default, rename = "in")]
    pub(super) part: String,
}

impl CliError {
    /// Creates an error.
    pub fn new(exit: CliExit, message: impl Into<String>) -> CliError {
        CliError { exit, message: message.into(), faults: Vec::new() }
    }

    /// Returns an error in the command line.
    pub fn usage(message: impl Into<String>) -> CliError {
        CliError::new(CliExit::Usage, message)
    }

    pub(super) fn conflict(message: impl Into<String>) -> CliError {
        CliError::new(CliExit::Conflict, message)
    }

    pub(super) fn failure(message: impl Into<String>) -> CliError {
        CliError::new(CliExit::Failure, message)
    }
}

impl From<std::io::Error> for CliError {
    /// Converts an error of the output. A reader that closes the pipe, as `head` does, is no failure.
    fn from(error: std::io::Error) -> CliError {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return CliError::new(CliExit::Done, "");
        }
        CliError::failure(format!("cannot write output: {error}"))
    }
}

/// Returns the exit code for a problem of a server, by its code, or by its status if the code is unknown.
pub fn exit_of(code: &str, status: u16) -> CliExit {
    match code {
        "not_found" | "gone" => CliExit::NotFound,
        "already_exists"
        | "version_conflict"
        | "invalid_transition"
        | "in_use"
        | "inactive"
        | "hash_mismatch"
        | "not_pending"
        | "idempotency_key_reused" => CliExit::Conflict,
        "denied" | "unauthenticated" => CliExit::Denied,
        // An intent older than the stored idempotency keys may have been decided.
        "intent_expired" | "unknown_outcome" | "timeout" | "request_timeout" | "position_not_applied" => {
            CliExit::Unknown
        }
        "busy" => CliExit::Unreachable,
        "invalid_parameter" | "moment_out_of_range" => CliExit::Usage,
        "invalid"
        | "timestamp_in_future"
        | "unsupported"
        | "too_large"
        | "moment_unreadable"
        | "moment_too_large"
        | "internal"
        | "malformed"
        | "route_not_found" => CliExit::Failure,
        _ => match status {
            404 | 410 => CliExit::NotFound,
            409 | 412 => CliExit::Conflict,
            401 | 403 => CliExit::Denied,
            408 | 504 => CliExit::Unknown,
            429 | 502 | 503 => CliExit::Unreachable,
            _ => CliExit::Failure,
        },
    }
}

/// Advice for a problem code; empty if the detail contains it.
pub(super) fn advice(code: &str) -> &'static str {
    match code {
        "hash_mismatch" => {
            "hint: the effects have changed since they were shown: show operations again, then approve; submit the change \
             of a request again"
        }
        "intent_expired" => {
            "hint: the intent may have been decided: check the entity before sending it again"
        }
        "timestamp_in_future" => "hint: set the clock of this machine",
        "busy" | "position_not_applied" | "timeout" => "hint: try again later",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use chancery_events::refusal::RefusalCode;

    use super::*;

    #[test]
    fn every_refusal_has_its_exit_code() {
        let exits: Vec<_> =
            RefusalCode::ALL.iter().map(|code| (code.word(), exit_of(code.word(), 0) as u8)).collect();
        let wanted = [
            ("not_found", 3),
            ("already_exists", 4),
            ("version_conflict", 4),
            ("invalid", 1),
            ("invalid_transition", 4),
            ("in_use", 4),
            ("inactive", 4),
            ("hash_mismatch", 4),
            ("not_pending", 4),
            ("idempotency_key_reused", 4),
            ("intent_expired", 7),
            ("timestamp_in_future", 1),
            ("unsupported", 1),
            ("too_large", 1),
            ("internal", 1),
            ("denied", 5),
        ];
        assert_eq!(exits, wanted);
    }

    #[test]
    fn a_code_of_a_newer_server_ends_by_its_status() {
        let cases = [(404, 3), (410, 3), (409, 4), (412, 4), (403, 5), (504, 7), (503, 8), (418, 1)];
        for (status, exit) in cases {
            assert_eq!(exit_of("brand_new", status) as u8, exit, "{status}");
        }
    }
}
