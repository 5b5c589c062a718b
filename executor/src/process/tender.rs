//! The task that tends one incarnation: it takes orders one after the other, follows the keeper or the orphans, and
//! shows what there is. It decides by [`crate::plan`] alone.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::IncarnationId;
use chancery_events::observation::{Hope, ProcessStatus, Report, Saw};
use chancery_events::protocol::ObjectSpec;
use tokio::sync::{mpsc, oneshot};

use super::drift::{Loss, Place, Watch};
use super::folder::{Folder, Origin, Phase, Record, Wanted, present};
use super::foster::Foster;
use super::hold::{self, Event, Hold, KeeperLink};
use super::probe::Probes;
use super::proof::Rest;
use super::removal::{Debt, RETRY};
use super::{Processes, Shared, reboot};
use crate::durable::{Lock, Reader};
use crate::executor_store::{ObjectStore as _, Tombstone};
use crate::or_never;
use crate::orchestrator::{Orchestrator as _, WorkProgress};
use crate::plan::{self, Aim, Before, Order, Present, State, Step, Told};

mod folder_lost;
mod forgetting;
mod starting;
mod unproved;

/// From its last word until it has let go of the lock.
const KEEPER_LEAVES: Duration = Duration::from_secs(5);

/// What a tender is asked; it answers when the work has begun.
#[derive(Debug)]
pub(super) enum Ask {
    Order { order: Order, spec: Option<ObjectSpec>, done: oneshot::Sender<WorkProgress> },
    Forget(oneshot::Sender<WorkProgress>),
}

/// Whether the tender has anything left to tend.
#[derive(PartialEq)]
pub(super) enum Next {
    GoOn,
    Over,
}

/// See the module.
pub(super) struct Tender {
    incarnation: IncarnationId,
    folder: Folder,
    shared: Arc<Shared>,
    hold: Hold,
    wanted: Option<Wanted>,
    tombstone: Option<Tombstone>,
    record: Option<Record>,
    before: Before,
    probes: Option<Probes>,
    /// A keeper of ours is on its way, and nothing was recorded yet.
    starting: bool,
    shown: Option<Told>,
    /// While something runs.
    watch: Option<Watch>,
    /// What has become of the folder of something that runs, until its end stands in a new one.
    lost: Option<Loss>,
    /// Why nothing can be said of it now.
    unknown: Option<String>,
    /// Why the folder of something that is to be forgotten cannot be removed yet.
    debt: Option<Debt>,
    /// Why its end cannot be proved, as it was logged.
    doubt: Option<String>,
    /// Revision and attempt of the last order that was answered so.
    doubted: Option<(u32, u32)>,
}

impl Tender {
    /// One for what is in the folder; or for what runs though its folder was lost.
    pub(super) fn new(
        incarnation: IncarnationId,
        folder: Folder,
        shared: Arc<Shared>,
        lost: Option<Loss>,
    ) -> Tender {
        Tender {
            incarnation,
            folder,
            shared,
            hold: Hold::Unknown,
            wanted: None,
            tombstone: None,
            record: None,
            before: Before::NeverReady,
            probes: None,
            starting: false,
            shown: None,
            watch: None,
            lost,
            unknown: None,
            debt: None,
            doubt: None,
            doubted: None,
        }
    }

    /// Tends until it is forgotten, or until the orchestrator is dropped.
    pub(super) async fn tend(mut self, mut asks: mpsc::Receiver<Ask>, settled: Option<oneshot::Sender<()>>) {
        self.look();
        self.settle();
        if let Some(settled) = settled {
            let _ = settled.send(());
        }
        loop {
            tokio::select! {
                biased;
                ask = asks.recv() => match ask {
                    None => return,
                    Some(Ask::Order { order, spec, done }) => {
                        let progress = self.order(order, spec).await;
                        self.settle();
                        let _ = done.send(progress);
                    }
                    Some(Ask::Forget(done)) => {
                        self.catch_up().await;
                        let next = self.forget();
                        if next == Next::Over {
                            // Closed first, so that whoever is answered sees that this tender is over.
                            asks.close();
                        }
                        let _ = done.send(WorkProgress::Begun);
                        if next == Next::Over {
                            return;
                        }
                    }
                },
                () = tokio::time::sleep(RETRY), if self.debt.is_some() => {
                    if self.forget() == Next::Over {
                        return;
                    }
                }
                event = self.hold.next() => {
                    self.hear(event);
                    self.settle();
                }
                seen = or_never(self.watch.as_ref().map(Watch::next)) => {
                    self.look_after_folder(seen);
                    self.settle();
                }
                () = or_never(self.probes.as_mut().map(Probes::changed)) => self.settle(),
            }
        }
    }

    /// Finds out who holds the lock, and what is recorded.
    fn look(&mut self) {
        self.hold = match self.try_look() {
            Ok(hold) => {
                self.unknown = None;
                hold
            }
            Err(error) => {
                let why = error.to_string();
                if self.unknown.as_ref() != Some(&why) {
                    tracing::error!(%error, incarnation = %self.incarnation, "look at what is there");
                }
                self.unknown = Some(why);
                Hold::Unknown
            }
        };
    }

    fn try_look(&mut self) -> io::Result<Hold> {
        if self.lost.is_none() {
            self.lost = self.loss_of_folder()?;
        }
        if self.lost.is_some() {
            return self.look_without_folder();
        }
        if !self.folder.path().try_exists()? {
            return Ok(Hold::Nothing);
        }
        self.read_wanted()?;
        let lock = self.folder.lock()?;
        // Behind the lock: nobody else writes the record, if it is ours.
        self.tombstone = self.folder.read::<Tombstone>(Reader::Writer)?;
        // Nothing that can fail stands between the record and the question whose it is.
        let place = Place::of(self.folder.path())?;
        self.read_record(&lock)?;
        let origin = self.origin(place)?;
        self.before = self.folder.was_ready();
        let aim = self.wanted.as_ref().map(|wanted| wanted.order);
        Ok(match (lock, &mut self.record) {
            (Lock::Ours(lock), Some(record))
                if origin == Origin::Here
                    && reboot::next(self.wanted.as_ref(), self.tombstone, record, &self.shared.boot)
                        == reboot::Next::Again =>
            {
                let spec = self.wanted.as_ref().and_then(|wanted| wanted.spec.as_ref());
                Hold::Again(lock, self.shared.starts_of(spec))
            }
            (Lock::Ours(lock), Some(record)) if !record.is_over() => {
                let output = self.wanted.as_ref().map(|wanted| wanted.output).unwrap_or_default();
                let mut foster =
                    Foster::adopt(Some(lock), self.folder.clone(), output, record, &self.shared.boot)?;
                let grace = aim.map(|order| order.grace).unwrap_or_default();
                if aim.is_some_and(|order| order.aim != Aim::Up)
                    || record.processes.iter().any(|p| p.end.is_some())
                {
                    foster.end(grace);
                }
                Hold::Foster(Box::new(foster))
            }
            (Lock::Ours(lock), _) => Hold::Ours(lock),
            (Lock::Theirs, _) => {
                let mut link = KeeperLink::new(self.folder.clone(), None, None);
                // An earlier life may have been cut off before it could ask.
                if let Some(order) = aim.filter(|order| order.aim != Aim::Up) {
                    link.stop(order.grace);
                }
                Hold::Kept(link)
            }
        })
    }

    /// Whose processes the record names. Of those of another directory nothing is known here, as long as they may run.
    fn origin(&mut self, place: Option<Place>) -> io::Result<Origin> {
        let Some(record) = self.record.as_ref().filter(|record| !record.is_over()) else {
            return Ok(Origin::Here);
        };
        let origin = record.origin(place, &self.shared.boot);
        if origin == Origin::Elsewhere {
            // Nothing that comes later takes them for ours.
            self.record = None;
            return Err(io::Error::other(
                "its directory is a copy: what is recorded there may run, and belongs to the original",
            ));
        }
        Ok(origin)
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Record(record) => {
                self.starting = false;
                self.record = Some(*record);
            }
            Event::Look => self.look(),
            Event::Silent => self.end_silent_supervisor(),
            Event::Turn(permit) => self.start_again(permit),
            Event::Orphan(dead) => {
                let (Hold::Foster(foster), Some(record)) = (&mut self.hold, &mut self.record) else { return };
                let grace = self.wanted.as_ref().map(|wanted| wanted.order.grace).unwrap_or_default();
                foster.go_on(dead, record, grace);
            }
        }
    }

    /// What is there.
    fn present(&self) -> Option<Present> {
        let probed = |number| match &self.probes {
            Some(probes) => probes.status(number),
            None => ProcessStatus::Initializing,
        };
        let record = self.record.as_ref();
        let mut present = present(self.wanted.as_ref()?, self.tombstone, record, self.before, probed);
        if let Hold::Again(..) = self.hold {
            // What is recorded was there before the reboot.
            present.state = State::Starting { processes: Vec::new() };
        }
        if matches!(&self.hold, Hold::Foster(foster) if foster.is_elsewhere()) {
            present.state.lose_sight();
        }
        // With a keeper at work, a record may come at any moment.
        if present.state == State::Accepted && matches!(self.hold, Hold::Kept(_)) {
            present.state = State::Starting { processes: Vec::new() };
        }
        Some(present)
    }

    /// Brings everything that follows from what is there up to date.
    fn settle(&mut self) {
        self.conclude();
        let is_here = match &self.hold {
            Hold::Again(..) => false,
            Hold::Foster(foster) => !foster.is_elsewhere(),
            Hold::Nothing | Hold::Unknown | Hold::Ours(_) | Hold::Kept(_) => true,
        };
        let up = self.record.as_ref().filter(|record| record.phase == Phase::Started && is_here);
        match (up, self.wanted.as_ref().and_then(|wanted| wanted.spec.as_ref())) {
            (Some(record), Some(spec)) => {
                self.probes.get_or_insert_with(|| Probes::begin(spec, record, self.before));
            }
            _ => self.probes = None,
        }
        self.keep_watch();
        let Some(present) = self.present() else { return };
        let told = plan::report(self.incarnation.into(), &present);
        if let Told::Change(Report { saw: Saw::Ready { .. }, .. }) = &told
            && self.before == Before::NeverReady
        {
            self.before = Before::Ready;
            self.folder.note_ready();
        }
        if self.before == Before::Ready
            && let Some(probes) = &mut self.probes
        {
            probes.watch_liveness();
        }
        // Something that could not be found out is not told: it may be running.
        if self.shown.as_ref() != Some(&told) && !matches!(self.hold, Hold::Unknown) {
            self.show(told);
        }
    }

    fn show(&mut self, told: Told) {
        self.shared.board.show_told(told.clone());
        self.shown = Some(told);
    }

    /// Records ends and absences that are proved by now.
    fn conclude(&mut self) {
        if let Err(error) = self.try_conclude() {
            tracing::error!(%error, incarnation = %self.incarnation, "record an end");
            // Looked at again soon, and concluded then.
            self.hold = Hold::Unknown;
        }
        if self.starting && matches!(self.hold, Hold::Ours(_) | Hold::Nothing) {
            self.starting = false;
            if self.record.is_none() {
                let revision = self.wanted.as_ref().map_or(0, |wanted| wanted.order.revision);
                self.refuse(revision, hold::last_words(&self.folder), Hope::Retry);
            }
        }
    }

    fn try_conclude(&mut self) -> io::Result<()> {
        let rest = match &mut self.hold {
            Hold::Foster(foster) => Some(foster.rest()),
            Hold::Nothing | Hold::Unknown | Hold::Ours(_) | Hold::Again(..) | Hold::Kept(_) => None,
        };
        match &rest {
            Some(Rest::Nothing) => self.end_orphans()?,
            Some(Rest::Unknown(why)) => self.doubt_end(why),
            Some(Rest::Something) | None => self.doubt = None,
        }
        self.conclude_lost(rest.as_ref())?;
        self.conclude_again()?;
        let (Hold::Ours(_), Some(wanted)) = (&self.hold, &self.wanted) else { return Ok(()) };
        let kept = match self.record.as_ref().map(|record| &record.phase) {
            None | Some(Phase::Failed { .. }) => false,
            Some(Phase::Recorded | Phase::Started | Phase::Again | Phase::Ended { .. }) => {
                wanted.order.aim != Aim::Removed
            }
        };
        let buried = self.tombstone.is_some_and(|tombstone| tombstone.covers(&wanted.order));
        let over = wanted.order.aim != Aim::Up || (self.record.is_none() && !wanted.order.may_start());
        if over && !kept && !buried {
            self.tombstone = Some(self.folder.bury(wanted.order.revision)?);
            self.starting = false;
        }
        Ok(())
    }

    /// All is over, and someone still has the lock, as a keeper that says so: waits until it is ours.
    async fn catch_up(&mut self) {
        let freed = async {
            while matches!(self.hold, Hold::Kept(_))
                && self.present().is_some_and(|present| present.state.is_over())
            {
                let event = self.hold.next().await;
                self.hear(event);
                self.settle();
            }
        };
        if tokio::time::timeout(KEEPER_LEAVES, freed).await.is_err() {
            tracing::warn!(incarnation = %self.incarnation, "its keeper is over and does not leave");
        }
    }

    async fn order(&mut self, order: Order, spec: Option<ObjectSpec>) -> WorkProgress {
        // The decider knows it after all.
        self.debt = None;
        self.catch_up().await;
        if let Hold::Unknown = self.hold {
            self.look();
        }
        if let Hold::Unknown = self.hold {
            let why = self.unknown.as_deref().unwrap_or("its end could not be recorded");
            self.refuse(order.revision, format!("what is there cannot be found out: {why}"), Hope::Retry);
            return WorkProgress::Begun;
        }
        if let Some(loss) = self.lost {
            self.refuse(order.revision, format!("{loss}, and it is being ended"), Hope::Retry);
            return WorkProgress::Begun;
        }
        let present = self.present();
        let unrecorded = matches!(self.hold, Hold::Kept(_)) && self.record.is_none();
        // If the keeper that is on its way does not start it, this order fails.
        self.starting |= unrecorded && order.may_start();
        match plan::step(present.as_ref(), &order, spec.as_ref(), Processes::CHANGES) {
            Step::Answer => self.shown = None,
            Step::Refuse(message, hope) => self.refuse(order.revision, message.to_owned(), hope),
            step => match self.take(&step, order, spec).await {
                Ok(progress) => return progress,
                Err(error) => {
                    self.refuse(order.revision, format!("carry out the order: {error}"), Hope::Retry);
                }
            },
        }
        WorkProgress::Begun
    }

    fn refuse(&self, revision: u32, message: String, hope: Hope) {
        self.shared.board.refuse(self.incarnation.into(), revision, message, hope);
    }
}
