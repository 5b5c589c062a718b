//! Guests of virtual machines: what QEMU reports about them, and the ends that follow.
//!
//! QEMU is started so that it pauses when a guest ends (`command_line`). The end stays readable until it is recorded, and only
//! then QEMU is ended. So no end is lost while nothing listens. The exit status of QEMU does not show how a guest ended: it is 0 for
//! nearly every end.
//!
//! | report of QEMU | guest |
//! |---|---|
//! | event `SHUTDOWN` by the guest, status `shutdown` | powered itself off |
//! | event `GUEST_PANICKED`, status `guest-panicked` | panicked |
//! | status `internal-error` | QEMU cannot continue it |
//! | event `RESET` | resets counted; runs on, and is rebooting until it is ready again |
//! | no reply to a command | unreachable: neither ready nor ended |
//! | status `running` | runs |
//! | other events and statuses | starts, or is paused: not ready |

use serde::{Deserialize, Serialize};

mod backup;
mod command_line;
mod heartbeat;
mod link;
mod qmp;
mod watch;

pub(super) use backup::{back_up, cancel_backup};
pub use command_line::{GuestAccelerator, QemuSettings};
pub(super) use command_line::{GuestProcess, command_line};
pub(super) use heartbeat::AcceleratorCheck;
use qmp::QmpEvent;
pub(super) use watch::GuestWatch;

/// State of a guest, as QEMU has reported it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct GuestRecord {
    /// Name of the guest in QEMU: an adopting executor recognizes the guest by it.
    pub(super) name: String,
    pub(super) status: GuestStatus,
    /// Number of resets since the start.
    pub(super) resets: u32,
    /// Highest revision of a requested reset that was carried out.
    #[serde(default)]
    pub(super) reset_revision: u32,
    pub(super) end: Option<GuestEnd>,
    /// Whether the guest was requested to power off before it ended.
    pub(super) is_end_requested: bool,
    /// Text that the guest writes to its first serial port when it is ready, if it is awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<AwaitedLine>,
}

/// Text that is awaited on the first serial port of a guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct AwaitedLine {
    pub(super) text: String,
    /// Whether the guest has written it since its last start or reset.
    pub(super) is_seen: bool,
}

/// Status of a guest that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GuestStatus {
    /// QEMU reports no running guest: the guest starts, or is paused.
    Starting,
    /// The guest runs.
    Running,
    /// QEMU does not answer.
    Unreachable,
}

/// End of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GuestEnd {
    /// The guest powered itself off.
    PoweredOff,
    /// The guest panicked.
    Panicked,
    /// QEMU cannot continue the guest.
    InternalError,
}

impl GuestEnd {
    /// Returns why the end is a failure, if it is one.
    pub(super) const fn reason(self) -> Option<&'static str> {
        match self {
            GuestEnd::PoweredOff => None,
            GuestEnd::Panicked => Some("panicked"),
            GuestEnd::InternalError => Some("was given up by QEMU: internal error"),
        }
    }
}

impl GuestRecord {
    /// Creates the record of a guest that is about to start, and the text that is awaited on its first serial port.
    pub(super) fn begin(name: String, line: Option<&str>) -> GuestRecord {
        GuestRecord {
            name,
            status: GuestStatus::Starting,
            resets: 0,
            reset_revision: 0,
            end: None,
            is_end_requested: false,
            line: line.map(|text| AwaitedLine { text: text.to_owned(), is_seen: false }),
        }
    }

    /// Whether an awaited text was not seen yet.
    pub(super) fn awaits_line(&self) -> bool {
        self.line.as_ref().is_some_and(|line| !line.is_seen)
    }

    /// Notes whether the awaited text was seen.
    fn note_line(&mut self, is_seen: bool) {
        if let Some(line) = &mut self.line {
            line.is_seen = is_seen;
        }
    }

    /// Notes an event of QEMU.
    fn note_event(&mut self, event: &QmpEvent) {
        match event.name.as_str() {
            "SHUTDOWN" if event.data["guest"] == true && event.data["reason"] == "guest-panic" => {
                self.end_with(GuestEnd::Panicked);
            }
            "SHUTDOWN" if event.data["guest"] == true => self.end_with(GuestEnd::PoweredOff),
            "GUEST_PANICKED" => self.end_with(GuestEnd::Panicked),
            _ => {}
        }
    }

    /// Notes the run state that QEMU reports, and whether the guest runs. QEMU pauses a guest for reasons of its own, as for
    /// an error of a disk.
    fn note_status(&mut self, status: &str, runs: bool) {
        match status {
            "shutdown" => self.end_with(GuestEnd::PoweredOff),
            "guest-panicked" => self.end_with(GuestEnd::Panicked),
            "internal-error" => self.end_with(GuestEnd::InternalError),
            _ if runs => self.status = GuestStatus::Running,
            _ => self.status = GuestStatus::Starting,
        }
    }

    /// The first end counts: later ones follow from it.
    fn end_with(&mut self, end: GuestEnd) {
        self.end.get_or_insert(end);
    }
}

#[cfg(test)]
mod tests;
