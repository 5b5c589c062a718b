//! Volumes: folders that outlive what uses them. A volume is the folder `volumes/<id>/`; in the executor, a task tends it.
//!
//! | file | holds |
//! |---|---|
//! | `volume.json`, `volume.copy` | the highest order, the spec, and how far it has come, durably (`durable`); makes the folder ours |
//! | `data` | what is in it |
//! | `data.new` | the same while it is being made, empty |
//! | `doomed` | the same while it is being destroyed |
//! | `used` | how much it uses; a hint, not synced |
//!
//! A folder without our record, or whose record names another id, is not ours: it is left as it is, whatever is ordered.
//!
//! A crash at any point leaves one of these, and the same command again ends in one volume, or in none:
//!
//! | crash after | what is found | what comes of it |
//! |---|---|---|
//! | making the folder | an empty folder | nothing is there until the command comes again |
//! | recording the order | a record, no `data` | the command again makes it |
//! | making `data.new`, giving it its name | the same, or an empty `data` | the command again takes it as it is |
//! | recording that it was made | that record, and `data` | it is there |
//! | recording that it is to be destroyed | that record, and `data` | the next executor goes on |
//! | moving `data` out of the way, removing some of it | that record, and `doomed` | the next executor goes on |
//! | recording that it is gone | the tombstone | it is gone |
//!
//! *What was made is never made again.* With the record that it was made and without `data` it is lost: that is recorded,
//! and told as an end. A new empty folder in its place would look like success to whoever lost what was in it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::Hope;
use chancery_events::protocol::{ObjectSpec, VolumeSpec};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod destroying;
mod home;
mod mark;
mod usage;
mod users;

pub use usage::Used;
pub(super) use users::{check, mounts_any, place};

use super::drift::Place;
use super::tender::{Ask, Next};
use super::{Processes, Shared, leave};
use crate::durable::if_found;
use crate::executor_store::{DirectoryStore, ExecutorStore as _, Found};
use crate::or_never;
use crate::orchestrator::{Orchestrator as _, WorkProgress};
use crate::plan::{self, Aim, Order, Step, Told};
use destroying::Removal;
use home::{Home, Kept, Phase};

/// Between two looks whether what is in a volume is still there.
const LOOK: Duration = Duration::from_secs(2);

/// Where volumes are kept.
pub(super) fn root(root: &Path) -> PathBuf {
    root.join("volumes")
}

/// The volumes that earlier lives left.
pub(super) fn find(volumes: &Path) -> io::Result<Vec<VolumeId>> {
    let mut found = Vec::new();
    for (id, path) in DirectoryStore::at(volumes.to_owned()).list()? {
        match id {
            _ if mark::is_mark(&path) => {}
            Some(ObjectId::Volume(id)) => match Home::of(volumes, id).look() {
                Ok(Found::Ours(_)) => found.push(id),
                // A crash came before the first record, or behind the last.
                Ok(Found::Nothing) => {}
                Ok(Found::Foreign(why)) => leave(&path, &why),
                Err(error) => leave(&path, &error.to_string()),
            },
            Some(ObjectId::Incarnation(_)) | None => leave(&path, "its name is that of no volume"),
        }
    }
    Ok(found)
}

/// Tends one volume.
pub(super) struct Warden {
    volume: VolumeId,
    home: Home,
    shared: Arc<Shared>,
    found: Option<Found<Kept>>,
    /// The folder that was found to be ours.
    is: Option<Place>,
    /// Why nothing can be said of it now.
    unknown: Option<String>,
    shown: Option<Told>,
    removal: Option<Removal>,
    measuring: Option<JoinHandle<io::Result<(Used, Duration)>>>,
    measured_at: Instant,
    /// It uses more than it may, and that was said.
    is_over: bool,
}

impl Warden {
    pub(super) fn new(volume: VolumeId, shared: Arc<Shared>) -> Warden {
        Warden {
            volume,
            home: Home::of(&shared.volumes(), volume),
            shared,
            found: None,
            is: None,
            unknown: None,
            shown: None,
            removal: None,
            measuring: None,
            measured_at: Instant::now(),
            is_over: false,
        }
    }

    /// Tends until it is forgotten, or until the orchestrator is dropped.
    pub(super) async fn tend(mut self, mut asks: mpsc::Receiver<Ask>, settled: Option<oneshot::Sender<()>>) {
        self.look();
        self.settle();
        if let Some(settled) = settled {
            let _ = settled.send(());
        }
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                ask = asks.recv() => match ask {
                    None => return,
                    Some(_) if self.shared.check_open().is_err() => return,
                    Some(Ask::Order { order, spec, done }) => {
                        self.order(order, spec).await;
                        self.settle();
                        let _ = done.send(WorkProgress::Begun);
                    }
                    Some(Ask::Forget(done)) => {
                        if self.forget() == Next::Over {
                            // Closed first, so that whoever is answered sees that this task is over.
                            asks.close();
                            let _ = done.send(WorkProgress::Begun);
                            return;
                        }
                        let _ = done.send(WorkProgress::Begun);
                    }
                },
                removed = over(self.removal.as_mut().map(|removal| &mut removal.job)) => {
                    self.removal = None;
                    self.removed(removed);
                    self.settle();
                }
                measured = over(self.measuring.as_mut()) => {
                    self.measuring = None;
                    self.measured(measured);
                }
                _ = looks.tick() => {
                    self.look();
                    self.measure();
                    self.settle();
                }
            }
        }
    }

    /// What is known of it as ours.
    fn kept(&self) -> Option<&Kept> {
        match &self.found {
            Some(Found::Ours(kept)) => Some(kept),
            Some(Found::Nothing | Found::Foreign(_)) | None => None,
        }
    }

    /// Finds out what is there; what an earlier life was about to destroy is destroyed.
    fn look(&mut self) {
        // Whether the disk is there is of interest where something is not.
        if self.is_whole() {
            return;
        }
        let unknown = mark::missing(&self.shared.root).unwrap_or_else(|error| Some(error.to_string()));
        if let Some(why) = unknown {
            if self.unknown.is_none() {
                tracing::error!(why, volume = %self.volume, "nothing can be said of it");
            }
            (self.found, self.unknown) = (None, Some(why));
            return;
        }
        self.unknown = None;
        // What stands there may have taken the place of ours.
        if self.kept().is_some() && !self.home.identity().is_ok_and(|now| now.is_none() || now == self.is) {
            self.found = None;
        }
        if self.kept().is_none() {
            let was_foreign = matches!(self.found, Some(Found::Foreign(_)));
            self.found = match self.home.look() {
                Ok(found) => Some(found),
                Err(error) => {
                    tracing::error!(%error, volume = %self.volume, "look at what is there");
                    None
                }
            };
            self.is = self.home.identity().ok().flatten();
            if let (Some(Found::Foreign(why)), false) = (&self.found, was_foreign) {
                tracing::warn!(why, volume = %self.volume, "left as it is");
            }
            if let Some(kept) = self.kept() {
                let goes_on = kept.is_being_destroyed();
                if let Err(error) = self.home.mend() {
                    tracing::warn!(%error, volume = %self.volume, "look at the copies of its record");
                }
                if goes_on {
                    self.begin_removal();
                }
            }
        }
        self.find_lost();
    }

    /// Whether it is up, in the folder that was found to be ours, with what is in it.
    fn is_whole(&self) -> bool {
        self.kept().is_some_and(Kept::is_up)
            && self.is.is_some()
            && self.home.identity().is_ok_and(|now| now == self.is)
            && self.home.has_data().is_ok_and(|has| has)
    }

    /// Records that it is lost, if it is. What cannot be found out is not lost.
    fn find_lost(&mut self) {
        let Some(kept) = self.kept().filter(|kept| kept.is_up()) else { return };
        if self.home.has_data().unwrap_or(true) {
            return;
        }
        let reason =
            format!("what was in it is not there any more: {} is no folder", self.home.data().display());
        tracing::error!(reason, volume = %self.volume, "a volume is lost");
        if let Err(error) = self.keep(Kept { phase: Phase::Lost { reason }, ..kept.clone() }) {
            tracing::error!(%error, volume = %self.volume, "record that it is lost");
        }
    }

    /// Records what is so from now on. If that fails, what is on disk counts, and is looked at again.
    fn keep(&mut self, kept: Kept) -> io::Result<()> {
        self.shared.check_open()?;
        let last = self.kept().map(|kept| &kept.order);
        let written = self.home.keep(last, &kept, self.is);
        self.found = written.is_ok().then_some(Found::Ours(kept));
        self.is = written.as_ref().ok().copied();
        written.map(drop)
    }

    fn settle(&mut self) {
        let Some(kept) = self.kept() else { return };
        let told = plan::report(self.volume.into(), &kept.present());
        if self.shown.as_ref() == Some(&told) {
            return;
        }
        self.shared.board.show_told(told.clone());
        self.shown = Some(told);
    }

    fn refuse(&self, revision: u32, message: String, hope: Hope) {
        self.shared.board.refuse(self.volume.into(), revision, message, hope);
    }

    async fn order(&mut self, order: Order, spec: Option<ObjectSpec>) {
        self.look();
        match &self.found {
            Some(Found::Nothing | Found::Ours(_)) => {}
            Some(Found::Foreign(why)) => {
                return self.refuse(order.revision, format!("it is not ours: {why}"), Hope::Retry);
            }
            None => {
                let why = self.unknown.clone();
                let message = why.unwrap_or_else(|| "what is there cannot be found out".to_owned());
                return self.refuse(order.revision, message, Hope::Retry);
            }
        }
        let present = self.kept().map(Kept::present);
        let step = plan::step(present.as_ref(), &order, spec.as_ref(), Processes::CHANGES);
        let there = present.and_then(|present| present.spec);
        let spec = match plan::accepted(&step, there, spec.as_ref()) {
            Some(ObjectSpec::Volume(spec)) => Some(spec),
            Some(ObjectSpec::Run(_)) | None => None,
        };
        let carried_out = match step {
            Step::Answer => {
                self.shown = None;
                Ok(())
            }
            Step::Refuse(message, hope) => return self.refuse(order.revision, message.to_owned(), hope),
            Step::Start => self.make(order, spec),
            // A volume is never changed.
            Step::Adopt | Step::Change => self.adopt(order, spec),
            Step::Bury if order.aim == Aim::Up => self.take_as_it_is(order, spec),
            Step::End(_) | Step::Bury => self.destroy(order, spec).await,
        };
        if let Err(error) = carried_out {
            self.refuse(order.revision, format!("carry out the order: {error}"), Hope::Retry);
        }
    }

    fn make(&mut self, order: Order, spec: Option<VolumeSpec>) -> io::Result<()> {
        let capacity = spec.as_ref().map_or(0, |spec| spec.capacity);
        let kept = Kept { volume: self.volume, order, spec, phase: Phase::Accepted };
        self.shared.check_open()?;
        mark::make(&self.shared.root)?;
        self.shown = None;
        self.keep(kept.clone())?;
        let free = usage::free(self.home.path())?;
        if free < capacity {
            let message = format!("{capacity} bytes are asked for, and {free} are free");
            return self.keep(Kept { phase: Phase::Failed { message, hope: Hope::Retry }, ..kept });
        }
        self.shared.check_open()?;
        self.home.make_data()?;
        self.keep(Kept { phase: Phase::Made, ..kept })
    }

    /// It was told to be there once: it is, or it is gone. Nothing is removed for want of a record.
    fn take_as_it_is(&mut self, order: Order, spec: Option<VolumeSpec>) -> io::Result<()> {
        let phase = if self.home.has_data()? { Phase::Made } else { Phase::Gone };
        self.shown = None;
        self.keep(Kept { volume: self.volume, order, spec, phase })
    }

    fn adopt(&mut self, order: Order, spec: Option<VolumeSpec>) -> io::Result<()> {
        let Some(kept) = self.kept() else { return Ok(()) };
        let kept = Kept { order, spec, ..kept.clone() };
        self.shown = None;
        self.keep(kept)
    }

    /// Drops what is kept of one that is over, and nothing that was ever used.
    fn forget(&mut self) -> Next {
        match self.try_forget() {
            Ok(()) => {
                self.shared.board.clear(ObjectId::Volume(self.volume));
                Next::Over
            }
            Err(error) => {
                tracing::error!(%error, volume = %self.volume, "forget it");
                self.shown = None;
                self.settle();
                Next::GoOn
            }
        }
    }

    fn try_forget(&self) -> io::Result<()> {
        let Some(kept) = self.kept() else {
            // What is not ours is not known to anybody either.
            return Ok(());
        };
        let was_never_told = matches!(kept.phase, Phase::Accepted | Phase::Failed { .. });
        if kept.is_being_destroyed()
            || kept.phase == Phase::Made
            || (!was_never_told && self.home.has_data()?)
        {
            return Err(io::Error::other("it is not over"));
        }
        // Fails if anything is in it.
        for name in ["data", "data.new"] {
            if_found(std::fs::remove_dir(self.home.file(name)))?;
        }
        self.home.drop_record()
    }

    /// Begins to measure it, if it is time.
    fn measure(&mut self) {
        let is_up = self.kept().is_some_and(Kept::is_up);
        if !is_up || self.measuring.is_some() || Instant::now() < self.measured_at {
            return;
        }
        let (data, one_at_a_time) = (self.home.data(), self.shared.measures.clone());
        self.measuring = Some(tokio::spawn(async move {
            let _turn = one_at_a_time.acquire_owned().await.map_err(io::Error::other)?;
            tokio::task::spawn_blocking(move || usage::measure(&data)).await.map_err(io::Error::other)?
        }));
    }

    fn measured(&mut self, measured: io::Result<(Used, Duration)>) {
        let used = match measured {
            Ok((used, pause)) => {
                self.measured_at = Instant::now() + pause;
                used
            }
            Err(error) => {
                tracing::warn!(%error, volume = %self.volume, "measure what it uses");
                self.measured_at = Instant::now() + usage::EVERY;
                return;
            }
        };
        let Some(kept) = self.kept().filter(|kept| kept.is_up()) else { return };
        let (bytes, capacity) = (used.bytes, kept.spec.as_ref().map_or(u64::MAX, |spec| spec.capacity));
        if let Err(error) = used.note(&self.home) {
            tracing::warn!(%error, volume = %self.volume, "note what it uses");
        }
        if bytes > capacity && !self.is_over {
            tracing::warn!(volume = %self.volume, bytes, capacity, "it uses more than its capacity");
        }
        self.is_over = bytes > capacity;
    }
}

/// Waits for what goes on beside, if anything does.
async fn over<T>(job: Option<&mut JoinHandle<io::Result<T>>>) -> io::Result<T> {
    or_never(job).await.map_err(io::Error::other)?
}
