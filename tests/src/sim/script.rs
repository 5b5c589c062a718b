//! Draws of a seed before its world starts: the world's size, possible faults, and requests of people.
//!
//! The order of actions is drawn separately as the world runs, from the same seed. So a failure can be
//! reduced by leaving faults and inputs out.

use std::collections::BTreeSet;
use std::time::Duration;

use chancery_events::spec::ClusterRuntime;
use serde_json::Value;

use super::fault::SimulatedFault;
use super::kubernetes::AdmissionPolicy;
use super::random::RandomSource;
use super::requests::{self, MainActivity};

/// Future request. Details are chosen when it is sent, from what is read then.
#[derive(Clone, PartialEq, Debug)]
pub enum ScriptInput {
    /// Exactly this intent.
    Ask {
        /// Type of the intent, without its version.
        type_name: &'static str,
        /// Body of the intent.
        data: Value,
    },
    /// Request for an existing replica: `start`, `stop`, `delete`, `relocate`, `restart`.
    OfReplica {
        /// Verb of the request.
        verb: &'static str,
        /// Replica's index, modulo the count.
        which: u64,
        /// Only node that a move accepts.
        node: Option<String>,
    },
    /// Request for a deployment in progress: `cancel`, `pause`, `resume`, `promote`, `rollback`.
    OfDeployment {
        /// Verb of the request.
        verb: &'static str,
        /// Deployment's index, modulo the count.
        which: u64,
    },
    /// Rollback of a plan.
    Rollback {
        /// Name of the plan.
        plan: String,
        /// Name of the new deployment.
        name: String,
        /// Index among ended deployments, modulo the count; the last completed one, if absent.
        which: Option<u64>,
    },
    /// Deletion or snapshot of an existing volume.
    OfVolume {
        /// Volume's index, modulo the count.
        which: u64,
        /// Name of the snapshot; absent to delete the volume.
        snapshot: Option<String>,
    },
    /// Request for a known disruption: `approve`, `complete`, `delete`.
    OfDisruption {
        /// Verb of the request.
        verb: &'static str,
        /// Disruption's index, modulo the count.
        which: u64,
    },
    /// Approval of one or all pending operations.
    Approve {
        /// Operation's index, modulo the count; all if absent.
        which: Option<u64>,
    },
    /// Rejection of a pending operation.
    Reject {
        /// Operation's index, modulo the count.
        which: u64,
    },
    /// Approval or rejection of a pending approval request.
    OfRequest {
        /// Verb: `approve` or `reject`.
        verb: &'static str,
        /// Request's index, modulo the count.
        which: u64,
    },
    /// Change of an existing plan to automatic approval.
    Automatic {
        /// Plan's index, modulo the count.
        which: u64,
    },
    /// Request that must be refused.
    Bad {
        /// Number of the reason.
        which: u64,
    },
}

/// Drawn world.
#[derive(Clone, Debug)]
pub struct WorldScript {
    /// Seed of all draws.
    pub seed: u64,
    /// Possible faults.
    pub faults: BTreeSet<SimulatedFault>,
    /// Requests, in this order.
    pub inputs: Vec<ScriptInput>,
    /// Steps while faults may happen.
    pub steps: u64,
    /// Clusters, each with one orchestrator of this runtime and one executor.
    pub clusters: Vec<ClusterRuntime>,
    /// Servers that may become leader.
    pub servers: u64,
    /// Lease of a session.
    pub lease: Duration,
    /// Misbehaving incarnations in a thousand.
    pub misbehave: u64,
    /// Failing work items in a thousand.
    pub work_fails: u64,
    /// Whether there is a topic into which producers put some requests.
    pub inbox: bool,
    /// Requests in a thousand that are put into the topic, if allowed.
    pub messages: u64,
    /// Admission policy of Kubernetes clusters.
    pub policy: AdmissionPolicy,
}

/// Intents that an inbox message must not request.
pub(super) const APPROVALS: [&str; 4] =
    ["operation.approve.v1", "operation.reject.v1", "request.approve.v1", "request.reject.v1"];

/// Worlds in a thousand whose first cluster is a Kubernetes cluster.
const KUBERNETES: u64 = 150;

impl WorldScript {
    /// Draws the world of a seed.
    pub fn draw(seed: u64) -> WorldScript {
        let mut random = RandomSource::new(seed);
        // Swarm: most faults are off in most worlds, so that any two meet in some world without others.
        let share = *random.pick(&[0, 150, 300, 500]).unwrap_or(&0);
        let usual = SimulatedFault::ALL
            .iter()
            .copied()
            .filter(|fault| !fault.is_of_inbox() && !fault.is_of_kubernetes());
        let mut faults: BTreeSet<_> = usual.filter(|_| random.chance(share)).collect();
        let mut clusters: Vec<_> = (0..random.between(1, 2)).map(|_| runtime(&mut random)).collect();
        // Drawn apart, so that other worlds stay as they are.
        let mut apart = RandomSource::new(seed ^ 0x0b5);
        if apart.chance(KUBERNETES) {
            clusters[0] = ClusterRuntime::Kubernetes;
            let its_own = SimulatedFault::ALL.iter().copied().filter(|fault| fault.is_of_kubernetes());
            faults.extend(its_own.filter(|_| apart.chance(share.max(500))));
        }
        let policy = if apart.chance(500) { AdmissionPolicy::Refuse } else { AdmissionPolicy::None };
        let plans = random.between(1, 2);
        let habit = MainActivity::draw(&mut random);
        let likely = habit.map_or(&[][..], MainActivity::faults);
        faults.extend(likely.iter().filter(|_| random.chance(700)));
        let mut inputs = requests::all(&mut random, &clusters, plans, habit);
        // Drawn apart, as above.
        requests::add_snapshots(&mut RandomSource::new(seed ^ 0x5a9), &mut inputs);
        let steps = random.between(300, 1200);
        let servers = random.between(1, 3);
        let lease = Duration::from_secs(random.between(3, 15));
        let misbehave = *random.pick(&[50, 200, 500]).unwrap_or(&200);
        let work_fails = *random.pick(&[200, 600, 950]).unwrap_or(&600);
        let writes = habit == Some(MainActivity::InboxMessages);
        let inbox = writes || random.chance(300);
        let inbox_messages = if writes { 900 } else { 400 };
        if inbox {
            let its_own = SimulatedFault::ALL.iter().copied().filter(|fault| fault.is_of_inbox());
            faults.extend(its_own.filter(|_| random.chance(share)));
        }
        WorldScript {
            seed,
            faults,
            inputs,
            steps,
            clusters,
            servers,
            lease,
            misbehave,
            work_fails,
            inbox,
            messages: inbox_messages,
            policy,
        }
    }
}

/// Draws the runtime that a cluster reports: its orchestrator is simulated in any case.
fn runtime(random: &mut RandomSource) -> ClusterRuntime {
    if random.chance(500) { ClusterRuntime::Simulated } else { ClusterRuntime::Process }
}
