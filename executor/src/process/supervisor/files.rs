//! Supervision of the incarnation's directory, which other processes may change (`integrity`).

use std::io;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use super::super::incarnation_dir::{IncarnationDirectory, ProcessesFile, SpecFile};
use super::super::integrity::{DirectoryCheck, DirectoryLoss, FileId};
use super::super::log::log;
use super::Supervisor;
use crate::executor_store::ObjectStore as _;
use crate::state_file::{FileAccess, LockAttempt};

/// Interval of checks without a client. A connected executor checks the directory and requests a check.
const ALONE: Duration = Duration::from_secs(5);

/// Whether the supervisor owns the directory.
#[derive(PartialEq)]
pub(super) enum LockOwnership {
    Yes,
    /// Another process holds the lock, and has taken over.
    No,
}

impl Supervisor {
    /// Time of the next check, if no client requests one.
    pub(super) fn looks_at(&self) -> Option<Instant> {
        self.clients.is_empty().then_some(self.looked + ALONE)
    }

    /// Checks the directory, and repairs what has changed.
    pub(super) fn look_around(&mut self) -> LockOwnership {
        self.looked = Instant::now();
        if self.lost.is_some() {
            return LockOwnership::Yes;
        }
        match self.sight.look() {
            DirectoryCheck::Same => return LockOwnership::Yes,
            DirectoryCheck::Changed => {}
            DirectoryCheck::Lost(loss) => {
                self.lose(loss);
                return LockOwnership::Yes;
            }
        }
        if let Err(error) = self.check_socket() {
            log(format_args!("cannot recreate socket: {error}"));
        }
        let mine = self.check_lock().unwrap_or_else(|error| {
            log(format_args!("cannot check lock: {error}"));
            LockOwnership::Yes
        });
        // The lock holder writes these.
        if mine == LockOwnership::Yes {
            self.check_spec();
            self.check_record();
        }
        mine
    }

    /// Ends everything: without a directory, only the supervisor can prove what runs.
    pub(super) fn lose(&mut self, loss: DirectoryLoss) {
        if !self.is_to_end {
            self.lost.get_or_insert(loss);
        }
        self.end(Duration::ZERO);
    }

    /// A lock on a deleted file excludes no process.
    fn check_lock(&mut self) -> io::Result<LockOwnership> {
        let path = self.directory.file("supervisor.lock");
        if FileId::of(&path)? == Some(FileId::of_file(&self.lock)?) {
            return Ok(LockOwnership::Yes);
        }
        log(format_args!("lock file removed, recreating"));
        match self.directory.lock()? {
            LockAttempt::Acquired(lock) => {
                self.lock = lock;
                Ok(LockOwnership::Yes)
            }
            LockAttempt::HeldElsewhere => Ok(LockOwnership::No),
        }
    }

    fn check_socket(&mut self) -> io::Result<()> {
        // Relative, as it was created; the working directory is that directory.
        if std::fs::exists("supervisor.sock")? {
            return Ok(());
        }
        log(format_args!("socket removed, recreating"));
        self.listener = listen()?;
        Ok(())
    }

    /// Repairs the specification while no executor is connected; a connected executor writes it.
    fn check_spec(&self) {
        if self.clients.is_empty()
            && !matches!(self.directory.read::<SpecFile>(FileAccess::Observer), Ok(Some(_)))
        {
            log(format_args!("spec missing or unreadable, rewriting as at the start"));
            if let Err(error) = self.directory.write(&self.wanted) {
                log(format_args!("cannot write spec: {error}"));
            }
        }
    }

    /// Ensures that the record on disk equals the record in memory.
    fn check_record(&self) {
        let read = self.directory.read::<ProcessesFile>(FileAccess::Owner);
        let stands = read.inspect_err(|error| log(format_args!("{error}"))).ok().flatten();
        // Before the first write there are no processes.
        if stands.as_ref() != Some(&self.record) && !self.record.processes.is_empty() {
            log(format_args!("record differs from what was written, rewriting"));
            if let Err(error) = self.directory.write(&self.record) {
                log(format_args!("cannot write record: {error}"));
            }
        }
    }

    /// Writes the end to disk, and retries on failure: a full disk must not lose it. If the directory is
    /// lost, the record is written where the directory is now, and sent to the clients.
    pub(super) fn record_end(&mut self) {
        while let Err(error) = self.directory.write(&self.record) {
            log(format_args!("cannot write record: {error}"));
            if self.lost.is_some() || self.place.loss(self.directory.path()).is_some() {
                let _ = IncarnationDirectory::at(".".into()).write(&self.record);
                return;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Listens in the working directory: the path of a socket is limited to about 100 bytes.
pub(super) fn listen() -> io::Result<UnixListener> {
    let _ = std::fs::remove_file("supervisor.sock");
    let listener = UnixListener::bind("supervisor.sock")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
