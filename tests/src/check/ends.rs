//! Ends of incarnations; invariants 4, 5 and 6: only by proof, with the reservation released once, and
//! followed by what the plan's rule defines.

use std::time::Duration;

use chancery_events::fact::{IncarnationEnd, IncarnationEnded, Requester};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::lifecycle::WillWord;
use chancery_events::name::ReplicaName;
use chancery_events::observation::{IncarnationExit, ObservedState};
use chancery_events::spec::{NodeState, OperationKind, RestartPolicy};
use chancery_events::time::Time;

use super::obligations::RecordObligation;
use super::operations::{is_up, replaces};
use super::state::{
    CheckedFleet, EndedIncarnation, FactLocation, Incarnation, IncarnationProgress, OperationProgress,
    Replica, UserStop,
};
use super::violation::{InvariantViolation, RuleResult, demand};

/// Longest wait for a restart by the plan's rule, in multiples of its restart delay.
const LONGEST: u32 = 32;

impl CheckedFleet {
    pub(super) fn ended(&mut self, fact: &IncarnationEnded, at: FactLocation) -> RuleResult {
        let id = fact.incarnation;
        let run = self.incarnation_mut(id)?.clone();
        demand!(
            4,
            run.node == fact.node,
            "incarnation {id} frees a reservation on {}, and has one on {}",
            fact.node,
            run.node
        );
        demand!(5, run.replica == fact.replica, "incarnation {id} is of replica {}", run.replica);
        let expunged = self.nodes.get(&fact.node).is_some_and(|node| node.state == NodeState::Expunged);
        let over = match &run.progress {
            IncarnationProgress::Reserved => {
                self.unwound(fact, run.operation, expunged)?;
                IncarnationProgress::Ended
            }
            life => {
                demand!(
                    5,
                    fact.reschedules.is_none(),
                    "incarnation {id} displaces an operation, and was started"
                );
                self.proved(fact, life, run.revision, expunged, at)?
            }
        };
        self.promised(fact, &run, at)?;
        let has_failed = self.operation(run.operation)?.failed;
        self.release(id, &run)?;
        self.free_volumes(id, &fact.mounts, &fact.end)?;
        let ended = self.incarnation_mut(id)?;
        (ended.progress, ended.command, ended.is_ready) = (over, None, false);
        let is_other_left =
            self.replica(&fact.replica)?.active.filter(|active| *active != id).is_some_and(|active| {
                let stops = |of: &Incarnation| matches!(of.progress, IncarnationProgress::Stopping(_));
                self.incarnations.get(&active).is_some_and(|active| !stops(active))
            });
        let replica = self.replica(&fact.replica)?;
        let counted = replica.active == Some(id);
        let shuts_down = fact.end == IncarnationEnd::PoweredOff && !is_other_left;
        if shuts_down && replica.desired == WillWord::Running {
            replica.desired = WillWord::GuestShutdown;
            (replica.recovers, replica.downed) = (false, false);
            // As after a stop: only a user's request starts the replica again.
            replica.stop = Some(UserStop { at: at.position, operation: None });
        }
        if replica.secondary == Some(id) {
            replica.secondary = None;
        } else {
            replica.active = replica.secondary.take();
            // An incarnation that was only reserved does not count.
            if run.progress != IncarnationProgress::Reserved || has_failed {
                replica.next_restart = fact.restart_backoff;
                replica.recovers &= fact.restart_backoff.is_some();
            }
        }
        let replica = replica.clone();
        self.moves_waiting(&fact.replica);
        let was_up = was_up(&run);
        self.now.ended.push(EndedIncarnation {
            incarnation: id,
            replica: fact.replica.clone(),
            plan: replica.plan.clone(),
            deployment: run.deployment.clone(),
            by_itself: was_up,
        });
        let follower = replica.active.filter(|left| {
            self.incarnations
                .get(left)
                .is_some_and(|left| left.starts_after == Some(id) && !left.progress.is_over())
        });
        if let Some(follower) = follower {
            self.hold_all(follower)?;
        }
        if run.progress != IncarnationProgress::Reserved {
            self.settles(id, &run, &replica, counted);
        }
        if shuts_down {
            let begun = |id: &&OperationId| {
                self.operations.get(*id).is_some_and(|operation| {
                    operation.stage == OperationProgress::Running && replaces(operation.kind)
                })
            };
            let begun: Vec<_> = replica.open.iter().filter(begun).copied().collect();
            self.obligations.extend(begun.into_iter().map(RecordObligation::Closed));
        }
        Ok(())
    }

    /// Notes obligations of a replica's operations at an incarnation's end.
    fn settles(&mut self, id: IncarnationId, run: &Incarnation, replica: &Replica, counted: bool) {
        let mut obligations = Vec::new();
        let left = replica.active.and_then(|left| Some((left, self.incarnations.get(&left)?)));
        for open in &replica.open {
            let Some(operation) = self.operations.get(open) else { continue };
            let begun = operation.stage == OperationProgress::Running;
            match operation.kind {
                // The operation was about the ended incarnation.
                _ if begun && operation.incarnation == Some(id) => {
                    obligations.push(RecordObligation::Closed(*open));
                }
                kind if kind.needs_incarnation() && !begun && counted && was_up(run) => {
                    obligations.push(RecordObligation::Closed(*open));
                }
                kind if replaces(kind) && begun => {
                    match left.filter(|(left, _)| operation.incarnation == Some(*left)) {
                        Some((left, new)) if new.progress == IncarnationProgress::Reserved => {
                            obligations.push(RecordObligation::Begun(left));
                        }
                        Some((_, new)) if new.progress == IncarnationProgress::Running => {
                            obligations.push(RecordObligation::Closed(*open));
                        }
                        Some(_) | None => {}
                    }
                }
                OperationKind::Stop | OperationKind::Delete if begun && left.is_none() => {
                    obligations.push(RecordObligation::Closed(*open));
                }
                _ => {}
            }
        }
        self.obligations.extend(obligations);
    }

    /// Checks the end of a reservation without start request.
    fn unwound(&mut self, fact: &IncarnationEnded, held_by: OperationId, expunged: bool) -> RuleResult {
        let id = fact.incarnation;
        let unwound = matches!(fact.end, IncarnationEnd::Unwound { .. });
        demand!(5, unwound, "incarnation {id} was never started, and ends as if it had been");
        let disrupted = self.nodes.get(&fact.node).is_some_and(super::state::Node::is_disrupted);
        let edited = self.is_held_by_earlier_policy(id)?;
        let operation = self.operation(held_by)?;
        match fact.reschedules {
            Some(displaced) => {
                demand!(
                    6,
                    displaced == held_by,
                    "incarnation {id} reschedules an operation that it was not reserved for"
                );
                demand!(
                    6,
                    expunged || disrupted || edited,
                    "operation {held_by} loses its reservation without cause"
                );
                demand!(
                    5,
                    matches!(operation.stage, OperationProgress::Pending | OperationProgress::Approved),
                    "operation {held_by} needs a placement again, and was not waiting"
                );
                operation.stage = OperationProgress::Preparing;
                (operation.proposal, operation.incarnation, operation.domain) = (None, None, None);
                operation.approver = None;
                self.landed(held_by);
            }
            None => demand!(
                6,
                operation.stage == OperationProgress::Ended,
                "incarnation {id} ends, and operation {held_by} still needs it"
            ),
        }
        Ok(())
    }

    /// Returns the state that the proof of the end gives to an incarnation that was commanded.
    fn proved(
        &self,
        fact: &IncarnationEnded,
        progress: &IncarnationProgress,
        revision: u32,
        expunged: bool,
        at: FactLocation,
    ) -> Result<IncarnationProgress, InvariantViolation> {
        let id = fact.incarnation;
        let mut powers_off = false;
        let proof = match self.report(id, at)? {
            Some(report) => match report.observed {
                ObservedState::Ended { exit, .. } => {
                    powers_off = exit == IncarnationExit::PoweredOff;
                    true
                }
                ObservedState::Gone => report.revision >= revision,
                ObservedState::Started { .. }
                | ObservedState::Ready { .. }
                | ObservedState::NotReady { .. }
                | ObservedState::Failed { .. } => false,
            },
            None => false,
        };
        if !proof {
            demand!(6, expunged, "incarnation {id} is called over, and nothing proves it");
            demand!(
                5,
                matches!(fact.end, IncarnationEnd::Failed { .. }),
                "incarnation {id} went with its node, and is not called failed"
            );
            return Ok(IncarnationProgress::Expunged);
        }
        if let IncarnationProgress::Stopping(then) = progress {
            let shuts_down = powers_off && self.shuts_down(id, &fact.replica, then);
            demand!(
                5,
                fact.end == if shuts_down { IncarnationEnd::PoweredOff } else { then.clone() },
                "incarnation {id} ends otherwise than was remembered: {:?}",
                fact.end
            );
        } else {
            demand!(
                5,
                powers_off == (fact.end == IncarnationEnd::PoweredOff),
                "incarnation {id} ends otherwise than was reported: {:?}",
                fact.end
            );
        }
        Ok(IncarnationProgress::Ended)
    }

    /// Whether a shutdown by the guest counts although its stop was requested. It does not if a user requested the stop or a
    /// restart, if the incarnation was replaced, or if its start was given up.
    fn shuts_down(&self, id: IncarnationId, replica: &ReplicaName, then: &IncarnationEnd) -> bool {
        let Some(replica) = self.replicas.get(replica) else { return false };
        let mut open = replica.open.iter().filter_map(|open| self.operations.get(open));
        let is_requested = open.any(|open| {
            let kinds = [OperationKind::Stop, OperationKind::Delete, OperationKind::Restart];
            open.stage == OperationProgress::Running && kinds.contains(&open.kind)
        });
        replica.active == Some(id) && !is_requested && !matches!(then, IncarnationEnd::Unwound { .. })
    }

    /// Checks whether and when the replica restarts by its plan's rule.
    fn promised(&mut self, fact: &IncarnationEnded, run: &Incarnation, at: FactLocation) -> RuleResult {
        let (id, name) = (fact.incarnation, &fact.replica);
        let (starts, row, from) = self.rule_of_restart(fact, run, at.time)?;
        let Some(again) = fact.restart_backoff else {
            demand!(6, !starts, "replica {name} is not restarted after {id}, and its plan requires it");
            return Ok(());
        };
        demand!(7, starts, "replica {name} is restarted after {id}, and its plan forbids it");
        demand!(
            6,
            again.consecutive == row,
            "the start of {name} after {id} is called the {}th in a row, and is the {row}th",
            again.consecutive
        );
        let at_once = row > 1 || again.not_before == at.time;
        demand!(
            6,
            at_once && again.not_before >= from,
            "replica {name} is restarted at {}, and not before {from}",
            again.not_before
        );
        Ok(())
    }

    /// Returns whether the plan restarts the replica after such an end, the number of the restart in its row,
    /// and the earliest time.
    fn rule_of_restart(
        &mut self,
        fact: &IncarnationEnded,
        run: &Incarnation,
        now: Time,
    ) -> Result<(bool, u32, Time), InvariantViolation> {
        let replica = self.replica(&fact.replica)?.clone();
        // A reservation without start request that is released with this incarnation does not count.
        let other = replica.secondary.and_then(|id| self.incarnations.get(&id)).filter(|other| {
            let begun = self
                .operations
                .get(&other.operation)
                .is_some_and(|by| by.stage == OperationProgress::Running);
            other.progress.is_asked_for() || begun
        });
        let alone = replica.active == Some(fact.incarnation) && other.is_none();
        // Open operations end with an incarnation that was running; else they start the replica without a
        // rule.
        let comes = replica
            .open
            .iter()
            .filter_map(|open| self.operations.get(open))
            .any(|open| is_up(open.kind) && open.incarnation != Some(fact.incarnation) && !was_up(run));
        let by = self.operation(run.operation)?;
        let comes_up = matches!(by.kind, OperationKind::Create | OperationKind::Start);
        let of_a_rule = matches!(by.requested_by, Some(Requester::Rule(_)));
        let was_run = run.progress != IncarnationProgress::Reserved || by.failed;
        // A start for an aborted deployment leaves what the rule had promised before.
        let was_taken_back = by.aborted && by.kind == OperationKind::Start && by.requested_by.is_none();
        let given_up = run.since.is_none() && comes_up && !of_a_rule;
        let plan = self.plan(&replica.plan)?;
        let policy = plan.latest()?;
        let asked = matches!(run.progress, IncarnationProgress::Stopping(_));
        let clean = fact.end == IncarnationEnd::Destroyed && !asked;
        let is_powered_off = fact.end == IncarnationEnd::PoweredOff;
        let rule = match policy.restart {
            _ if is_powered_off => false,
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => !clean,
            RestartPolicy::Never => false,
        };
        let wanted = replica.desired == WillWord::Running && alone && !comes && !plan.is_removing;
        let starts = (rule || replica.recovers) && wanted && !given_up && was_run && !is_powered_off;
        if given_up && was_taken_back && !is_powered_off {
            let kept = replica.next_restart.filter(|_| wanted && was_run);
            return Ok(kept.map_or((false, 0, now), |kept| (true, kept.consecutive, kept.not_before)));
        }
        let restart_delay = Duration::from_millis(policy.restart_delay);
        let lasted = run.since.is_some_and(|since| now.since(since) >= restart_delay * LONGEST);
        let (row, from) = match replica.last_restart.filter(|_| !lasted) {
            None => (1, now),
            Some(last) => {
                let times = 1u32.checked_shl(last.consecutive - 1).unwrap_or(LONGEST).min(LONGEST);
                (last.consecutive + 1, last.not_before + restart_delay * times)
            }
        };
        Ok((starts, row, from))
    }
}

/// Whether the incarnation was ready, with no requested end but for a failed probe or unreadiness.
fn was_up(run: &Incarnation) -> bool {
    run.progress.is_up() || (run.since.is_some() && run.progress.is_failing())
}
