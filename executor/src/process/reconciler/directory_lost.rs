//! Checks of the directory, and ends of incarnations that lost their directory (`integrity`).

use std::io;
use std::time::Duration;

use chancery_events::observation::{IncarnationExit, RetryClass};
use chancery_events::protocol::CommandStatus;

use super::super::incarnation_dir::{ProcessesFile, RecordOrigin, SpecFile, StartPhase, remove_groups};
use super::super::integrity::{DirectoryCheck, DirectoryLoss, DirectoryWatch, FileId};
use super::super::lock_holder::LockHolder;
use super::super::proof::RemainingProcesses;
use super::super::unsupervised::UnsupervisedProcesses;
use super::IncarnationReconciler;
use crate::executor_store::ObjectStore as _;
use crate::reconcile::{ObjectTarget, ReadyHistory, TargetGoal};
use crate::state_file::{FileAccess, LockAttempt};

impl IncarnationReconciler {
    /// Watches the directory while anything runs.
    pub(super) fn keep_watch(&mut self) {
        let runs = matches!(self.hold, LockHolder::Supervisor(_) | LockHolder::Unsupervised(_));
        let is_over = self.record.as_ref().is_some_and(ProcessesFile::is_over);
        if runs && !is_over && self.lost.is_none() {
            self.watch.get_or_insert_with(|| {
                self.shared.watcher.watch(self.incarnation, &self.incarnation_directory)
            });
        } else {
            self.watch = None;
        }
    }

    /// Returns the loss of the directory, if it is not the one in which the known record was written.
    pub(super) fn loss_of_directory(&self) -> io::Result<Option<DirectoryLoss>> {
        let Some(record) = &self.record else { return Ok(None) };
        let found = FileId::of(self.incarnation_directory.path())?;
        if found.is_none() {
            return Ok(Some(DirectoryLoss::Removed));
        }
        let is_elsewhere = record.origin(found, &self.shared.boot) == RecordOrigin::Elsewhere;
        Ok((!record.is_over() && is_elsewhere).then_some(DirectoryLoss::Replaced))
    }

    /// Handles a change of the directory or its files.
    pub(super) fn look_after_directory(&mut self, seen: DirectoryCheck) {
        match seen {
            DirectoryCheck::Same => {}
            DirectoryCheck::Changed => {
                if let Err(error) = self.put_right() {
                    tracing::warn!(%error, incarnation = %self.incarnation, "cannot repair directory");
                    self.watch.iter().for_each(DirectoryWatch::again);
                }
            }
            DirectoryCheck::Lost(loss) => {
                tracing::error!(%loss, incarnation = %self.incarnation, "ending processes without directory");
                self.lost = Some(loss);
                match &mut self.hold {
                    LockHolder::Supervisor(socket) => socket.lose(loss),
                    LockHolder::Unsupervised(unsupervised) => unsupervised.end(Duration::ZERO),
                    LockHolder::None
                    | LockHolder::Unknown
                    | LockHolder::Executor(_)
                    | LockHolder::RestartPending(..) => {}
                }
            }
        }
    }

    /// Restores the known content of the directory.
    fn put_right(&mut self) -> io::Result<()> {
        self.read_wanted()?;
        match &mut self.hold {
            LockHolder::Supervisor(socket) => socket.look(),
            LockHolder::Unsupervised(unsupervised) => {
                if let Some(record) = &self.record
                    && !matches!(
                        self.incarnation_directory.read::<ProcessesFile>(FileAccess::Owner),
                        Ok(Some(_))
                    )
                {
                    tracing::warn!(incarnation = %self.incarnation, "rewriting process record");
                    self.incarnation_directory.write(record)?;
                }
                unsupervised.check_lock()?;
            }
            LockHolder::None
            | LockHolder::Unknown
            | LockHolder::Executor(_)
            | LockHolder::RestartPending(..) => {}
        }
        Ok(())
    }

    /// Reads the specification. If it is missing or unreadable, the known one is written again.
    pub(super) fn read_wanted(&mut self) -> io::Result<()> {
        match (self.incarnation_directory.read::<SpecFile>(FileAccess::Owner), &self.wanted) {
            (Ok(None) | Err(_), Some(known)) => {
                tracing::warn!(incarnation = %self.incarnation, "rewriting spec");
                self.incarnation_directory.write(known)
            }
            (read, _) => {
                self.wanted = read?;
                Ok(())
            }
        }
    }

    /// Reads the record. The known record counts as long as no other can be read.
    pub(super) fn read_record(&mut self, lock: &LockAttempt) -> io::Result<()> {
        let by = match lock {
            LockAttempt::Acquired(_) => FileAccess::Owner,
            LockAttempt::HeldElsewhere => FileAccess::Observer,
        };
        match (self.incarnation_directory.read::<ProcessesFile>(by), lock) {
            (Ok(None), _) => {}
            (Ok(read), _) => self.record = read,
            // A supervisor sends its record once it is reached, and repairs an unreadable one.
            (Err(error), LockAttempt::HeldElsewhere) => {
                tracing::warn!(%error, incarnation = %self.incarnation, "cannot read record of supervisor");
            }
            (Err(error), LockAttempt::Acquired(_)) if self.record.is_some() => {
                tracing::warn!(%error, incarnation = %self.incarnation, "cannot read record");
            }
            (Err(error), LockAttempt::Acquired(_)) => return Err(error),
        }
        Ok(())
    }

    /// Ends all known processes and those that name the lost directory. No supervisor can be reached.
    pub(super) fn look_without_directory(&mut self) -> io::Result<LockHolder> {
        self.kill_supervisor();
        let boot = &self.shared.boot;
        let record = match &mut self.record {
            Some(record) => record,
            none => {
                let group = self.shared.cgroup.as_ref().map(|parent| parent.found(self.incarnation));
                let group = group.transpose()?.flatten();
                none.insert(ProcessesFile { group, ..ProcessesFile::begin(boot)? })
            }
        };
        if record.is_over() {
            return Ok(LockHolder::None);
        }
        let directory = self.incarnation_directory.clone();
        let mut unsupervised =
            UnsupervisedProcesses::adopt(None, directory, self.wanted.as_ref(), record, boot)?;
        unsupervised.end(Duration::ZERO);
        Ok(LockHolder::Unsupervised(Box::new(unsupervised)))
    }

    /// Makes the directory again with the end in it, once nothing is left.
    pub(super) fn conclude_lost(&mut self, rest: Option<&RemainingProcesses>) -> io::Result<()> {
        let (Some(loss), Some(record)) = (self.lost, &mut self.record) else { return Ok(()) };
        let is_over = match &self.hold {
            LockHolder::Unsupervised(_) => rest == Some(&RemainingProcesses::Nothing),
            LockHolder::None
            | LockHolder::Unknown
            | LockHolder::Executor(_)
            | LockHolder::RestartPending(..)
            | LockHolder::Supervisor(_) => record.is_over(),
        };
        if !is_over {
            return Ok(());
        }
        if !record.is_over() {
            record.phase = how_it_ended(record, loss, self.wanted.as_ref().map(|wanted| wanted.order.aim));
        }
        for error in remove_groups(self.wanted.as_ref(), Some(record)) {
            tracing::warn!(%error, incarnation = %self.incarnation, "control group left in place");
        }
        self.record_again()
    }

    fn record_again(&mut self) -> io::Result<()> {
        // Nothing is known of an incarnation that was found by its processes alone.
        let nothing = ObjectTarget {
            revision: 0,
            attempt: 0,
            aim: TargetGoal::Up,
            is_reboot: false,
            status: CommandStatus::Fulfilled,
            grace: Duration::ZERO,
        };
        let wanted = self.wanted.take().unwrap_or_else(|| self.as_configured(nothing, None));
        self.wanted = Some(wanted.clone());
        self.incarnation_directory.make()?;
        let LockAttempt::Acquired(lock) = self.incarnation_directory.lock()? else {
            return Err(io::Error::other("cannot lock recreated directory: another process has the lock"));
        };
        if let Some(tombstone) = self.tombstone {
            self.incarnation_directory.write(&tombstone)?;
        }
        if let Some(record) = &self.record {
            self.incarnation_directory.write(record)?;
        }
        // Last: this file makes the directory ours.
        self.incarnation_directory.write(&wanted)?;
        if self.before == ReadyHistory::Ready {
            self.incarnation_directory.note_ready(self.ready_resets);
        }
        (self.lost, self.starting, self.hold) = (None, false, LockHolder::Executor(lock));
        Ok(())
    }
}

/// Returns the end of an incarnation whose directory was lost. A requested end stays one; what was never
/// recorded has not run.
fn how_it_ended(record: &mut ProcessesFile, loss: DirectoryLoss, aim: Option<TargetGoal>) -> StartPhase {
    if record.processes.is_empty() && aim.is_some() {
        return StartPhase::Failed { message: loss.to_string(), retry: RetryClass::Retryable };
    }
    record.end_unseen();
    match aim {
        Some(TargetGoal::Down | TargetGoal::Removed) => StartPhase::Ended { exit: record.exit() },
        Some(TargetGoal::Up) | None => {
            StartPhase::Ended { exit: IncarnationExit::Failed { reason: loss.to_string() } }
        }
    }
}
