//! Waits of a deployment: the operation, replica and node, start and deadline, and the remedy.
//!
//! | state | waits for | remedy |
//! |---|---|---|
//! | pending | the current deployment | cancel or supersede that one |
//! | paused | its resumption | resume it |
//! | in progress, halted: an operation runs | an incarnation to be ready, or to end | cancel the deployment, or expunge a lost node |
//! | in progress: an operation has no node | capacity | add capacity, or cancel |
//! | in progress: an operation is queued | an unhealthy replica, or a pause | repair the replica, or cancel |
//! | in progress: an operation waits for approval | an approver, or a policy's window | approve or reject it |
//! | in progress: a canary is deployed | a decision | promote it or roll it back |
//! | in progress: a replica is busy | another operation on it | as for that operation |
//!
//! The first row that applies is shown. Decisions of operators come last, as they never count as missing
//! progress.

use std::fmt;

use chancery_events::id::IncarnationId;
use chancery_events::lifecycle::{SetWord, WillWord};
use chancery_events::name::DeploymentName;
use chancery_events::observation::ProcessInfo;
use chancery_events::spec::{DeploymentStrategy, OperationKind};
use chancery_events::time::Time;

use crate::fleet::FleetState;
use crate::index::{DeploymentIndex, PlanIndex};
use crate::state::{
    Deployment, DeploymentState, Incarnation, IncarnationState, Operation, OperationState, Plan, Replica,
};

/// Maximum number of replicas that are checked for a busy one.
const LOOKS: usize = 64;

/// Displayable wait of a deployment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeploymentWait {
    /// Event that is waited for.
    pub what: String,
    /// Start of the wait.
    pub since: Time,
    /// Deadline of the wait, if any.
    pub until: Option<Time>,
    /// Remedy for the wait, as an instruction.
    pub change: String,
}

impl DeploymentWait {
    /// Returns the wait without its deadline and remedy.
    pub fn cause(&self) -> String {
        format!("{} since {}", self.what, self.since)
    }
}

impl fmt::Display for DeploymentWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause())?;
        if let Some(until) = self.until {
            write!(f, ", until {until}")?;
        }
        write!(f, "; to end the wait: {}", self.change)
    }
}

/// Returns what the deployment waits for. `None` if it has ended or waits only for its own next step.
pub fn waits_for(fleet: &FleetState, plan: &Plan, deployment: &Deployment) -> Option<DeploymentWait> {
    let name = format!("{}/{}", plan.name, deployment.name);
    let since = deployment.meta.changed.time;
    match &deployment.state {
        DeploymentState::Pending => {
            let current = super::current(fleet, plan)?;
            let what = format!("deployment {}/{} to end", plan.name, current.name);
            let change = format!("cancel that, or supersede it with {name}");
            Some(DeploymentWait { what, since, until: None, change })
        }
        DeploymentState::Paused => {
            let (what, change) = ("its resumption".to_owned(), format!("resume or cancel {name}"));
            Some(DeploymentWait { what, since, until: None, change })
        }
        DeploymentState::InProgress | DeploymentState::Halted(_) => {
            let index = fleet.index().plan_index(&plan.name)?;
            let (_, current) = index.current()?;
            carried_out(fleet, plan, deployment, index, current, &format!("cancel deployment {name}"))
        }
        DeploymentState::Ended(_) => None,
    }
}

fn carried_out(
    fleet: &FleetState,
    plan: &Plan,
    deployment: &Deployment,
    index: &PlanIndex,
    current: &DeploymentIndex,
    cancel: &str,
) -> Option<DeploymentWait> {
    let operation = |id| fleet.operations().get(id);
    if let Some(running) = current.running.keys().next().and_then(operation) {
        return Some(of_operation(fleet, plan, running, cancel));
    }
    if let Some(unplaced) = current.unstarted.difference(&current.asking).next().and_then(operation) {
        return Some(of_operation(fleet, plan, unplaced, cancel));
    }
    let new = || index.deployments.values().filter(|of| of.version == current.version);
    let replicas =
        || new().flat_map(|of| of.members().take(LOOKS)).filter_map(|name| fleet.replicas().get(name));
    // A replica with an operation is waited for through that operation.
    let is_unwell = |replica: &&Replica| {
        replica.operation.is_none() && !replica.active.as_ref().is_some_and(|active| active.healthy)
    };
    // A queued operation does not wait for a replica without an incarnation.
    let ailing = || replicas().find(|replica| replica.active.is_some() && is_unwell(replica));
    let unwell = || ailing().or_else(|| replicas().find(is_unwell));
    let old = || index.deployments.values().filter(|of| of.version != current.version);
    // Nothing is dequeued while a replica is being restored.
    let regains = |replica: &&Replica| replica.recovers || replica.operation.is_some_and(|open| open.regains);
    let regaining = || {
        let of = old().filter(|of| of.regaining > 0 && !current.runs_alongside());
        let all = of.flat_map(|of| of.members().take(LOOKS)).filter_map(|name| fleet.replicas().get(name));
        all.into_iter().find(regains)
    };
    if let Some(queued) = current.queued().next().and_then(operation) {
        let replica = ailing().or_else(regaining);
        let open = replica.and_then(|replica| replica.operation);
        let open = open.and_then(|open| fleet.operations().get(&open.id));
        return Some(match (open, replica) {
            (Some(open), _) => of_operation(fleet, plan, open, cancel),
            (None, Some(replica)) => of_replica(fleet, replica, deployment.meta.changed.time, cancel),
            (None, None) => of_operation(fleet, plan, queued, cancel),
        });
    }
    if let Some(asking) = current.asking.first().and_then(operation) {
        return Some(of_operation(fleet, plan, asking, cancel));
    }
    let in_progress = deployment.state == DeploymentState::InProgress;
    if in_progress
        && matches!(deployment.spec.strategy, DeploymentStrategy::Canary { .. })
        && deployment.active_set == SetWord::Old
    {
        let since = deployment.last_success.unwrap_or(deployment.meta.changed).time;
        let what = "the promotion of its canary".to_owned();
        let change = format!("promote or roll back deployment {}/{}", plan.name, deployment.name);
        return Some(DeploymentWait { what, since, until: None, change });
    }
    let mut old =
        old().flat_map(DeploymentIndex::members).take(LOOKS).filter_map(|name| fleet.replicas().get(name));
    let going = || index.going.iter().filter_map(|name| fleet.replicas().get(name));
    let version = |of: &DeploymentName| index.deployments.get(of).and_then(|of| of.version);
    let undecided = || index.undecided.iter().find(|(of, _)| version(of) != current.version);
    let busy = if in_progress {
        let busy = old.find(|replica| !replica.is_updatable());
        busy.or_else(|| undecided().and_then(|(_, name)| fleet.replicas().get(name)))
    } else {
        going().find(|replica| replica.deployment == deployment.name)
    };
    let busy = busy.or_else(|| replicas().find(|replica| replica.operation.is_some()));
    let open = busy.and_then(|replica| replica.operation);
    if let Some(open) = open.and_then(|open| fleet.operations().get(&open.id)) {
        return Some(of_operation(fleet, plan, open, cancel));
    }
    busy.or_else(unwell).map(|replica| of_replica(fleet, replica, deployment.meta.changed.time, cancel))
}

/// Returns the wait for an unhealthy replica, or for the end of an incarnation of it.
fn of_replica(fleet: &FleetState, replica: &Replica, since: Time, cancel: &str) -> DeploymentWait {
    let run = |id: IncarnationId| fleet.incarnations().get(&id);
    let ends = replica.runs().filter_map(|active| run(active.incarnation));
    let ends = ends.into_iter().find(|run| matches!(run.state, IncarnationState::Stopping(_)));
    if let Some(ending) = ends {
        return to_end(&format!("replica {}", replica.name), ending, cancel);
    }
    let active = replica.active.as_ref().and_then(|active| run(active.incarnation));
    let off = match replica.desired {
        WillWord::Stopped => Some("which was stopped on request"),
        WillWord::GuestShutdown => Some("whose guest powered itself off"),
        WillWord::Proposed | WillWord::Running | WillWord::Deleted => None,
    };
    if let Some(off) = off.filter(|_| active.is_none()) {
        let what = format!("replica {}, {off}, to be ready", replica.name);
        let change = format!("start replica {}, or {cancel}", replica.name);
        return DeploymentWait { what, since: replica.meta.changed.time, until: None, change };
    }
    let place = active.map_or_else(String::new, |active| format!(" on node {}", active.node));
    let since = active.map_or(since, |active| active.meta.changed.time);
    let what =
        format!("replica {}{place} to be ready{}", replica.name, active.map_or_else(String::new, trouble));
    DeploymentWait {
        what,
        since,
        until: active.and_then(|active| active.deadline),
        change: cancel.to_owned(),
    }
}

/// Reported reason why an incarnation is not ready, or an empty string.
fn trouble(run: &Incarnation) -> String {
    let found = run.processes.iter().find_map(ProcessInfo::trouble);
    found.map_or_else(String::new, |trouble| format!(" ({trouble})"))
}

fn to_end(whose: &str, run: &Incarnation, cancel: &str) -> DeploymentWait {
    let what = format!("{whose}: incarnation {} on node {} to end", run.id, run.node);
    let change = format!("{cancel}, or expunge node {} if it is lost", run.node);
    DeploymentWait { what, since: run.meta.changed.time, until: run.deadline, change }
}

fn of_operation(fleet: &FleetState, plan: &Plan, operation: &Operation, cancel: &str) -> DeploymentWait {
    let on = operation.node.as_ref().map_or_else(String::new, |node| format!(" on node {node}"));
    let name = format!("operation {} ({} of {}{on})", operation.id, operation.kind, operation.replica);
    let since = operation.meta.changed.time;
    let cancel = cancel.to_owned();
    let wait = |what, until| DeploymentWait { what, since, until, change: cancel.clone() };
    match &operation.state {
        OperationState::PendingApproval(proposal) => DeploymentWait {
            what: format!("approval of {name}"),
            since,
            until: (proposal.expires < Time::FAR).then_some(proposal.expires),
            change: format!("approve or reject operation {}", operation.id),
        },
        OperationState::Preparing => {
            let reasons: Vec<_> = plan.unschedulable.iter().map(|unfit| unfit.reason.as_str()).collect();
            let why = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
            let mut wait = wait(format!("a node for {name}{why}"), None);
            let own = operation.requested_by.is_none();
            wait.change = if own {
                format!("add or free such a node, or {cancel}")
            } else {
                format!("add or free such a node, or reject operation {}", operation.id)
            };
            wait
        }
        OperationState::Approved => wait(format!("the start of {name}"), None),
        OperationState::Running => running(fleet, operation, &name, &cancel)
            .unwrap_or_else(|| wait(format!("{name} to complete"), None)),
        OperationState::Ended(_) => wait(format!("the step after {name}"), None),
    }
}

/// Wait of a running operation: for one incarnation to end, or another to be ready.
fn running(fleet: &FleetState, operation: &Operation, name: &str, cancel: &str) -> Option<DeploymentWait> {
    let replica = fleet.replicas().get(&operation.replica)?;
    let own = operation.incarnation.and_then(|id| fleet.incarnations().get(&id));
    let mut runs = replica.runs().filter_map(|run| fleet.incarnations().get(&run.incarnation));
    let down = matches!(operation.kind, OperationKind::Stop | OperationKind::Delete);
    let waits =
        own.filter(|own| !down && !operation.is_past_return && own.state != IncarnationState::Reserved);
    if let Some(own) = waits {
        let what = format!("{name}: incarnation {} on node {} to be ready{}", own.id, own.node, trouble(own));
        let (since, until) = (own.meta.changed.time, own.deadline);
        return Some(DeploymentWait { what, since, until, change: cancel.to_owned() });
    }
    let ending = runs.find(|run| matches!(run.state, IncarnationState::Stopping(_)));
    if let Some(ending) = ending {
        return Some(to_end(name, ending, cancel));
    }
    let due = own.filter(|own| own.awaits_volumes)?;
    let volumes: Vec<_> = due.ties.mounts.iter().map(ToString::to_string).collect();
    let what = format!("{name}: volumes {}", volumes.join(", "));
    Some(DeploymentWait {
        what,
        since: due.meta.changed.time,
        until: due.deadline,
        change: cancel.to_owned(),
    })
}
