//! How a tender forgets.

use std::io;

use super::super::folder::remove_groups;
use super::super::hold::Hold;
use super::{Next, Tender};
use crate::durable;

impl Tender {
    /// Drops everything that is kept of an incarnation that is over.
    pub(super) fn forget(&mut self) -> Next {
        let over = match &self.hold {
            Hold::Nothing | Hold::Ours(_) => true,
            Hold::Unknown | Hold::Foster(_) | Hold::Again(..) | Hold::Kept(_) => false,
        };
        let dropped = if over { self.drop_folder() } else { Err(io::Error::other("it is not over")) };
        match dropped {
            Ok(()) => {
                self.shared.board.clear(self.incarnation.into());
                Next::Over
            }
            Err(error) => {
                tracing::error!(%error, incarnation = %self.incarnation, "forget it");
                self.shown = None;
                self.settle();
                Next::GoOn
            }
        }
    }

    fn drop_folder(&self) -> io::Result<()> {
        // A keeper that was killed, or a machine that went down, left those that it had made.
        for error in remove_groups(self.wanted.as_ref(), self.record.as_ref()) {
            tracing::warn!(%error, incarnation = %self.incarnation, "a group of a forgotten incarnation stays");
        }
        let forgotten = self.shared.forgotten();
        durable::make_folder(&forgotten)?;
        let moved = forgotten.join(self.incarnation.to_string());
        match std::fs::rename(self.folder.path(), &moved) {
            Ok(()) => durable::sync_folder(self.folder.path())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.shared.clear_forgotten(self.incarnation, &moved);
        Ok(())
    }
}
