//! Policies, and the operations that each could approve; waiting operations cost no other step anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chancery_events::id::OperationId;
use chancery_events::name::{DomainName, PlanName, PolicyName};
use chancery_events::spec::{OperationKind, PolicyKind, PolicyRule, PolicySpec};

use super::{LookupMap, follow_by, mark};
use crate::index_keys::{IndexChange, OperationIndexKey, sides};
use crate::state::Operation;

/// Index of an approving policy.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicyIndex {
    pub(crate) spec: Arc<PolicySpec>,
    /// Operations that wait for approval and match the policy.
    pub(crate) waiting: BTreeSet<OperationId>,
}

/// Index of all policies.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ApprovalIndex {
    pub(crate) approving: BTreeMap<PolicyName, PolicyIndex>,
    /// Policies that require the approval of a second person.
    pub(crate) four_eyes: BTreeMap<PolicyName, Arc<PolicySpec>>,
    /// Operations that a policy approved and that have not ended, by the name of the policy.
    pub(crate) in_flight: BTreeMap<String, BTreeSet<OperationId>>,
    /// Operations that wait for approval.
    waiting: LookupMap<OperationId, PendingApproval>,
}

/// Properties of a waiting operation that policies match.
#[derive(Clone, PartialEq, Debug)]
struct PendingApproval {
    kind: OperationKind,
    plan: PlanName,
    domain: Option<DomainName>,
    /// Whether the deployment alone requested the operation.
    deploys: bool,
    /// Whether that deployment starts nothing more: no policy approves the operation then.
    given_up: bool,
}

impl ApprovalIndex {
    pub(super) fn policy(&mut self, name: &PolicyName, spec: Option<&Arc<PolicySpec>>) {
        self.approving.remove(name);
        self.four_eyes.remove(name);
        let Some(spec) = spec else { return };
        match &spec.rule {
            PolicyRule::FourEyes {} => {
                self.four_eyes.insert(name.clone(), Arc::clone(spec));
            }
            PolicyRule::Approve { .. } => {
                let about =
                    self.waiting.iter().filter(|(_, waiting)| !waiting.given_up && waiting.is_of(spec));
                let waiting = about.map(|(id, _)| *id).collect();
                self.approving.insert(name.clone(), PolicyIndex { spec: Arc::clone(spec), waiting });
            }
        }
    }

    /// Updates an operation whose deployment starts nothing more, or starts operations again.
    pub(super) fn give_up(&mut self, id: OperationId, given_up: bool) {
        let Some(waiting) = self.waiting.get_mut(&id).filter(|it| it.deploys && it.given_up != given_up)
        else {
            return;
        };
        waiting.given_up = given_up;
        waits_for_policies(&mut self.approving, id, waiting, !given_up);
    }

    /// Updates an operation. `given_up` returns whether its deployment starts nothing more.
    pub(super) fn operation(
        &mut self,
        operation: &Operation,
        both: IndexChange<'_, OperationIndexKey>,
        given_up: impl FnOnce() -> bool,
    ) {
        let id = operation.id;
        let [was, is] = sides(both, |key| key.filter(|index_key| index_key.waits_until().is_some()));
        if let Some(waiting) = was.and_then(|_| self.waiting.remove(&id)) {
            waits_for_policies(&mut self.approving, id, &waiting, false);
        }
        if let Some(marks) = is {
            let deploys = operation.requested_by.is_none();
            let (kind, plan, domain) = (operation.kind, operation.plan.clone(), marks.domain.clone());
            let waiting = PendingApproval { kind, plan, domain, deploys, given_up: deploys && given_up() };
            waits_for_policies(&mut self.approving, id, &waiting, !waiting.given_up);
            self.waiting.insert(id, waiting);
        }
        follow_by(&mut self.in_flight, both, |marks| marks.by_policy.as_ref(), Clone::clone, || id);
    }
}

impl PendingApproval {
    fn is_of(&self, spec: &PolicySpec) -> bool {
        is_about_work(spec, self.kind.into(), Some(&self.plan), self.domain.as_ref())
    }
}

/// Whether the policy matches the work: its kind, its plan if known, its domain if it has one.
pub(crate) fn is_about_work(
    spec: &PolicySpec,
    kind: PolicyKind,
    plan: Option<&PlanName>,
    domain: Option<&DomainName>,
) -> bool {
    (spec.kinds.is_empty() || spec.kinds.contains(&kind))
        && (spec.plans.is_empty() || plan.is_some_and(|plan| spec.plans.contains(plan)))
        && (spec.domains.is_empty() || domain.is_some_and(|domain| spec.domains.contains(domain)))
}

/// Adds the operation to the policies that match it, or removes it.
fn waits_for_policies(
    approving: &mut BTreeMap<PolicyName, PolicyIndex>,
    id: OperationId,
    waiting: &PendingApproval,
    waits: bool,
) {
    for of in approving.values_mut().filter(|of| waiting.is_of(&of.spec)) {
        mark(&mut of.waiting, id, waits);
    }
}
