//! Reports of executors about objects, and messages to executors about them, by a fact or a retry.

use std::time::Duration;

use chancery_events::fact::{
    Fact, OrphanResolved, VolumeCreated, VolumeDestroyRequested, VolumeSnapshotStarted,
};
use chancery_events::id::{ObjectId, SessionId};
use chancery_events::name::{ClusterName, VolumeName};
use chancery_events::observation::{
    IncarnationReport, IncarnationReported, ObjectReport, Observation, ObservedState, OrphanReported,
    RetryClass, VolumeReported,
};
use chancery_events::protocol::DeciderMessage;

use super::commands;
use super::core::DeciderCore;

/// Delay until an executor that could not check a running object receives the command again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Journal's knowledge of an object.
enum JournalObject {
    /// Object that has not ended: its cluster, whether its last command had an outcome, and the revision.
    Object { hosts: ClusterName, is_met: bool, revision: u32 },
    /// Object that has ended.
    Over,
    /// Object that the journal never issued.
    Never,
}

impl DeciderCore {
    pub(super) fn report(&mut self, session: SessionId, report: ObjectReport) {
        let Some(live) = self.sessions.live.get(&session) else { return };
        let (by, cluster, seen) = (live.executor.clone(), live.cluster.clone(), live.seen);
        let ObjectReport { object, revision, observed } = report;
        let Some(observed) = observed.shortened() else {
            tracing::warn!(%object, executor = %by, "report ignored: larger than any plan allows");
            return;
        };
        let is_over = matches!(
            observed,
            ObservedState::Ended { .. } | ObservedState::Gone | ObservedState::Failed { .. }
        );
        let known = self.known(object);
        match &known {
            JournalObject::Object { hosts, .. } if *hosts != cluster => {
                tracing::warn!(%object, executor = %by, "report ignored: another cluster hosts the object");
            }
            JournalObject::Object { is_met, revision: asked, .. } => {
                let is_met = *is_met && revision == *asked;
                let has_not_looked =
                    matches!(observed, ObservedState::Failed { retry: RetryClass::Retryable, .. });
                if is_met && has_not_looked && self.sessions.looking.insert(object) {
                    // No outcome is awaited, but whether the object still exists is unknown.
                    self.sessions.retries.insert((self.time + LOOK_AGAIN, object));
                }
                let observation = match object {
                    ObjectId::Incarnation(incarnation) => {
                        let report = IncarnationReport { incarnation, revision, observed };
                        Some(Observation::IncarnationReported(IncarnationReported { session, report }))
                    }
                    ObjectId::Volume(object) => commands::volume(&self.fleet, object).map(|volume| {
                        let (name, report) =
                            (volume.name.clone(), ObjectReport { object, revision, observed });
                        Observation::VolumeReported(VolumeReported { session, name, report })
                    }),
                };
                if let Some(observation) = observation {
                    self.observation(&by, observation);
                }
            }
            // The object has ended here too: the executor's copy may be purged.
            JournalObject::Over if is_over => {
                self.send(session, |envelope| DeciderMessage::Purge { envelope, object });
            }
            // The object exists outside the fleet: never known, or declared ended by an operator.
            JournalObject::Over | JournalObject::Never => {
                let seen = seen.max(self.durable().position);
                let orphan = OrphanReported { session, object, revision, seen };
                self.observation(&by, Observation::OrphanReported(orphan));
            }
        }
    }

    /// Returns what the journal knows of an object.
    fn known(&self, object: ObjectId) -> JournalObject {
        let (hosts, is_met, revision) = match object {
            ObjectId::Incarnation(id) => match self.fleet.incarnations().get(&id) {
                Some(it) if it.is_live() => (it.cluster.clone(), it.command.is_none(), it.revision),
                Some(_) => return JournalObject::Over,
                None => return self.past(object),
            },
            ObjectId::Volume(id) => match commands::volume(&self.fleet, id) {
                Some(it) => (it.cluster.clone(), it.command.is_none(), it.revision),
                None => return self.past(object),
            },
        };
        JournalObject::Object { hosts, is_met, revision }
    }

    /// Returns whether the journal issued the id of an unknown object, durably or not.
    fn past(&self, object: ObjectId) -> JournalObject {
        let issued = self.fleet.lineages().issued(object.lineage(), object.position(), self.fleet.head());
        if issued { JournalObject::Over } else { JournalObject::Never }
    }

    /// Returns the object that the fact ends, with its cluster.
    pub(super) fn ends(&self, fact: &Fact) -> Option<(ClusterName, ObjectId)> {
        match fact {
            Fact::IncarnationEnded(fact) => {
                let incarnation = self.fleet.incarnations().get(&fact.incarnation)?;
                Some((incarnation.cluster.clone(), incarnation.id.into()))
            }
            Fact::VolumeDestroyed(fact) => {
                let volume = self.fleet.volumes().get(&fact.name)?;
                Some((volume.cluster.clone(), volume.id.into()))
            }
            _ => None,
        }
    }

    /// Notifies the executor that the object has ended: its copy may be purged.
    pub(super) fn purge(&mut self, cluster: &ClusterName, object: ObjectId) {
        self.send_to_cluster(cluster, |envelope| DeciderMessage::Purge { envelope, object });
    }

    /// Handles what a fact means for executors.
    pub(super) fn follow_fact(&mut self, fact: &Fact) {
        match fact {
            Fact::OperationApproved(fact) => self.command_again(fact.incarnation.map(ObjectId::from)),
            Fact::OperationStarted(fact) => self.command_again(fact.incarnation.map(ObjectId::from)),
            Fact::IncarnationStartRequested(fact) => self.command_again(Some(fact.incarnation.into())),
            Fact::IncarnationStopRequested(fact) => self.command_again(Some(fact.incarnation.into())),
            Fact::VolumeCreated(VolumeCreated { name, .. })
            | Fact::VolumeSnapshotStarted(VolumeSnapshotStarted { name, .. })
            | Fact::VolumeDestroyRequested(VolumeDestroyRequested { name }) => {
                self.command_again(self.id_of(name));
            }
            Fact::VolumeCommandFailed(fact) => {
                if let (Some(when), Some(id)) = (fact.not_before, self.id_of(&fact.name)) {
                    self.sessions.retries.insert((when, id));
                }
            }
            Fact::IncarnationCommandFailed(fact) => {
                if let Some(when) = fact.not_before {
                    self.sessions.retries.insert((when, fact.incarnation.into()));
                }
            }
            Fact::ApprovalBypassed(fact) if !self.is_dry => {
                let policies: Vec<_> = fact.policies.iter().map(ToString::to_string).collect();
                let (node, by, reason) = (&fact.node, &fact.requested_by, &fact.reason);
                let policies = policies.join(", ");
                tracing::warn!(%node, %by, reason, policies, "break-glass: node expunged without approval");
            }
            Fact::OrphanResolved(fact) => {
                let OrphanResolved { object, resolution: judgement, revision, .. } = *fact;
                self.send_to_cluster(&fact.cluster, |envelope| DeciderMessage::OrphanResolved {
                    envelope,
                    object,
                    resolution: judgement,
                    revision,
                });
            }
            Fact::SessionClosed(fact) => {
                self.close_session(fact.session, "the session has ended");
                if let Some(live) = self.sessions.live.remove(&fact.session) {
                    self.sessions.by_cluster.remove(&live.cluster);
                    if let Some((connection, _)) = live.attached {
                        self.sessions.by_connection.remove(&connection);
                    }
                }
            }
            // No other fact requires anything of an executor: it receives commands and orphan resolutions.
            _ => {}
        }
    }

    fn id_of(&self, volume: &VolumeName) -> Option<ObjectId> {
        self.fleet.volumes().get(volume).map(|volume| volume.id.into())
    }

    pub(super) fn command_again(&mut self, object: Option<ObjectId>) {
        let Some(object) = object else { return };
        let cluster = match object {
            ObjectId::Incarnation(id) => {
                let asked =
                    self.fleet.incarnations().get(&id).filter(|it| it.is_live() && it.last_effect.is_some());
                asked.map(|incarnation| incarnation.cluster.clone())
            }
            ObjectId::Volume(id) => commands::volume(&self.fleet, id).map(|volume| volume.cluster.clone()),
        };
        if let Some((cluster, command)) = cluster.zip(commands::command(&self.fleet, object)) {
            self.send_to_cluster(&cluster, |envelope| DeciderMessage::Command { envelope, command });
        }
    }
}
