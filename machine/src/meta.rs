//! Metadata of every entity: its version, its creation and its last change.

use chancery_events::id::{Lineage, Position, Term};
use chancery_events::time::Time;
use serde::{Deserialize, Serialize};

/// Journal position of a fact that is being folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Position of the fact.
    pub position: Position,
    /// Time of the commit.
    pub time: Time,
    /// Term of the commit.
    pub term: Term,
    /// Lineage of the commit.
    pub lineage: Lineage,
}

/// Position and time of a fact.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stamp {
    /// Position of the fact.
    pub position: Position,
    /// Time of the commit.
    pub time: Time,
}

impl From<At> for Stamp {
    fn from(at: At) -> Stamp {
        Stamp { position: at.position, time: at.time }
    }
}

/// Metadata of an entity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// Number of facts about the entity, which is their first subject.
    pub version: u64,
    /// First fact about the entity.
    pub created: Stamp,
    /// Last fact that changed the entity.
    pub changed: Stamp,
}

impl Meta {
    /// Creates the metadata of a new entity.
    pub fn new(at: At) -> Meta {
        Meta { version: 1, created: at.into(), changed: at.into() }
    }

    /// Records a fact whose first subject is the entity.
    pub fn bump(&mut self, at: At) {
        self.version += 1;
        self.changed = at.into();
    }

    /// Records a change by a fact about another entity.
    pub fn touch(&mut self, at: At) {
        self.changed = at.into();
    }
}
