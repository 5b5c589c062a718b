//! Invariant 13: answers to readers.
//!
//! | read | demand |
//! |---|---|
//! | is answered | the answer names a position that is at least that of every verdict that the server returned before the request came, unless the read waived that, and at least the position that the read named; the rows are those that the facts up to that position define |
//! | is refused with `position_not_applied` | it waited for a position of the journal, and the rows were behind it |
//!
//! Facts define an entity's version (one more for each fact whose first subject it is) and the position of
//! the last fact about it. Other parts of rows are compared elsewhere.

use std::collections::BTreeMap;

use chancery_events::fact::Fact;
use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::subject::Subject;

use super::state::FactLocation;
use super::violation::{InvariantViolation, RuleResult, demand};

/// History fields of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowStamp {
    /// Version of the entity.
    pub version: u64,
    /// Position of the fact that last changed the entity.
    pub changed: Position,
}

/// Rows of a list, by their subject.
pub type StampList = BTreeMap<Subject, RowStamp>;

/// Fact about an entity.
#[derive(Clone, Copy, Debug)]
struct EntityChange {
    at: Position,
    /// Version after the fact; zero if the entity is deleted.
    version: u64,
}

/// Verdicts that servers returned, and the changes of each entity.
#[derive(Clone, Default, Debug)]
pub struct ReadChecker {
    /// Highest verdict position of each server, by its number. A restarted server keeps its number.
    highest: BTreeMap<usize, Position>,
    changes: BTreeMap<Subject, Vec<EntityChange>>,
    head: Position,
}

/// Effect of a fact on its first subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SubjectEffect {
    /// Creates the entity, whatever had its name before.
    Begins,
    /// Creates the entity unless it exists.
    Applies,
    /// Deletes the entity.
    Ends,
    /// Changes the entity if it exists.
    Changes,
}

fn effect(fact: &Fact) -> SubjectEffect {
    match fact {
        Fact::DeploymentCreated(_)
        | Fact::ReplicaCreated(_)
        | Fact::VolumeCreated(_)
        | Fact::VolumeSnapshotStarted(_) => SubjectEffect::Begins,
        Fact::ClusterApplied(_)
        | Fact::CapabilityApplied(_)
        | Fact::NodeApplied(_)
        | Fact::PolicyApplied(_)
        | Fact::PlanApplied(_) => SubjectEffect::Applies,
        Fact::ClusterDeleted(_)
        | Fact::CapabilityDeleted(_)
        | Fact::NodeDeleted(_)
        | Fact::PolicyDeleted(_)
        | Fact::PlanDeleted(_)
        | Fact::ReplicaDeleted(_)
        | Fact::VolumeDestroyed(_) => SubjectEffect::Ends,
        // All others are about what exists.
        _ => SubjectEffect::Changes,
    }
}

/// Whether only a fact of its own deletes the entity. Others are deleted after their end or with their owner.
fn lasts(subject: &Subject) -> bool {
    match subject {
        Subject::Cluster(_)
        | Subject::Capability(_)
        | Subject::Node(_)
        | Subject::Plan(_)
        | Subject::Policy(_)
        | Subject::Replica(_) => true,
        Subject::Fleet
        | Subject::Deployment(..)
        | Subject::Incarnation(_)
        | Subject::Operation(_)
        | Subject::Session(_)
        | Subject::Volume(_)
        | Subject::Request(_) => false,
    }
}

/// Whether facts alone define when a row last changed. Other rows contain other entities too.
fn is_of_itself(subject: &Subject) -> bool {
    !matches!(subject, Subject::Node(_) | Subject::Plan(_) | Subject::Deployment(..) | Subject::Replica(_))
}

impl ReadChecker {
    pub(super) fn fact(&mut self, fact: &Fact, at: FactLocation) {
        if let Some(issued) = fact.issues(at.lineage, at.position) {
            self.changes.entry(issued).or_default().push(EntityChange { at: at.position, version: 1 });
        }
        // Verdicts name what an intent was about, and change nothing of it.
        if matches!(fact, Fact::IntentAccepted(_) | Fact::IntentRefused(_)) {
            return;
        }
        for (number, subject) in fact.subjects().into_iter().enumerate() {
            let changes = self.changes.entry(subject).or_default();
            let now = changes.last().map_or(0, |last| last.version);
            let version = match effect(fact) {
                _ if number > 0 => now,
                SubjectEffect::Begins => 1,
                SubjectEffect::Applies => now + 1,
                SubjectEffect::Ends => 0,
                SubjectEffect::Changes => now + u64::from(now > 0),
            };
            if now > 0 || version > 0 {
                changes.push(EntityChange { at: at.position, version });
            }
        }
    }

    pub(super) fn take(&mut self, record: &Record) {
        self.head = record.last();
    }

    /// Notes that a server returned a verdict, which every later read there must follow.
    pub(super) fn gave(&mut self, server: usize, verdict: Position) {
        let last = self.highest.entry(server).or_default();
        *last = verdict.max(*last);
    }

    /// Returns the minimum position for the answer to a read that comes now and waives nothing.
    pub fn least(&self, server: usize) -> Position {
        self.highest.get(&server).copied().unwrap_or_default()
    }

    fn reached(&self, least: Position, position: Position) -> RuleResult {
        demand!(
            13,
            position >= least,
            "a read is answered at position {position}, and must have reached {least}"
        );
        demand!(13, position <= self.head, "a read is answered at a position behind the end, {}", self.head);
        Ok(())
    }

    /// Returns the last change of an existing entity, up to a position.
    fn last_change(changes: &[EntityChange], position: Position) -> Option<EntityChange> {
        let before = changes.partition_point(|change| change.at <= position);
        changes[..before].last().copied().filter(|change| change.version > 0)
    }

    /// Checks invariant 13 for a read of one row that must have reached `least`; `None` if missing.
    pub fn row(
        &self,
        least: Position,
        position: Position,
        subject: &Subject,
        row: Option<RowStamp>,
    ) -> RuleResult {
        self.reached(least, position)
            .and_then(|()| self.same(position, subject, row))
            .map_err(|v| v.at(position))
    }

    fn same(&self, position: Position, subject: &Subject, row: Option<RowStamp>) -> RuleResult {
        let changes = self.changes.get(subject).map_or(&[][..], Vec::as_slice);
        match (ReadChecker::last_change(changes, position), row) {
            (Some(last), Some(RowStamp { version, changed })) => {
                demand!(
                    13,
                    version == last.version,
                    "{subject} is shown in version {version}, not {}",
                    last.version
                );
                let by_itself = changed == last.at || !is_of_itself(subject);
                demand!(13, by_itself, "{subject} is shown as changed at {changed}, not {}", last.at);
                demand!(13, changed <= position, "{subject} is shown as it is after position {changed}");
                Ok(())
            }
            (Some(last), None) => {
                demand!(13, !lasts(subject), "{subject} is not shown, which has version {}", last.version);
                Ok(())
            }
            (None, Some(_)) => {
                Err(InvariantViolation::new(13, format!("{subject} is shown, which is not there")))
            }
            (None, None) => Ok(()),
        }
    }

    /// Checks invariant 13 for a read of a whole kind that must have reached `least`. `kind` is the name of a
    /// kind whose entities are deleted by their own facts.
    pub fn list(&self, least: Position, position: Position, kind: &str, list: &StampList) -> RuleResult {
        let of_kind = self.changes.keys().filter(|subject| subject.kind() == kind);
        let unknown = list.keys().filter(|subject| !self.changes.contains_key(*subject));
        let same = |subject: &Subject| self.same(position, subject, list.get(subject).copied());
        self.reached(least, position)
            .and_then(|()| of_kind.chain(unknown).try_for_each(same))
            .map_err(|violation| violation.at(position))
    }

    /// Checks invariant 13 for a refused read that waited for `wanted`, with the rows at `rows`.
    pub fn not_applied(&self, wanted: Position, rows: Position) -> RuleResult {
        demand!(13, rows < wanted, "a read is refused at position {rows}, and wants no more than {wanted}");
        demand!(13, wanted <= self.head, "a read waits for position {wanted}, behind the end, {}", self.head);
        Ok(())
    }
}
