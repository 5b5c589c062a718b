//! Generations of a plan. A rule reads them by class: immediate fields from the newest generation, a version from the
//! generation of a deployment.

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::spec::{ImmediateFields, PlanSpec, PlanVersion};
use serde::{Deserialize, Serialize};

use crate::state::Plan;

/// Spec of a plan, and the earlier specs to which deployments refer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PlanSpecs {
    newest: Arc<PlanSpec>,
    earlier: BTreeMap<u32, Arc<PlanSpec>>,
}

impl PlanSpecs {
    /// Specs of a new plan.
    pub(super) fn first(spec: PlanSpec) -> PlanSpecs {
        PlanSpecs { newest: Arc::new(spec), earlier: BTreeMap::new() }
    }

    /// Adds a newer spec. The previous one, of the given generation, becomes an earlier one.
    pub(super) fn edit(&mut self, generation: u32, spec: PlanSpec) {
        let before = std::mem::replace(&mut self.newest, Arc::new(spec));
        self.earlier.insert(generation, before);
    }

    /// Keeps only the earlier generations that are used.
    pub(crate) fn retain(&mut self, used: impl Fn(u32) -> bool) {
        self.earlier.retain(|generation, _| used(*generation));
    }

    /// Newest spec, as clients see and edit it. A rule about replicas reads [`Plan::immediate`] or
    /// [`Plan::version_of`].
    pub fn newest(&self) -> &Arc<PlanSpec> {
        &self.newest
    }
}

impl Plan {
    /// Fields by which everything about the plan's replicas is decided.
    pub fn immediate(&self) -> ImmediateFields<'_> {
        ImmediateFields::of(&self.specs.newest)
    }

    /// Version of a deployment of the given generation.
    pub fn version_of(&self, generation: u32) -> PlanVersion<'_> {
        PlanVersion::of(self.specs.earlier.get(&generation).unwrap_or(&self.specs.newest))
    }
}
