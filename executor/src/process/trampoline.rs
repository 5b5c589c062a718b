//! What stands in a process's place until its identity is on disk.
//!
//! It waits at its standard input, a socket to the keeper, for one line: what to execute. If the keeper dies first,
//! the line never comes, and it exits without having executed anything. The socket is closed by a successful
//! `exec`; a failed one is told over it, so that it is never taken for the program's own end.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::num::NonZeroU64;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use chancery_events::observation::Hope;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// The line from the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Execute {
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    /// Bytes of data and anonymous memory that it, and each that it starts, may have.
    pub(super) memory: Option<NonZeroU64>,
    /// Descriptors that it may have open, until it asks for more.
    #[serde(default)]
    pub(super) files: Option<u64>,
}

/// The line to the keeper, if the program could not be executed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NotExecuted {
    pub(super) message: String,
    pub(super) hope: Hope,
}

/// Runs as a trampoline; returns only if nothing was executed.
pub fn trampoline_main() -> ExitCode {
    // The duplicate is closed by `exec`; the standard input is not, and becomes the program's.
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return ExitCode::FAILURE;
    };
    let mut line = Vec::new();
    let told = BufReader::new(&socket).read_until(b'\n', &mut line);
    if told.is_err() || line.last() != Some(&b'\n') {
        return ExitCode::FAILURE;
    }
    let not_executed = match serde_json::from_slice(&line) {
        Ok(execute) => execute_it(&execute),
        Err(error) => NotExecuted { message: format!("read the keeper's line: {error}"), hope: Hope::Never },
    };
    let mut answer = serde_json::to_vec(&not_executed).unwrap_or_default();
    answer.push(b'\n');
    let _ = (&socket).write_all(&answer);
    ExitCode::from(127)
}

fn execute_it(execute: &Execute) -> NotExecuted {
    let Some((program, args)) = execute.argv.split_first() else {
        return NotExecuted { message: "argv is empty".to_owned(), hope: Hope::Never };
    };
    if let Err(error) = prepare(execute.memory, execute.files) {
        return NotExecuted { message: format!("prepare to execute {program}: {error}"), hope: Hope::Retry };
    }
    let error = Command::new(program).args(args).env_clear().envs(&execute.env).exec();
    NotExecuted { message: format!("execute {program}: {error}"), hope: hope(&error) }
}

fn prepare(memory: Option<NonZeroU64>, files: Option<u64>) -> io::Result<()> {
    // Whoever started the server may have left it descriptors that nobody here knows of.
    close_fds::set_fds_cloexec(3, &[]);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    if let Some(memory) = memory {
        // Data, and not the address space: programs reserve far more of that than they use.
        let limit = Some(memory.get());
        setrlimit(Resource::Data, Rlimit { current: limit, maximum: limit })?;
    }
    if let Some(files) = files {
        // A server has raised its own, and what it raised comes down to here. Programs that use `select` break with
        // descriptors of 1024 and more, and some close every one that they might have.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let current = Some(maximum.map_or(files, |maximum| files.min(maximum)));
        setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    }
    Ok(())
}

/// What is short now may be there later; what is wrong with the program stays so.
pub(super) fn hope(error: &io::Error) -> Hope {
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
        ) => Hope::Retry,
        _ => Hope::Never,
    }
}
