//! Who holds the lock of an incarnation's folder, and what is heard from there.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::process::Child;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::OwnedSemaphorePermit;

use super::folder::{Folder, Record};
use super::foster::Foster;
use super::wire::{self, Request};
use crate::durable::Lock;

const CONNECT_FIRST: Duration = Duration::from_millis(3);
const CONNECT_MOST: Duration = Duration::from_millis(100);
/// Between two looks, if the first failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Who holds the lock.
#[derive(Debug)]
pub(super) enum Hold {
    /// There is no folder.
    Nothing,
    /// It could not be found out.
    Unknown,
    /// We, and nothing runs.
    Ours(#[expect(dead_code, reason = "held, not used")] File),
    /// We, and orphans run.
    Foster(Foster),
    /// A keeper, or soon a keeper.
    Kept(KeeperLink),
}

/// What is heard.
#[derive(Debug)]
pub(super) enum Event {
    /// The keeper's record.
    Record(Record),
    /// No keeper holds the lock any more; or it is time to look again.
    Look,
    /// An orphan died, by its number in the record; or it is time for another sweep.
    Orphan(Option<usize>),
}

impl Hold {
    /// Waits for the next event. Safe to cancel.
    pub(super) async fn next(&mut self) -> Event {
        match self {
            Hold::Nothing | Hold::Ours(_) => std::future::pending().await,
            Hold::Unknown => {
                tokio::time::sleep(LOOK_AGAIN).await;
                Event::Look
            }
            Hold::Foster(foster) => Event::Orphan(foster.next().await),
            Hold::Kept(link) => link.next().await,
        }
    }
}

/// A connection to a keeper, or the way to one.
#[derive(Debug)]
pub(super) struct KeeperLink {
    folder: Folder,
    /// The keeper, if this executor started it: it is to be reaped.
    child: Option<Child>,
    /// Given back when the keeper says that it has started everything, or is gone.
    permit: Option<OwnedSemaphorePermit>,
    connection: Option<(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf)>,
    pause: Duration,
    /// To be said when connected: the shortest grace.
    stop: Option<Duration>,
}

impl KeeperLink {
    pub(super) fn new(
        folder: Folder,
        child: Option<Child>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> KeeperLink {
        KeeperLink { folder, child, permit, connection: None, pause: CONNECT_FIRST, stop: None }
    }

    /// Asks the keeper to end everything; now, or when it can be reached.
    pub(super) fn stop(&mut self, grace: Duration) {
        self.stop = Some(self.stop.map_or(grace, |stop| stop.min(grace)));
    }

    async fn next(&mut self) -> Event {
        loop {
            let Some((lines, writer)) = &mut self.connection else {
                if self.is_lost() {
                    return Event::Look;
                }
                tokio::time::sleep(self.pause).await;
                self.pause = (self.pause * 2).min(CONNECT_MOST);
                self.connection = connect(&self.folder).await.ok();
                continue;
            };
            if let Some(grace) = self.stop {
                // Short enough for the socket's buffer: it is written whole or not at all. A keeper that does not
                // read it is dead, and found so below.
                let _ = writer.write_all(&wire::line(&Request::Stop { grace })).await;
                self.stop = None;
            }
            let line = lines.next_line().await;
            let Ok(Some(line)) = line else {
                self.connection = None;
                self.pause = CONNECT_FIRST;
                continue;
            };
            match serde_json::from_str::<Record>(&line) {
                Ok(record) => {
                    if record.phase != super::folder::Phase::Recorded {
                        self.permit = None;
                    }
                    return Event::Record(record);
                }
                Err(error) => tracing::error!(%error, "a keeper says what cannot be read"),
            }
        }
    }

    /// Whether there is no keeper any more, nor one to come.
    fn is_lost(&mut self) -> bool {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                // It may yet get to the lock.
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => self.child = None,
            }
        }
        // Another keeper, started by an earlier life, may have been quicker.
        match self.folder.lock() {
            Ok(Lock::Theirs) => false,
            Ok(Lock::Ours(_)) => true,
            Err(error) => {
                tracing::warn!(%error, "look for a keeper");
                error.kind() == io::ErrorKind::NotFound
            }
        }
    }
}

impl Drop for KeeperLink {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It has let go of the lock, so it is about to end.
            drop(tokio::task::spawn_blocking(move || child.wait()));
        }
    }
}

async fn connect(folder: &Folder) -> io::Result<(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf)> {
    // By way of a descriptor, because the path of a socket may have about 100 bytes and no more.
    let dir = File::open(folder.path())?;
    let stream = UnixStream::connect(format!("/proc/self/fd/{}/keeper.sock", dir.as_raw_fd())).await?;
    let (reader, writer) = stream.into_split();
    Ok((BufReader::new(reader).lines(), writer))
}
