//! Policies, and the operations that each could approve: kept by what changes, so that operations that wait cost
//! nobody else anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chancery_events::id::OperationId;
use chancery_events::name::PolicyName;
use chancery_events::spec::{PolicySpec, Rule};

use super::{Lookup, mark};
use crate::marks::{OperationMarks, Turn};
use crate::policy;
use crate::state::Operation;

/// What is counted of a policy that approves.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicyIndex {
    pub(crate) spec: Arc<PolicySpec>,
    /// Operations that wait for approval, and that it is about.
    pub(crate) waiting: BTreeSet<OperationId>,
}

/// What is counted of all of them.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Policies {
    /// Those that approve.
    pub(crate) approving: BTreeMap<PolicyName, PolicyIndex>,
    /// Those that want a second pair of eyes.
    pub(crate) four_eyes: BTreeMap<PolicyName, Arc<PolicySpec>>,
    /// Operations that one approved and that are not over, by its rule.
    pub(crate) in_flight: BTreeMap<String, BTreeSet<OperationId>>,
    /// Operations that wait for approval.
    waiting: Lookup<OperationId, Waiting>,
}

/// What policies ask about an operation that waits for approval.
#[derive(Clone, PartialEq, Debug)]
struct Waiting {
    about: policy::About,
    /// Whether its deployment asked for it, and nobody else.
    deploys: bool,
    /// Whether that begins nothing more: nobody approves the operation then.
    given_up: bool,
}

impl Policies {
    pub(super) fn policy(&mut self, name: &PolicyName, spec: Option<&Arc<PolicySpec>>) {
        self.approving.remove(name);
        self.four_eyes.remove(name);
        let Some(spec) = spec else { return };
        match &spec.rule {
            Rule::FourEyes {} => {
                self.four_eyes.insert(name.clone(), Arc::clone(spec));
            }
            Rule::Approve { .. } => {
                let about = self
                    .waiting
                    .iter()
                    .filter(|(_, waiting)| !waiting.given_up && policy::is_about(spec, &waiting.about));
                let waiting = about.map(|(id, _)| *id).collect();
                self.approving.insert(name.clone(), PolicyIndex { spec: Arc::clone(spec), waiting });
            }
        }
    }

    /// The deployment of the operation begins nothing more, or begins something again.
    pub(super) fn give_up(&mut self, id: OperationId, given_up: bool) {
        let Some(waiting) = self.waiting.get_mut(&id).filter(|it| it.deploys && it.given_up != given_up)
        else {
            return;
        };
        waiting.given_up = given_up;
        wait(&mut self.approving, id, waiting, true);
    }

    /// `given_up`: whether its deployment begins nothing more.
    pub(super) fn operation(
        &mut self,
        operation: &Operation,
        marks: &OperationMarks,
        given_up: impl FnOnce() -> bool,
        up: bool,
    ) {
        let id = operation.id;
        if let Turn::Waiting { .. } = marks.turn {
            if up {
                let deploys = operation.by.is_none();
                let given_up = deploys && given_up();
                let about = policy::About {
                    kind: operation.kind,
                    plan: operation.plan.clone(),
                    domain: marks.domain.clone(),
                };
                let waiting = Waiting { about, deploys, given_up };
                wait(&mut self.approving, id, &waiting, true);
                self.waiting.insert(id, waiting);
            } else if let Some(waiting) = self.waiting.remove(&id) {
                wait(&mut self.approving, id, &waiting, false);
            }
        }
        if let Some(rule) = &marks.by_policy {
            let set = self.in_flight.entry(rule.clone()).or_default();
            mark(set, id, up);
            if set.is_empty() {
                self.in_flight.remove(rule);
            }
        }
    }
}

/// The operation waits for the policies that are about it, or does no more.
fn wait(approving: &mut BTreeMap<PolicyName, PolicyIndex>, id: OperationId, waiting: &Waiting, up: bool) {
    for of in approving.values_mut().filter(|of| policy::is_about(&of.spec, &waiting.about)) {
        mark(&mut of.waiting, id, up && !waiting.given_up);
    }
}
