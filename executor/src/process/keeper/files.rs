//! Supervision of the incarnation's directory, which other processes may change (`drift`).

use std::io;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use super::super::drift::{Loss, Place, Seen};
use super::super::folder::{Folder, Record, Wanted};
use super::super::log::log;
use super::Keeper;
use crate::durable::{Lock, Reader};
use crate::executor_store::ObjectStore as _;

/// Interval of checks without a client. A connected executor checks the directory and requests a check.
const ALONE: Duration = Duration::from_secs(5);

/// Whether the supervisor owns the directory.
#[derive(PartialEq)]
pub(super) enum Mine {
    Yes,
    /// Another process holds the lock, and has taken over.
    No,
}

impl Keeper {
    /// Time of the next check, if no client requests one.
    pub(super) fn looks_at(&self) -> Option<Instant> {
        self.clients.is_empty().then_some(self.looked + ALONE)
    }

    /// Checks the directory, and repairs what has changed.
    pub(super) fn look_around(&mut self) -> Mine {
        self.looked = Instant::now();
        if self.lost.is_some() {
            return Mine::Yes;
        }
        match self.sight.look() {
            Seen::Same => return Mine::Yes,
            Seen::Changed => {}
            Seen::Lost(loss) => {
                self.lose(loss);
                return Mine::Yes;
            }
        }
        if let Err(error) = self.check_socket() {
            log(format_args!("make the socket anew: {error}"));
        }
        let mine = self.check_lock().unwrap_or_else(|error| {
            log(format_args!("look at the lock: {error}"));
            Mine::Yes
        });
        // The lock holder writes these.
        if mine == Mine::Yes {
            self.check_spec();
            self.check_record();
        }
        mine
    }

    /// Ends everything: without a directory, only the supervisor can prove what runs.
    pub(super) fn lose(&mut self, loss: Loss) {
        if !self.is_to_end {
            self.lost.get_or_insert(loss);
        }
        self.end(Duration::ZERO);
    }

    /// A lock on a deleted file excludes no process.
    fn check_lock(&mut self) -> io::Result<Mine> {
        let path = self.folder.file("keeper.lock");
        if Place::of(&path)? == Some(Place::of_file(&self.lock)?) {
            return Ok(Mine::Yes);
        }
        log(format_args!("the lock was taken away, and is made anew"));
        match self.folder.lock()? {
            Lock::Ours(lock) => {
                self.lock = lock;
                Ok(Mine::Yes)
            }
            Lock::Theirs => Ok(Mine::No),
        }
    }

    fn check_socket(&mut self) -> io::Result<()> {
        // Relative, as it was created; the working directory is that directory.
        if std::fs::exists("keeper.sock")? {
            return Ok(());
        }
        log(format_args!("the socket was taken away, and is made anew"));
        self.listener = listen()?;
        Ok(())
    }

    /// Repairs the specification, which an executor writes, while none is connected.
    fn check_spec(&self) {
        if self.clients.is_empty() && !matches!(self.folder.read::<Wanted>(Reader::Another), Ok(Some(_))) {
            log(format_args!("what is wanted cannot be read, and is written again as it was at the start"));
            if let Err(error) = self.folder.write(&self.wanted) {
                log(format_args!("write what is wanted: {error}"));
            }
        }
    }

    /// Ensures that the record on disk equals the record in memory.
    fn check_record(&self) {
        let stands = match self.folder.read::<Record>(Reader::Writer) {
            Ok(stands) => stands,
            Err(error) => {
                log(format_args!("{error}"));
                None
            }
        };
        // Before the first write there are no processes.
        if stands.as_ref() != Some(&self.record) && !self.record.processes.is_empty() {
            log(format_args!("the record is not as it was written, and is written again"));
            if let Err(error) = self.folder.write(&self.record) {
                log(format_args!("write the record: {error}"));
            }
        }
    }

    /// Writes the end to disk, and retries on failure: a full disk must not lose it. If the directory is
    /// lost, the record is written where the directory is now, and sent to the clients.
    pub(super) fn record_end(&mut self) {
        while let Err(error) = self.folder.write(&self.record) {
            log(format_args!("write the record: {error}"));
            if self.lost.is_some() || self.place.loss(self.folder.path()).is_some() {
                let _ = Folder::at(".".into()).write(&self.record);
                return;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

/// Listens in the working directory: the path of a socket is limited to about 100 bytes.
pub(super) fn listen() -> io::Result<UnixListener> {
    let _ = std::fs::remove_file("keeper.sock");
    let listener = UnixListener::bind("keeper.sock")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
