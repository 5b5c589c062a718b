//! Spread; invariant 12. A replica is placed where its plan's replicas stay as even as possible. A rebalance
//! only makes them more even. The recorded spread of a plan at rest is true.
//!
//! Replicas count where they are when all open operations succeed. Each check visits all nodes, so that it
//! depends on nothing that the machine keeps. Plans with volumes, affinities or matchers are left to the
//! machine's own tests.

use std::collections::BTreeMap;

use chancery_events::fact::{
    IncarnationReserved, OperationCreated, PlanBalanceChanged, PlanRebalanceEnded, PlanRebalanceStarted,
};
use chancery_events::intent::Intent;
use chancery_events::name::{DomainName, NodeName, PlanName, ReplicaName};
use chancery_events::spec::{
    ApprovalMode, BalancePolicy, ClusterActivity, DeploymentStrategy, NodeSharing, NodeState, OperationKind,
    PlacementPolicy, PlanSpec, ProbePurpose,
};

use super::state::{
    CheckedFleet, FactLocation, Incarnation, IncarnationProgress, LastInput, Operation, Plan, Replica,
};
use super::violation::{RuleResult, demand};

/// Moves of a plan that would make its spread more even.
enum SpreadImprovement<'a> {
    /// Not known, as the plan's placement rules are not modelled here.
    Unknown,
    /// No such move.
    Nothing,
    /// Move of this replica, to this node.
    Move(&'a ReplicaName, &'a NodeName),
}

/// Replicas that count, by domain and by node.
#[derive(Default)]
struct SpreadCounts<'a> {
    domains: BTreeMap<&'a DomainName, u32>,
    nodes: BTreeMap<&'a NodeName, u32>,
}

impl SpreadCounts<'_> {
    fn domain(&self, domain: &DomainName) -> u32 {
        self.domains.get(domain).copied().unwrap_or(0)
    }

    fn node(&self, node: &NodeName) -> u32 {
        self.nodes.get(node).copied().unwrap_or(0)
    }
}

/// Whether the allowed nodes are known here.
fn is_plain(policy: &PlanSpec, version: &PlanSpec) -> bool {
    !version.has_volumes() && policy.affinity.is_empty() && policy.matchers.is_empty()
}

impl Plan {
    /// Whether the allowed nodes of all replicas are known here.
    fn is_plain(&self) -> bool {
        self.latest().is_ok_and(|policy| self.specs.values().all(|version| is_plain(policy, version)))
    }
}

impl CheckedFleet {
    /// Returns the replica's incarnation after success of all open operations.
    fn remaining(&self, replica: &Replica) -> Option<&Incarnation> {
        let runs = replica.secondary.iter().chain(&replica.active).filter_map(|id| self.incarnations.get(id));
        let stays = |run: &&Incarnation| {
            !run.progress.is_over() && !matches!(run.progress, IncarnationProgress::Stopping(_))
        };
        runs.filter(|_| !self.is_going(replica)).find(stays)
    }

    /// Counts the plan's replicas, without one, that count alongside a replica of the version.
    fn counts(&self, plan: &PlanName, version: usize, but: &ReplicaName) -> SpreadCounts<'_> {
        let mut counts = SpreadCounts::default();
        let Some(of) = self.plans.get(plan) else { return counts };
        let current = of.current.as_ref().and_then(|current| of.deployments.get(current));
        let sets = current.filter(|current| {
            matches!(current.spec.strategy, DeploymentStrategy::BlueGreen { .. }) && !current.has_cut_over
        });
        let counted = |replica: &Replica| {
            sets.is_none_or(|new| {
                let own = of.deployments.get(&replica.deployment).map(|of| of.version);
                (own == Some(new.version)) == (version == new.version)
            })
        };
        for (name, replica) in &self.replicas {
            let counts_here = replica.plan == *plan && name != but && counted(replica);
            let Some(run) = self.remaining(replica).filter(|_| counts_here) else { continue };
            let Some(node) = self.nodes.get(&run.node) else { continue };
            *counts.domains.entry(&node.spec.domain).or_default() += 1;
            *counts.nodes.entry(&run.node).or_default() += 1;
        }
        counts
    }

    /// Returns the nodes that fit another incarnation of the replica.
    fn fitting<'a>(
        &'a self,
        name: &ReplicaName,
        replica: &Replica,
        (policy, version): (&PlanSpec, &PlanSpec),
    ) -> Vec<&'a NodeName> {
        let needs = version.resources();
        let fits = |(_, node): &(&'a NodeName, &'a super::state::Node)| {
            let cluster = node.cluster.as_ref();
            let active = cluster.and_then(|cluster| self.clusters.get(cluster));
            let is_active = active.is_some_and(|cluster| cluster.activity == ClusterActivity::Active);
            let allowed = node.state == NodeState::Allocated && !node.is_disrupted() && is_active;
            let wanted = policy.cluster.is_none() || policy.cluster.as_ref() == cluster;
            let wanted = wanted && (policy.zone.is_none() || policy.zone == node.spec.zone);
            let wanted = wanted
                && policy.selectors.iter().all(|(key, value)| node.spec.labels.get(key) == Some(value));
            let capacity = node.spec.resources.checked_sub(node.spec.reserved).unwrap_or_default();
            let free = capacity.checked_sub(node.held).unwrap_or_default();
            let others = node.reservations.iter().filter_map(|id| self.incarnations.get(id)).any(|run| {
                let of = self.replicas.get(&run.replica);
                run.replica != *name && of.is_some_and(|of| of.plan == replica.plan)
            });
            allowed && wanted && needs.fits(free) && !(others && policy.sharing == NodeSharing::Never)
        };
        self.nodes.iter().filter(fits).map(|(name, _)| name).collect()
    }

    fn domain_of(&self, node: &NodeName) -> Option<&DomainName> {
        self.nodes.get(node).map(|node| &node.spec.domain)
    }

    /// Checks that no other node would leave the plan's replicas more even.
    pub(super) fn is_placed_evenly(
        &self,
        fact: &IncarnationReserved,
        operation: &Operation,
        replica: &Replica,
        (policy, version): (&PlanSpec, &PlanSpec),
    ) -> RuleResult {
        let old = replica.active.and_then(|id| self.incarnations.get(&id)).map(|run| &run.node);
        let stays = fact.starts_after.is_some() && old == Some(&fact.node);
        let spreads = policy.placement == PlacementPolicy::Spread;
        if !spreads || !is_plain(policy, version) || operation.wants.is_some() || stays {
            return Ok(());
        }
        let of = self.plans.get(&replica.plan).and_then(|plan| plan.deployments.get(&fact.deployment));
        let Some(set) = of.map(|of| of.version) else { return Ok(()) };
        let counts = self.counts(&replica.plan, set, &fact.replica);
        let Some(domain) = self.domain_of(&fact.node) else { return Ok(()) };
        let leaves = old.filter(|_| operation.kind == OperationKind::Relocate);
        let nodes = self.fitting(&fact.replica, replica, (policy, version));
        for node in nodes.into_iter().filter(|node| Some(*node) != leaves) {
            let Some(other) = self.domain_of(node) else { continue };
            let (here, there) = (counts.domain(domain), counts.domain(other));
            demand!(
                12,
                here <= there,
                "replica {} is placed on {} of domain {domain}, in which {here} others remain, and in domain \
                 {other}, where {node} is allowed, {there}",
                fact.replica,
                fact.node
            );
            let (here, there) = (counts.node(&fact.node), counts.node(node));
            demand!(
                12,
                other != domain || here <= there,
                "replica {} is placed on {}, where {here} others remain, and on {node} {there}",
                fact.replica,
                fact.node
            );
        }
        Ok(())
    }

    /// Returns a node to which a move of the replica would make the spread more even.
    fn better(&self, name: &ReplicaName, replica: &Replica) -> Option<&NodeName> {
        let run = self.remaining(replica)?;
        let plan = self.plans.get(&replica.plan)?;
        let deployment = plan.deployments.get(&replica.deployment)?;
        let spec = (&**plan.latest().ok()?, &**plan.specs.get(&deployment.generation)?);
        let version = deployment.version;
        let counts = self.counts(&replica.plan, version, name);
        let own = self.domain_of(&run.node)?;
        self.fitting(name, replica, spec).into_iter().find(|node| {
            let Some(domain) = self.domain_of(node) else { return false };
            // The replica itself is not counted.
            if domain == own {
                **node != run.node && counts.node(node) < counts.node(&run.node)
            } else {
                counts.domain(domain) < counts.domain(own)
            }
        })
    }

    /// Returns a move of the plan that would make the spread more even.
    fn improvement(&self, plan: &PlanName) -> SpreadImprovement<'_> {
        let Some(of) = self.plans.get(plan) else { return SpreadImprovement::Unknown };
        if !of.is_plain() {
            return SpreadImprovement::Unknown;
        }
        if of.latest().is_ok_and(|spec| spec.placement == PlacementPolicy::Pack) {
            return SpreadImprovement::Nothing;
        }
        let movable = self.replicas.iter().filter(|(_, replica)| {
            let active = replica.active.and_then(|id| self.incarnations.get(&id));
            let free = replica.open.is_empty() && replica.secondary.is_none();
            replica.plan == *plan && free && active.is_some_and(|active| active.progress.is_up())
        });
        let mut better = movable.filter_map(|(name, replica)| Some((name, self.better(name, replica)?)));
        better.next().map_or(SpreadImprovement::Nothing, |(name, node)| SpreadImprovement::Move(name, node))
    }

    fn is_busy(&self, plan: &PlanName) -> bool {
        let of = self.plans.get(plan);
        of.is_none_or(|of| of.current.is_some() || of.next.is_some() || of.is_removing)
            || self.replicas.values().any(|replica| replica.plan == *plan && !replica.open.is_empty())
    }

    pub(super) fn balance_changed(&mut self, fact: &PlanBalanceChanged) -> RuleResult {
        let name = &fact.plan;
        demand!(
            12,
            !self.is_busy(name),
            "plan {name} is marked {}, and has something in progress",
            fact.balance
        );
        let found = match self.improvement(name) {
            SpreadImprovement::Unknown => None,
            SpreadImprovement::Nothing => Some((BalancePolicy::Even, String::new())),
            SpreadImprovement::Move(replica, node) => {
                Some((BalancePolicy::Uneven, format!("{replica} to {node}")))
            }
        };
        let plan = self.plan(name)?;
        demand!(5, plan.balance != fact.balance, "plan {name} is marked {} a second time", fact.balance);
        plan.balance = fact.balance;
        if let Some((balance, better)) = found {
            let is_so = balance == fact.balance;
            demand!(12, is_so, "plan {name} is marked {}, and is {balance} {better}", fact.balance);
        }
        Ok(())
    }

    pub(super) fn rebalance_started(&mut self, fact: &PlanRebalanceStarted, at: FactLocation) -> RuleResult {
        let name = &fact.plan;
        let input = self.input_of(at);
        let asked = input.as_deref().and_then(LastInput::request).is_some_and(|request| {
            let is_it = matches!(&request.intent, Intent::PlanRebalance(ask) if ask.name == *name);
            is_it && request.actor == fact.requested_by
        });
        demand!(6, asked, "a rebalance of plan {name} starts, and {} did not ask", fact.requested_by);
        demand!(
            6,
            !matches!(self.improvement(name), SpreadImprovement::Nothing),
            "a rebalance of plan {name} starts, and no move is better"
        );
        let plan = self.plan(name)?;
        demand!(5, plan.rebalance.is_none(), "a second rebalance of plan {name} starts");
        plan.rebalance = Some(fact.requested_by.clone());
        Ok(())
    }

    pub(super) fn rebalance_ended(&mut self, fact: &PlanRebalanceEnded) -> RuleResult {
        let name = &fact.plan;
        let moves = self.moves(name);
        let plan = self.plan(name)?;
        demand!(5, plan.rebalance.is_some(), "a rebalance of plan {name} ends, and none is in progress");
        demand!(6, moves == 0, "a rebalance of plan {name} ends, and {moves} moves of it do not");
        plan.rebalance = None;
        Ok(())
    }

    /// Counts moves of the plan's rebalance that have not ended.
    fn moves(&self, plan: &PlanName) -> usize {
        let open = self.replicas.values().filter(|replica| replica.plan == *plan).flat_map(|of| &of.open);
        let operations = open.filter_map(|id| self.operations.get(id));
        operations.filter(|operation| operation.purpose == Some(ProbePurpose::Rebalance)).count()
    }

    /// Checks that a rebalance was requested, and that its move makes the spread more even.
    pub(super) fn rebalance_asks(&self, fact: &OperationCreated, replica: &Replica) -> RuleResult {
        let (name, kind) = (&fact.replica, fact.kind);
        let what = format!("a {kind} of {name} is opened for a rebalance");
        let Some(plan) = self.plans.get(&replica.plan) else { return Ok(()) };
        demand!(6, kind == OperationKind::Relocate && fact.node.is_none(), "{what}, which is no move");
        let asked = match (&plan.rebalance, &fact.requested_by) {
            (Some(actor), Some(chancery_events::fact::Requester::Actor(by))) => actor == by,
            _ => false,
        };
        demand!(6, asked, "{what}, without a request");
        let spec = plan.latest()?;
        let bound =
            spec.has_volumes() || spec.approval.of(OperationKind::Relocate) == ApprovalMode::Automatic;
        let moves = self.moves(&replica.plan);
        demand!(
            6,
            !bound || moves < spec.max_unavailable as usize,
            "{what} concurrently with {moves} others"
        );
        demand!(
            12,
            !plan.is_plain() || self.better(name, replica).is_some(),
            "{what}, and no node is better"
        );
        Ok(())
    }

    /// Returns a plan at rest that a move would make more even and that is not marked uneven, if any.
    pub(super) fn unreported_balance(&self) -> Option<String> {
        self.plans.iter().find_map(|(name, plan)| {
            let SpreadImprovement::Move(replica, node) = self.improvement(name) else { return None };
            let is_reported = plan.balance == BalancePolicy::Uneven || self.is_busy(name);
            (!is_reported).then(|| {
                format!("plan {name} is uneven and not marked so: {replica} would be better on {node}")
            })
        })
    }
}
