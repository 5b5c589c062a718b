//! Moment of the reads of a command: as given at first, then that of the first answer, so that all reads of a
//! command are those of one record.

use std::cell::{Cell, RefCell};

use chancery_events::time::Time;
use ureq::http::HeaderMap;

use crate::note;

/// Moment of reads.
#[derive(Default)]
pub(super) struct ClientMoment {
    text: RefCell<Option<String>>,
    /// Whether an answer has named the record of the moment.
    is_found: Cell<bool>,
    /// Time of that record.
    time: Cell<Option<Time>>,
}

impl ClientMoment {
    pub(super) fn set(&self, moment: Option<String>) {
        self.text.replace(moment);
        self.is_found.set(false);
        self.time.set(None);
    }

    pub(super) fn get(&self) -> Option<String> {
        self.text.borrow().clone()
    }

    /// Time of the moment, if an answer has named it.
    pub(super) fn time(&self) -> Option<Time> {
        self.time.get()
    }

    /// Takes the record of the moment from the headers of an answer, and shows it.
    pub(super) fn note(&self, headers: &HeaderMap) {
        if self.is_found.get() || self.text.borrow().is_none() {
            return;
        }
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        // Only an answer at a moment has a time.
        if let (Some(position), Some(time)) = (text("chancery-position"), text("chancery-time")) {
            let lineage = text("chancery-lineage").map_or(String::new(), |lineage| format!(".{lineage}"));
            self.text.replace(Some(format!("{position}{lineage}")));
            self.is_found.set(true);
            self.time.set(time.parse().ok());
            note!("as of position {position}, {time}");
        }
    }
}
