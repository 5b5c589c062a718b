//! Rows of operations that the store has no longer, from the journal: a replica keeps only its last
//! operations, until it is deleted. The history of the replica gives the same row.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use chancery_events::fact::{ApprovalStart, Fact, OperationCreated, OperationEnd};
use chancery_events::id::{IncarnationId, OperationId, Position};
use chancery_events::name::{DeploymentName, NodeName, PlanName};
use chancery_events::spec::OperationKind;
use chancery_events::subject::Subject;
use chancery_machine::operation::state_word;
use chancery_machine::state::OperationState;

use crate::build_row::operation_message;
use crate::history::{HistoryEntry, HistoryError, HistoryReader, LIMIT_MAX};
use crate::rows::OperationRow;

/// History of a replica as far as it was read, and one operation of the replica.
#[derive(Default)]
struct ReplicaHistory {
    plan: Option<PlanName>,
    /// Deployment whose version runs.
    deployment: Option<DeploymentName>,
    /// Version and node of each incarnation, by the position that issued it.
    runs: BTreeMap<Position, (DeploymentName, NodeName)>,
    /// Active incarnation of the replica.
    active: Option<IncarnationId>,
    /// Updates that change the active incarnation in place, by the position that issued them.
    changes: BTreeMap<Position, DeploymentName>,
    /// Versions requested of incarnations.
    asked: BTreeMap<IncarnationId, DeploymentName>,
    row: Option<(OperationRow, OperationState)>,
}

/// Search for the row of an ended operation in its replica's history: page by page, as histories are long.
pub struct OperationSearch {
    history: HistoryReader,
    operation: OperationId,
    at: SearchPlace,
}

/// Progress of a search.
enum SearchPlace {
    /// Search at the operation itself.
    Operation,
    /// Search in the history of its replica, from a position on.
    Replica(Subject, Box<ReplicaHistory>, Position),
}

impl OperationSearch {
    /// Returns a search that has read nothing yet.
    pub fn new(history: HistoryReader, operation: OperationId) -> OperationSearch {
        OperationSearch { history, operation, at: SearchPlace::Operation }
    }

    /// Reads one page. Breaks with the row; with `None` if the operation was never issued, or has not ended.
    pub fn read_page(&mut self) -> Result<ControlFlow<Option<OperationRow>>, HistoryError> {
        let id = self.operation;
        match &mut self.at {
            SearchPlace::Operation => {
                let own = self.history.of(&Subject::Operation(id), id.position(), 1)?;
                let opened = own.entries.first().filter(|entry| entry.position == id.position());
                let Some(Fact::OperationCreated(opened)) = opened.and_then(fact) else {
                    return Ok(ControlFlow::Break(None));
                };
                let replica = Subject::Replica(opened.replica);
                self.at = SearchPlace::Replica(replica, Box::default(), Position::FIRST);
                Ok(ControlFlow::Continue(()))
            }
            SearchPlace::Replica(replica, past, from) => {
                let page = self.history.of(replica, *from, LIMIT_MAX)?;
                for entry in &page.entries {
                    if let Some(fact) = fact(entry) {
                        past.fold(id, entry, &fact);
                    }
                    if let Some((row, OperationState::Ended(_))) = &past.row {
                        return Ok(ControlFlow::Break(Some(row.clone())));
                    }
                }
                let Some(next) = page.next else { return Ok(ControlFlow::Break(None)) };
                *from = next;
                Ok(ControlFlow::Continue(()))
            }
        }
    }
}

fn fact(entry: &HistoryEntry) -> Option<Fact> {
    Fact::read(&entry.type_name, entry.data.get())?.ok()
}

impl ReplicaHistory {
    fn fold(&mut self, id: OperationId, entry: &HistoryEntry, fact: &Fact) {
        match fact {
            Fact::ReplicaCreated(x) => {
                (self.plan, self.deployment) = (Some(x.plan.clone()), Some(x.deployment.clone()));
            }
            Fact::ReplicaDeploymentChanged(x) => self.deployment = Some(x.deployment.clone()),
            Fact::OperationCreated(x) => self.opened(id, entry, x),
            Fact::IncarnationReserved(x) => {
                self.runs.insert(entry.position, (x.deployment.clone(), x.node.clone()));
                if x.operation == id {
                    let run = IncarnationId::issue(entry.lineage, entry.position);
                    self.change(entry, 1, |row, state| {
                        *state = OperationState::PendingApproval(x.proposal);
                        row.hash = Some(x.proposal.hash);
                        (row.incarnation, row.node) = (Some(run), Some(x.node.clone()));
                    });
                }
            }
            Fact::OperationApproved(x) => {
                self.ask(x.operation, x.incarnation);
                if x.operation == id {
                    self.change(entry, 1, |row, state| {
                        *state = match x.start {
                            ApprovalStart::Immediate => OperationState::Running,
                            ApprovalStart::Queued => OperationState::Approved,
                        };
                        row.approved_by = Some(x.approved_by.clone());
                        row.incarnation = row.incarnation.or(x.incarnation);
                    });
                }
            }
            Fact::OperationStarted(x) => {
                self.ask(x.operation, x.incarnation);
                if x.operation == id {
                    self.change(entry, 1, |row, state| {
                        *state = OperationState::Running;
                        row.incarnation = row.incarnation.or(x.incarnation);
                    });
                }
            }
            Fact::OperationEnded(x) if x.operation == id => {
                self.change(entry, 1, |_, state| *state = OperationState::Ended(x.end.clone()));
            }
            Fact::IncarnationStartRequested(x) => {
                self.asked.insert(x.incarnation, x.deployment.clone());
            }
            Fact::IncarnationRunning(x) => {
                if let Some((version, _)) = self.runs.get_mut(&x.incarnation.position()) {
                    *version = self.asked.remove(&x.incarnation).unwrap_or_else(|| version.clone());
                    self.deployment = Some(version.clone());
                }
                self.active = Some(x.incarnation);
                if x.operation == Some(id) {
                    self.change(entry, 0, |_, state| *state = OperationState::Ended(OperationEnd::Succeeded));
                }
            }
            Fact::IncarnationEnded(x) => {
                self.active = self.active.filter(|active| *active != x.incarnation);
                if x.reschedules == Some(id) {
                    self.change(entry, 0, |row, state| {
                        *state = OperationState::Preparing;
                        (row.hash, row.incarnation, row.node, row.approved_by) = (None, None, None, None);
                    });
                }
            }
            // Other facts do not concern operations.
            _ => {}
        }
    }

    fn opened(&mut self, id: OperationId, entry: &HistoryEntry, fact: &OperationCreated) {
        let (Some(plan), Some(deployment)) = (self.plan.clone(), self.deployment.clone()) else { return };
        let target_deployment = fact.version.clone().unwrap_or(deployment);
        // An update that needs no placement changes the active incarnation.
        let there = self.active.filter(|_| fact.kind == OperationKind::Update && fact.proposal.is_some());
        if there.is_some() {
            self.changes.insert(entry.position, target_deployment.clone());
        }
        if entry.position != id.position() {
            return;
        }
        let node = there.and_then(|run| self.runs.get(&run.position())).map(|(_, node)| node.clone());
        let state = fact.proposal.map_or(OperationState::Preparing, OperationState::PendingApproval);
        let row = OperationRow {
            id,
            replica: fact.replica.clone(),
            plan,
            kind: fact.kind,
            deployment: fact.deployment.clone(),
            requested_by: fact.requested_by.clone(),
            target_deployment,
            state: state_word(&state),
            hash: fact.proposal.map(|proposal| proposal.hash),
            node,
            incarnation: there,
            approved_by: None,
            message: operation_message(&state),
            version: 1,
            created_at: entry.time,
            updated_at: entry.time,
            position: entry.position,
        };
        self.row = Some((row, state));
    }

    /// Notes the version that an in-place update requests of an incarnation.
    fn ask(&mut self, operation: OperationId, run: Option<IncarnationId>) {
        if let (Some(run), Some(to)) = (run, self.changes.get(&operation.position())) {
            self.asked.insert(run, to.clone());
        }
    }

    fn change(
        &mut self,
        entry: &HistoryEntry,
        versions: u64,
        how: impl FnOnce(&mut OperationRow, &mut OperationState),
    ) {
        let Some((row, state)) = &mut self.row else { return };
        how(row, state);
        (row.state, row.message) = (state_word(state), operation_message(state));
        row.version += versions;
        (row.updated_at, row.position) = (entry.time, entry.position);
    }
}
