//! Guests of one incarnation, as the holder of its lock watches them: the supervisor, or the executor without one.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::incarnation_dir::{ProcessesFile, StartedProcess};
use super::link::GuestLink;

/// Time after which the state of a guest is written again, if that failed.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// Links to the guests that have not ended, and whether their states are written. The end of a guest is written before its QEMU
/// ends.
#[derive(Debug, Default)]
pub(in super::super) struct GuestWatch {
    links: Vec<GuestLink>,
    /// Time of the next write, if the record has changed since the last one.
    unwritten: Option<Instant>,
}

impl GuestWatch {
    /// Returns a watch of each guest of a record that has not ended. What the record states is written.
    pub(in super::super) fn of(record: &ProcessesFile, directory: &Path) -> GuestWatch {
        let living = record.processes.iter().enumerate().filter(|(_, process)| process.end.is_none());
        let link = |(number, process): (usize, &StartedProcess)| {
            let name = process.guest.as_ref()?.name.clone();
            Some(GuestLink::new(number, &directory.join(process.name()), name))
        };
        GuestWatch { links: living.filter_map(link).collect(), unwritten: None }
    }

    /// Whether there are no guests.
    pub(in super::super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Time of the next step, if no socket becomes ready.
    pub(in super::super) fn due(&self) -> Option<Instant> {
        self.links.iter().map(GuestLink::due).chain(self.unwritten).min()
    }

    /// Sockets to wait for.
    pub(in super::super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.links.iter().filter_map(GuestLink::socket)
    }

    /// Notes in the record what QEMU has sent. Returns whether the record must be written now.
    pub(in super::super) fn advance(&mut self, record: &mut ProcessesFile) -> bool {
        let processes = &mut record.processes;
        self.links.retain(|link| processes.get(link.number).is_some_and(|process| process.end.is_none()));
        for link in &mut self.links {
            let guest = processes.get_mut(link.number).and_then(|process| process.guest.as_mut());
            let Some(guest) = guest else { continue };
            let before = guest.clone();
            link.advance(guest);
            if before != *guest {
                self.unwritten = Some(Instant::now());
            }
        }
        self.unwritten.is_some_and(|at| Instant::now() >= at)
    }

    /// Notes in the record that the guests of these processes have written the awaited text. Returns whether the record has
    /// changed.
    pub(in super::super) fn note_lines(
        &mut self,
        record: &mut ProcessesFile,
        found: impl Iterator<Item = usize>,
    ) -> bool {
        let mut is_new = false;
        for number in found {
            let guest = record.processes.get_mut(number).and_then(|process| process.guest.as_mut());
            let link = self.links.iter_mut().find(|link| link.number == number);
            let (Some(guest), Some(link)) = (guest, link) else { continue };
            link.note_line();
            is_new |= guest.awaits_line();
            guest.note_line(true);
        }
        is_new
    }

    /// Notes whether the record could be written.
    pub(in super::super) fn note_written(&mut self, is_written: bool) {
        self.unwritten = (!is_written).then(|| Instant::now() + WRITE_AGAIN);
    }

    /// Whether a guest has ended and its end is written: the others must end too.
    pub(in super::super) fn is_over(&self, record: &ProcessesFile) -> bool {
        self.unwritten.is_none() && !self.links.is_empty() && record.has_ended_guest()
    }

    /// Resets each guest that was not reset for this or a higher revision.
    pub(in super::super) fn reset(&mut self, record: &ProcessesFile, revision: u32) {
        for link in &mut self.links {
            let guest = record.processes.get(link.number).and_then(|process| process.guest.as_ref());
            if guest.is_some_and(|guest| guest.end.is_none() && guest.reset_revision < revision) {
                link.reset(revision);
            }
        }
    }

    /// Ends the QEMU of each guest whose end is written, and presses the power button of the others.
    pub(in super::super) fn end(&mut self, record: &ProcessesFile) {
        for link in &mut self.links {
            let guest = record.processes.get(link.number).and_then(|process| process.guest.as_ref());
            let has_ended = guest.is_some_and(|guest| guest.end.is_some());
            if has_ended && self.unwritten.is_none() { link.quit() } else { link.power_down() }
        }
    }
}
