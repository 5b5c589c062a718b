//! What a keeper sees to in its incarnation's folder, because somebody else may have been at it (`drift`).

use std::io;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use super::super::drift::{Loss, Place, Seen};
use super::super::folder::{Folder, Record, Wanted};
use super::super::log::log;
use super::Keeper;
use crate::durable::{Lock, Reader};
use crate::executor_store::ObjectStore as _;

/// So often a keeper looks that nobody is connected to. An executor that is connected looks itself, and says so.
const ALONE: Duration = Duration::from_secs(5);

/// Whether the keeper has the folder to itself.
#[derive(PartialEq)]
pub(super) enum Mine {
    Yes,
    /// Somebody else holds its lock by now, and looks after what runs.
    No,
}

impl Keeper {
    /// When to look next, if nobody asks.
    pub(super) fn looks_at(&self) -> Option<Instant> {
        self.clients.is_empty().then_some(self.looked + ALONE)
    }

    /// Sees whether the folder is what it was, and puts right what is not.
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
        // Whoever else has the lock writes these.
        if mine == Mine::Yes {
            self.check_spec();
            self.check_record();
        }
        mine
    }

    /// Ends everything: what runs without its folder cannot be proved to run by anybody but us.
    pub(super) fn lose(&mut self, loss: Loss) {
        if !self.is_to_end {
            self.lost.get_or_insert(loss);
        }
        self.end(Duration::ZERO);
    }

    /// A lock on a file that has no name any more keeps nobody out.
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
        // Relative, as it was made; the folder is the one that we are in.
        if std::fs::exists("keeper.sock")? {
            return Ok(());
        }
        log(format_args!("the socket was taken away, and is made anew"));
        self.listener = listen()?;
        Ok(())
    }

    /// The executor's own record, while there is none to see to it.
    fn check_spec(&self) {
        if self.clients.is_empty() && !matches!(self.folder.read::<Wanted>(Reader::Another), Ok(Some(_))) {
            log(format_args!("what is wanted cannot be read, and is written again as it was at the start"));
            if let Err(error) = self.folder.write(&self.wanted) {
                log(format_args!("write what is wanted: {error}"));
            }
        }
    }

    /// Sees to it that what stands on the disk is what is known here, though the disk or somebody altered it.
    fn check_record(&self) {
        let stands = match self.folder.read::<Record>(Reader::Writer) {
            Ok(stands) => stands,
            Err(error) => {
                log(format_args!("{error}"));
                None
            }
        };
        // Before it is first written there are no processes yet.
        if stands.as_ref() != Some(&self.record) && !self.record.processes.is_empty() {
            log(format_args!("the record is not as it was written, and is written again"));
            if let Err(error) = self.folder.write(&self.record) {
                log(format_args!("write the record: {error}"));
            }
        }
    }

    /// Puts the end on the disk. It must not be lost for a disk that is full for a while; without the folder it is left
    /// where the folder is now, and to whoever hears of it.
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

/// Listens in the working folder: the path of a socket may have about 100 bytes and no more.
pub(super) fn listen() -> io::Result<UnixListener> {
    let _ = std::fs::remove_file("keeper.sock");
    let listener = UnixListener::bind("keeper.sock")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
