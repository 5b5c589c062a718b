//! Purging of an incarnation.

use std::io;
use std::ops::ControlFlow;

use super::super::incarnation_dir::remove_groups;
use super::super::lock_holder::LockHolder;
use super::super::removal;
use super::{IncarnationReconciler, RemovalDebt};
use crate::state_file;

impl IncarnationReconciler {
    /// Deletes everything that is stored of an ended incarnation. A directory that cannot be removed is a
    /// debt, which is retried. It is not reported: that would bring the same command again immediately.
    pub(super) fn forget(&mut self) -> ControlFlow<()> {
        if !matches!(self.hold, LockHolder::None | LockHolder::Executor(_)) {
            tracing::error!(incarnation = %self.incarnation, "cannot purge incarnation: not ended");
            self.debt = None;
            self.shown = None;
            self.settle();
            return ControlFlow::Continue(());
        }
        match self.drop_directory() {
            Ok(()) => {
                self.shared.board.clear(self.incarnation.into());
                ControlFlow::Break(())
            }
            Err(error) => {
                RemovalDebt::note(&mut self.debt, self.incarnation_directory.path(), &error);
                ControlFlow::Continue(())
            }
        }
    }

    fn drop_directory(&self) -> io::Result<()> {
        // A killed supervisor, or a machine that went down, leaves its groups.
        for error in remove_groups(self.wanted.as_ref(), self.record.as_ref()) {
            tracing::warn!(%error, incarnation = %self.incarnation, "control group left in place");
        }
        let forgotten = self.shared.forgotten();
        state_file::make_directory(&forgotten)?;
        let moved = forgotten.join(self.incarnation.to_string());
        removal::relocate(self.incarnation_directory.path(), &moved)?;
        self.shared.clear_forgotten(self.incarnation, moved);
        Ok(())
    }
}
