//! What the decider says to an executor, as it is kept until it may leave.

use std::time::Duration;

use chancery_events::fact::Judgement;
use chancery_events::id::{Lineage, ObjectId};
use chancery_events::name::FleetName;
use chancery_events::protocol::{Again, Command, Envelope, FromDecider, Head};
use chancery_events::size::json_bytes;

/// Something said to an executor, before the head that it carries is known.
#[derive(Debug)]
pub(super) struct Saying {
    pub(super) envelope: Envelope,
    pub(super) what: What,
}

/// A part of what is wanted of an executor.
#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) commands: Vec<Command>,
    /// Their bytes.
    pub(super) bytes: usize,
    /// If there is more, behind which it goes on.
    pub(super) rest: Option<ObjectId>,
}

/// What is said.
#[derive(Debug)]
pub(super) enum What {
    Welcome { lineage: Lineage, fleet: FleetName, lease: Duration, part: Inventory },
    Inventory(Inventory),
    Command(Command),
    Accepted(u64),
    Forget(ObjectId),
    Judged(ObjectId, Judgement, u32),
    Beat(u64),
    Refused(String, Again),
    Closed(String),
}

impl Saying {
    /// The bytes of the commands in it.
    pub(super) fn bytes(&self) -> usize {
        match &self.what {
            What::Welcome { part, .. } | What::Inventory(part) => part.bytes,
            What::Command(command) => json_bytes(command),
            What::Accepted(_)
            | What::Forget(_)
            | What::Judged(..)
            | What::Beat(_)
            | What::Refused(..)
            | What::Closed(_) => 0,
        }
    }

    /// With the head that is durable when it is said.
    pub(super) fn at(self, head: Head) -> FromDecider {
        let envelope = Envelope { head, ..self.envelope };
        match self.what {
            What::Welcome { lineage, fleet, lease, part: Inventory { commands, rest, bytes: _ } } => {
                FromDecider::Welcome { envelope, lineage, fleet, lease, commands, rest }
            }
            What::Inventory(Inventory { commands, rest, bytes: _ }) => {
                FromDecider::Inventory { envelope, commands, rest }
            }
            What::Command(command) => FromDecider::Command { envelope, command },
            What::Accepted(sequence) => FromDecider::Accepted { envelope, sequence },
            What::Forget(object) => FromDecider::Forget { envelope, object },
            What::Judged(object, judgement, revision) => {
                FromDecider::Judged { envelope, object, judgement, revision }
            }
            What::Beat(beat) => FromDecider::Beat { envelope, beat },
            What::Refused(reason, again) => FromDecider::Refused { reason, again },
            What::Closed(reason) => FromDecider::Closed { reason },
        }
    }
}
