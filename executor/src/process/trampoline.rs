//! Placeholder of a process until its identity is on disk.
//!
//! A trampoline waits at its standard input, a socket to the supervisor, for one line: what to execute. If
//! the supervisor dies first, the line never arrives, and the trampoline exits without executing anything. A
//! successful `exec` closes the socket. A failed one is reported through it, and so never taken for the
//! program's own end.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::num::NonZeroU64;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use super::console;
use super::supervisor_protocol::line;
use chancery_events::observation::RetryClass;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// Request of the supervisor to execute a program, sent as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExecRequest {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    /// Maximum bytes of data and anonymous memory, for the process and for each that it starts.
    pub(super) memory: Option<NonZeroU64>,
    /// Soft limit of open descriptors.
    pub(super) files: Option<u64>,
    /// Named pipe that is the standard input, relative to the working directory; none if absent.
    #[serde(default)]
    pub(super) input: Option<String>,
}

/// Reason why the program could not be executed, sent to the supervisor as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExecFailure {
    pub(super) message: String,
    pub(super) retry: RetryClass,
}

impl ExecFailure {
    /// Creates a failure that no retry can help.
    pub(super) fn permanent(message: impl Into<String>) -> ExecFailure {
        ExecFailure { message: message.into(), retry: RetryClass::Permanent }
    }

    /// Creates a failure that a retry can help.
    pub(super) fn retryable(message: String) -> ExecFailure {
        ExecFailure { message, retry: RetryClass::Retryable }
    }

    /// Creates a failure from an error, after the text of what failed.
    pub(super) fn of(doing: impl Display) -> impl FnOnce(io::Error) -> ExecFailure {
        move |error| ExecFailure { message: format!("{doing}: {error}"), retry: retry_class(&error) }
    }
}

/// Runs as a trampoline; returns only if nothing was executed.
pub fn trampoline_main() -> ExitCode {
    // A session of its own, and so a process group. In the session of the supervisor, a stopped process would get SIGHUP from the
    // kernel when the supervisor dies. It fails only for the leader of a group, which a new child is not.
    if rustix::process::setsid().is_err() {
        return ExitCode::FAILURE;
    }
    // The duplicate is closed by `exec`; the standard input is not, and becomes the program's.
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return ExitCode::FAILURE;
    };
    let mut request = Vec::new();
    let received = BufReader::new(&socket).read_until(b'\n', &mut request);
    if received.is_err() || request.last() != Some(&b'\n') {
        return ExitCode::FAILURE;
    }
    let not_executed = match serde_json::from_slice(&request) {
        Ok(execute) => execute_it(&execute),
        Err(error) => ExecFailure::permanent(format!("cannot read request of supervisor: {error}")),
    };
    let _ = (&socket).write_all(&line(&not_executed));
    ExitCode::from(127)
}

fn execute_it(execute: &ExecRequest) -> ExecFailure {
    let Some((program, args)) = execute.argv.split_first() else {
        return ExecFailure::permanent("invalid argv: must not be empty");
    };
    if let Err(error) = prepare(execute) {
        return ExecFailure::retryable(format!("cannot prepare to execute {program}: {error}"));
    }
    let error = Command::new(program).args(args).env_clear().envs(&execute.env).exec();
    ExecFailure::of(format!("cannot execute {program}"))(error)
}

fn prepare(execute: &ExecRequest) -> io::Result<()> {
    // The parent of the server may have left it descriptors unknown here.
    close_fds::set_fds_cloexec(3, &[]);
    let input = match &execute.input {
        Some(path) => console::open_input(path.as_ref())?,
        None => std::fs::File::open("/dev/null")?,
    };
    rustix::stdio::dup2_stdin(input)?;
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    if let Some(memory) = execute.memory {
        // Data, not the address space: programs reserve far more of that than they use.
        let limit = Some(memory.get());
        setrlimit(Resource::Data, Rlimit { current: limit, maximum: limit })?;
    }
    if let Some(files) = execute.files {
        // A server has raised its own limit, which is inherited. Programs that use `select` break with
        // descriptors from 1024, and some close every possible descriptor.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let current = Some(maximum.map_or(files, |maximum| files.min(maximum)));
        setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    }
    Ok(())
}

/// Classifies an error: a shortage may end, a fault of the program stays.
pub(super) fn retry_class(error: &io::Error) -> RetryClass {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(
            Errno::AGAIN
            | Errno::NOMEM
            | Errno::NFILE
            | Errno::MFILE
            | Errno::TXTBSY
            | Errno::IO
            | Errno::NOSPC
            | Errno::DQUOT
            | Errno::ADDRINUSE
            | Errno::ADDRNOTAVAIL
            | Errno::INTR,
        ) => RetryClass::Retryable,
        _ => RetryClass::Permanent,
    }
}
