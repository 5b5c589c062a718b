//! Reservations: invariant 3, no more incarnations of a replica than its operations need; invariant 4, each
//! on an allowed node.

use std::collections::BTreeSet;

use chancery_events::fact::IncarnationReserved;
use chancery_events::id::IncarnationId;
use chancery_events::name::{GroupName, NodeName, ReplicaName};
use chancery_events::resources::Resources;
use chancery_events::spec::{
    AffinityKind, AffinityPolicy, NodeSharing, OperationKind, PlanSpec, UpdateOrder,
};

use super::operations::replaces;
use super::state::{
    CheckedFleet, FactLocation, Incarnation, IncarnationProgress, Operation, OperationProgress, Replica,
};
use super::violation::{InvariantViolation, RuleResult, demand};

impl CheckedFleet {
    pub(super) fn reserved(&mut self, fact: &IncarnationReserved, at: FactLocation) -> RuleResult {
        let id = IncarnationId::issue(at.lineage, at.position);
        let name = &fact.replica;
        let operation = self.operation(fact.operation)?;
        demand!(
            6,
            operation.stage == OperationProgress::Preparing,
            "operation {} gets a reservation, and needs none",
            fact.operation
        );
        demand!(
            6,
            operation.replica == *name,
            "operation {} is on replica {}",
            fact.operation,
            operation.replica
        );
        demand!(
            6,
            operation.version == fact.deployment,
            "operation {} must start {}, and gets a reservation by {}",
            fact.operation,
            operation.version,
            fact.deployment
        );
        operation.stage = OperationProgress::Pending;
        operation.proposal = Some(fact.proposal);
        operation.incarnation = Some(id);
        let operation = operation.clone();
        let replica = self.replica(name)?.clone();
        let plan = self.plan(&replica.plan)?;
        let version = plan.spec_of(&fact.deployment)?;
        let (policy, placed_by) = (plan.latest()?.clone(), plan.generation);
        self.may_be_second(fact, &operation, &replica, (&policy, &version))?;
        self.suits(fact, &operation, &replica, &policy)?;
        self.is_placed_evenly(fact, &operation, &replica, (&policy, &version))?;
        let incarnation = Incarnation { placed_by, ..self.held_by(fact, &version)? };
        self.hold(id, &incarnation)?;
        self.incarnations.insert(id, incarnation);
        let node = self.node(&fact.node)?;
        let domain = Some(node.spec.domain.clone());
        self.operation(fact.operation)?.domain = domain;
        let replica = self.replica(name)?;
        match replica.active {
            None => replica.active = Some(id),
            Some(_) => replica.secondary = Some(id),
        }
        self.moves_waiting(name);
        Ok(())
    }

    /// Sets the domain of operations that are queued behind another one of the replica: the replica's own.
    pub(super) fn moves_waiting(&mut self, name: &ReplicaName) {
        let Some(replica) = self.replicas.get(name) else { return };
        let run = replica.active.and_then(|id| self.incarnations.get(&id));
        let Some(node) = run.and_then(|run| self.nodes.get(&run.node)) else { return };
        for id in replica.open.iter().skip(1) {
            if let Some(operation) = self.operations.get_mut(id) {
                operation.domain = Some(node.spec.domain.clone());
            }
        }
    }

    /// Checks that the incarnation may run alongside the existing one, and follows it if it has to.
    fn may_be_second(
        &self,
        fact: &IncarnationReserved,
        operation: &Operation,
        replica: &Replica,
        (policy, version): (&PlanSpec, &PlanSpec),
    ) -> RuleResult {
        let (name, kind) = (&fact.replica, operation.kind);
        demand!(
            3,
            replica.secondary.is_none(),
            "replica {name} has a third incarnation before the first ended"
        );
        let alone = replica.active.is_none() || replaces(kind);
        demand!(3, alone, "replica {name} has a second incarnation before the first ended, for a {kind}");
        let stop_first = match kind {
            OperationKind::Restart => true,
            OperationKind::Update => policy.update_order == UpdateOrder::StopFirst,
            OperationKind::Relocate | OperationKind::Create | OperationKind::Start => false,
            OperationKind::Stop | OperationKind::Delete | OperationKind::Reboot => {
                return Err(InvariantViolation::new(6, format!("a {kind} takes a place")));
            }
        };
        // The data of a volume cannot be in two places.
        let active = replica.active.and_then(|id| self.incarnations.get(&id));
        let shares = active
            .is_some_and(|active| version.claims(name).any(|(claim, _)| active.mounts.contains(&claim)));
        let follows = replica.active.filter(|_| stop_first || shares);
        demand!(
            3,
            fact.starts_after == follows,
            "the new incarnation of {name} for a {kind} must follow {:?}, and follows {:?}",
            follows,
            fact.starts_after
        );
        Ok(())
    }

    /// Checks that the node is allowed, whatever its free capacity.
    fn suits(
        &self,
        fact: &IncarnationReserved,
        operation: &Operation,
        replica: &Replica,
        policy: &PlanSpec,
    ) -> RuleResult {
        let (name, on) = (&fact.replica, &fact.node);
        let wanted = operation.wants.as_ref().is_none_or(|wanted| wanted == on);
        demand!(4, wanted, "replica {name} is placed on {on}, and another node is required");
        let own = replica.active.and_then(|id| self.incarnations.get(&id)).map(|active| &active.node);
        let moves = operation.kind != OperationKind::Relocate || own != Some(on);
        demand!(4, moves, "replica {name} is moved to {on}, where it is");
        let node = self.node(on)?;
        let fits = policy.cluster.is_none() || policy.cluster == node.cluster;
        let fits = fits && (policy.zone.is_none() || policy.zone == node.spec.zone);
        let fits =
            fits && policy.selectors.iter().all(|(key, value)| node.spec.labels.get(key) == Some(value));
        demand!(4, fits, "replica {name} is placed on {on}, which its plan does not allow");
        let others = || {
            let there = node.reservations.iter().filter_map(|id| self.incarnations.get(id));
            there.filter(|run| run.replica != *name)
        };
        let of_plan = |run: &&Incarnation| {
            self.replicas.get(&run.replica).is_some_and(|other| other.plan == replica.plan)
        };
        let shared = policy.sharing == NodeSharing::Never && others().any(|run| of_plan(&run));
        demand!(4, !shared, "replica {name} is placed on {on}, where another of its plan is");
        let there = others().flat_map(|run| self.groups_of(run)).collect();
        self.keeps_company(fact, name, &there, policy)
    }

    /// Checks that the plan's required affinities to groups of replicas are obeyed there.
    fn keeps_company(
        &self,
        fact: &IncarnationReserved,
        name: &ReplicaName,
        there: &BTreeSet<&GroupName>,
        spec: &PlanSpec,
    ) -> RuleResult {
        let groups: Vec<_> = spec.affinity.iter().map(|affinity| affinity.group.clone()).collect();
        demand!(4, fact.groups == groups, "replica {name} is of groups {:?}, not {groups:?}", fact.groups);
        let allows = spec.affinity.iter().any(|affinity| affinity.policy == AffinityPolicy::Allow);
        demand!(
            4,
            fact.affinity_violated.is_none() || allows,
            "replica {name} violates an affinity that must hold"
        );
        for affinity in &spec.affinity {
            let group = &affinity.group;
            let here = there.contains(group);
            let somewhere = || {
                let all = self.nodes.values().flat_map(|node| &node.reservations);
                let mut others =
                    all.filter_map(|id| self.incarnations.get(id)).filter(|run| run.replica != *name);
                others.any(|run| self.groups_of(run).any(|of| of == group))
            };
            let kept = match affinity.kind {
                AffinityKind::AntiAffinity => !here,
                AffinityKind::Affinity => here || !somewhere(),
            };
            let excused = affinity.policy == AffinityPolicy::Allow && fact.affinity_violated.is_some();
            demand!(
                4,
                kept || excused,
                "replica {name} is placed on {}, which violates its plan's affinity to group {group}",
                fact.node
            );
        }
        Ok(())
    }

    /// Returns the groups of an incarnation: those that its plan's current policy names.
    fn groups_of(&self, run: &Incarnation) -> impl Iterator<Item = &GroupName> {
        let plan = self.replicas.get(&run.replica).and_then(|replica| self.plans.get(&replica.plan));
        let policy = plan.and_then(|plan| plan.specs.get(&plan.generation));
        policy.into_iter().flat_map(|policy| policy.affinity.iter().map(|affinity| &affinity.group))
    }

    /// Whether an incarnation is only reserved, and was placed by an earlier spec of its plan.
    pub(super) fn is_held_by_earlier_policy(
        &mut self,
        id: IncarnationId,
    ) -> Result<bool, InvariantViolation> {
        let held = self.incarnation_mut(id)?.clone();
        let plan = self.replica(&held.replica)?.plan.clone();
        Ok(held.progress == IncarnationProgress::Reserved && held.placed_by < self.plan(&plan)?.generation)
    }

    /// Checks that the newest policy allows a reservation of an earlier one when its operation starts.
    pub(super) fn keeps_policy(&mut self, id: IncarnationId) -> RuleResult {
        if !self.is_held_by_earlier_policy(id)? {
            return Ok(());
        }
        let held = self.incarnation_mut(id)?.clone();
        let plan = self.replica(&held.replica)?.plan.clone();
        let policy = self.plan(&plan)?.latest()?.clone();
        let right = policy.cluster.as_ref().is_none_or(|cluster| *cluster == held.cluster);
        demand!(4, right, "{} starts on {}, which plan {plan} forbids", held.replica, held.node);
        let there = self.node(&held.node)?.reservations.iter().filter_map(|id| self.incarnations.get(id));
        let mut others = there.filter(|run| run.replica != held.replica);
        let of_plan =
            |run: &Incarnation| self.replicas.get(&run.replica).is_some_and(|other| other.plan == plan);
        let alone = policy.sharing == NodeSharing::Allowed || !others.any(of_plan);
        demand!(4, alone, "{} starts on {} next to another of plan {plan}", held.replica, held.node);
        Ok(())
    }

    /// Returns the incarnation with its reservation: its spec, less what the followed one reserves.
    fn held_by(
        &self,
        fact: &IncarnationReserved,
        spec: &PlanSpec,
    ) -> Result<Incarnation, InvariantViolation> {
        let name = &fact.replica;
        demand!(
            4,
            spec.resources() == fact.resources,
            "an incarnation of {name} reserves {}, and its spec demands {}",
            fact.resources,
            spec.resources()
        );
        self.stores(fact, spec)?;
        let followed = fact.starts_after.and_then(|old| self.incarnations.get(&old));
        let for_both =
            followed.filter(|old| old.node == fact.node).map_or(Resources::ZERO, |old| old.resources);
        Ok(Incarnation {
            replica: name.clone(),
            operation: fact.operation,
            node: fact.node.clone(),
            cluster: self.cluster_of(&fact.node)?,
            deployment: fact.deployment.clone(),
            starts_after: fact.starts_after,
            resources: fact.resources,
            holds: fact.resources.less(for_both),
            reserved_storage: fact.reserved_storage.clone(),
            mounts: fact.mounts.clone(),
            placed_by: 0,
            processes: spec.payloads.iter().map(|payload| usize::from(payload.processes)).sum(),
            progress: IncarnationProgress::Reserved,
            is_ready: false,
            unready: None,
            since: None,
            revision: 0,
            command: None,
            is_rebooting: false,
            reboot_due: None,
            resets: Vec::new(),
            resets_before: Vec::new(),
        })
    }

    fn cluster_of(&self, name: &NodeName) -> Result<chancery_events::name::ClusterName, InvariantViolation> {
        let homeless = || {
            InvariantViolation::new(4, format!("capacity is reserved on node {name}, which is in no cluster"))
        };
        self.node(name)?.cluster.clone().ok_or_else(homeless)
    }
}
