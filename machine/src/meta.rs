//! Metadata of every entity: its version, its creation and its last change.

use chancery_events::id::{Lineage, Position, Term};
use chancery_events::time::Time;
use serde::{Deserialize, Serialize};

/// Journal position of a fact that is being folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FactPosition {
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
pub struct FactStamp {
    /// Position of the fact.
    pub position: Position,
    /// Time of the commit.
    pub time: Time,
}

impl From<FactPosition> for FactStamp {
    fn from(at: FactPosition) -> FactStamp {
        FactStamp { position: at.position, time: at.time }
    }
}

/// Metadata of an entity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EntityMeta {
    /// Number of facts about the entity, which is their first subject.
    pub version: u64,
    /// First fact about the entity.
    pub created: FactStamp,
    /// Last fact that changed the entity.
    pub changed: FactStamp,
}

impl EntityMeta {
    /// Creates the metadata of a new entity.
    pub fn new(at: FactPosition) -> EntityMeta {
        EntityMeta { version: 1, created: at.into(), changed: at.into() }
    }

    /// Records a fact whose first subject is the entity.
    pub fn bump(&mut self, at: FactPosition) {
        self.version += 1;
        self.changed = at.into();
    }

    /// Records a change by a fact about another entity.
    pub fn touch(&mut self, at: FactPosition) {
        self.changed = at.into();
    }
}
