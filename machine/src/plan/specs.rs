//! The generations of a plan. A rule reads them by class: the policy is that of the newest generation, and a version
//! that of the generation of a deployment.

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::spec::{PlanPolicy, PlanSpec, PlanVersion};
use serde::{Deserialize, Serialize};

use crate::state::Plan;

/// What a plan is, and what it was as far as a deployment refers to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Specs {
    newest: Arc<PlanSpec>,
    earlier: BTreeMap<u32, Arc<PlanSpec>>,
}

impl Specs {
    /// The specs of a plan that is new.
    pub(super) fn first(spec: PlanSpec) -> Specs {
        Specs { newest: Arc::new(spec), earlier: BTreeMap::new() }
    }

    /// An edit makes what was the newest, of that generation, an earlier one.
    pub(super) fn edit(&mut self, generation: u32, spec: PlanSpec) {
        let before = std::mem::replace(&mut self.newest, Arc::new(spec));
        self.earlier.insert(generation, before);
    }

    /// Keeps the earlier generations to which something refers.
    pub(crate) fn retain(&mut self, used: impl Fn(u32) -> bool) {
        self.earlier.retain(|generation, _| used(*generation));
    }

    /// The plan as people see and edit it. A rule about replicas reads [`Plan::policy`] or [`Plan::version_of`].
    pub fn newest(&self) -> &Arc<PlanSpec> {
        &self.newest
    }
}

impl Plan {
    /// The policy by which everything about the plan's replicas is decided.
    pub fn policy(&self) -> PlanPolicy<'_> {
        PlanPolicy::of(&self.specs.newest)
    }

    /// The version of a deployment of that generation.
    pub fn version_of(&self, generation: u32) -> PlanVersion<'_> {
        PlanVersion::of(self.specs.earlier.get(&generation).unwrap_or(&self.specs.newest))
    }

    /// The version of the next deployment.
    pub fn next_version(&self) -> PlanVersion<'_> {
        PlanVersion::of(&self.specs.newest)
    }
}
