//! Ends that no supervisor reports: proved, or unknown (`proof`); and supervisors that do not answer.

use std::io;

use chancery_events::observation::RetryClass;

use super::super::lock_holder::LockHolder;
use super::super::proof::{StartedIn, supervisors};
use super::super::unsupervised;
use super::IncarnationReconciler;
use crate::reconcile::TargetGoal;

impl IncarnationReconciler {
    /// Records the end of unsupervised processes of which nothing is left.
    pub(super) fn end_orphans(&mut self) -> io::Result<()> {
        let (LockHolder::Unsupervised(processes), Some(record)) = (&mut self.hold, &mut self.record) else {
            return Ok(());
        };
        processes.finish_output();
        if self.lost.is_none() {
            // Processes of another PID namespace have ended unobserved too.
            record.end_unseen();
            let exit = record.exit();
            unsupervised::finish(&self.incarnation_directory, self.wanted.as_ref(), record, exit)?;
            self.look();
        }
        Ok(())
    }

    /// Logs that an end cannot be proved, and answers a target that waits for the end. Records nothing:
    /// volumes stay in use, and the search continues.
    pub(super) fn doubt_end(&mut self, why: &str) {
        if self.doubt.as_deref() != Some(why) {
            tracing::error!(
                why,
                incarnation = %self.incarnation,
                hint = "reboot the machine, or expunge the node",
                "cannot prove end of incarnation"
            );
            self.doubt = Some(why.to_owned());
        }
        let Some(order) = self.wanted.as_ref().map(|wanted| wanted.order) else { return };
        let this = Some((order.revision, order.attempt));
        if order.aim != TargetGoal::Up && self.doubted != this {
            self.doubted = this;
            let message = format!("cannot prove end of incarnation: {why}");
            self.refuse(order.revision, message, RetryClass::Retryable);
        }
    }

    /// Kills a supervisor that does not answer a request to end everything. Its processes are then adopted,
    /// and ended with their grace.
    pub(super) fn end_silent_supervisor(&mut self) {
        let killed = self.kill_supervisor();
        if killed == 0 {
            self.doubt_end("supervisor does not answer, and is not visible here");
        } else {
            tracing::warn!(incarnation = %self.incarnation, "unresponsive supervisor killed");
        }
    }

    /// Kills the supervisor, if it is visible here. Returns the number of processes found.
    pub(super) fn kill_supervisor(&mut self) -> usize {
        let record = self.record.as_ref();
        let origin = record.and_then(|record| StartedIn::of(record, &self.shared.boot).ok());
        let found = tokio::task::block_in_place(|| supervisors(&self.incarnation_directory, record, origin));
        for supervisor in &found {
            supervisor.signal(rustix::process::Signal::KILL);
        }
        // Last: a dead supervisor would not be found.
        if let LockHolder::Supervisor(socket) = &mut self.hold {
            socket.kill();
        }
        found.len()
    }
}
