//! What every entity keeps of its own history: its version, when it came and when it last changed.

use chancery_events::id::{Lineage, Position, Term};
use chancery_events::time::Time;
use serde::{Deserialize, Serialize};

/// Where in the journal a fact stands, as it is folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Its position.
    pub position: Position,
    /// Its commit's time.
    pub time: Time,
    /// Its commit's term.
    pub term: Term,
    /// Its commit's lineage.
    pub lineage: Lineage,
}

/// When something happened, by position and by time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stamp {
    /// The fact's position.
    pub position: Position,
    /// Its commit's time.
    pub time: Time,
}

impl From<At> for Stamp {
    fn from(at: At) -> Stamp {
        Stamp { position: at.position, time: at.time }
    }
}

/// An entity's own history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// One more for each fact about it: each fact whose first subject it is.
    pub version: u64,
    /// Its first fact.
    pub created: Stamp,
    /// The last fact that changed it.
    pub changed: Stamp,
}

impl Meta {
    /// Of an entity that comes into being.
    pub fn new(at: At) -> Meta {
        Meta { version: 1, created: at.into(), changed: at.into() }
    }

    /// A fact about it: it is the first subject.
    pub fn bump(&mut self, at: At) {
        self.version += 1;
        self.changed = at.into();
    }

    /// A fact about something else changed it too.
    pub fn touch(&mut self, at: At) {
        self.changed = at.into();
    }
}
