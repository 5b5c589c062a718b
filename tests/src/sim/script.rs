//! What a seed draws before its world begins: how large it is, what may go wrong in it, and what people will ask.
//!
//! Apart from the order of things, which the same seed draws as the world runs, so that a failure can be made
//! smaller by leaving faults and inputs out.

use std::collections::BTreeSet;
use std::time::Duration;

use chancery_events::spec::Runtime;
use serde_json::Value;

use super::asks::{self, Habit};
use super::fault::Fault;
use super::random::Random;

/// What someone will ask. What it names beyond these words is chosen when it is asked, from what is read then.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// Exactly this.
    Ask {
        /// The type of the intent, without its version.
        type_name: &'static str,
        /// Its body.
        data: Value,
    },
    /// Something of a replica that exists then: `start`, `stop`, `delete`, `relocate`, `restart`.
    OfReplica {
        /// What.
        verb: &'static str,
        /// Which, counted round.
        which: u64,
        /// The only node that will do, for a move.
        node: Option<String>,
    },
    /// Something of a deployment that is carried out then: `cancel`, `pause`, `resume`, `promote`, `withdraw`.
    OfDeployment {
        /// What.
        verb: &'static str,
        /// Which, counted round.
        which: u64,
    },
    /// Rolls a plan back.
    Rollback {
        /// Which plan.
        plan: String,
        /// The name of the deployment that does.
        name: String,
        /// To one of those that are over then, counted round; the last that completed, if absent.
        which: Option<u64>,
    },
    /// Deletes a volume that is there then.
    OfVolume {
        /// Which, counted round.
        which: u64,
    },
    /// Something of a disruption that is known then: `approve`, `complete`, `delete`.
    OfDisruption {
        /// What.
        verb: &'static str,
        /// Which, counted round.
        which: u64,
    },
    /// Approves what waits then, all or one.
    Approve {
        /// Which, counted round; all if absent.
        which: Option<u64>,
    },
    /// Rejects one of those that wait then.
    Reject {
        /// Which, counted round.
        which: u64,
    },
    /// Approves or rejects an approval request that waits then.
    OfRequest {
        /// `approve` or `reject`.
        verb: &'static str,
        /// Number of the request among those that wait, counted round.
        which: u64,
    },
    /// Makes a plan that exists then approve operations by itself.
    Automatic {
        /// Number of the plan, counted round.
        which: u64,
    },
    /// Something that must be refused.
    Bad {
        /// In which way.
        which: u64,
    },
}

/// A world as drawn.
#[derive(Clone, Debug)]
pub struct Script {
    /// Of everything.
    pub seed: u64,
    /// What may go wrong.
    pub faults: BTreeSet<Fault>,
    /// What is asked, in this order.
    pub inputs: Vec<Input>,
    /// Steps while things may go wrong.
    pub steps: u64,
    /// Clusters, each with one orchestrator, of this kind, and one executor.
    pub clusters: Vec<Runtime>,
    /// Servers that may decide.
    pub servers: u64,
    /// A session's lease.
    pub lease: Duration,
    /// So many of a thousand incarnations misbehave.
    pub misbehave: u64,
    /// So many of a thousand pieces of work fail.
    pub work_fails: u64,
    /// Whether there is a topic into which producers put some of what they ask for.
    pub inbox: bool,
    /// So many of a thousand requests are put there, if they may be.
    pub letters: u64,
}

/// What nobody may ask for by a letter.
pub(super) const APPROVALS: [&str; 4] =
    ["operation.approve.v1", "operation.reject.v1", "request.approve.v1", "request.reject.v1"];

impl Script {
    /// What the seed draws.
    pub fn draw(seed: u64) -> Script {
        let mut random = Random::new(seed);
        // A swarm: most faults off in most worlds, so that each meets each other in some world, undisturbed.
        let share = *random.pick(&[0, 150, 300, 500]).unwrap_or(&0);
        let usual = Fault::ALL.iter().copied().filter(|fault| !fault.is_of_inbox());
        let mut faults: BTreeSet<_> = usual.filter(|_| random.chance(share)).collect();
        let clusters: Vec<_> = (0..random.between(1, 2)).map(|_| runtime(&mut random)).collect();
        let plans = random.between(1, 2);
        let habit = Habit::draw(&mut random);
        let likely = habit.map_or(&[][..], Habit::faults);
        faults.extend(likely.iter().filter(|_| random.chance(700)));
        let inputs = asks::all(&mut random, &clusters, plans, habit);
        let steps = random.between(300, 1200);
        let servers = random.between(1, 3);
        let lease = Duration::from_secs(random.between(3, 15));
        let misbehave = *random.pick(&[50, 200, 500]).unwrap_or(&200);
        let work_fails = *random.pick(&[200, 600, 950]).unwrap_or(&600);
        let writes = habit == Some(Habit::Letters);
        let inbox = writes || random.chance(300);
        let letters = if writes { 900 } else { 400 };
        if inbox {
            let its_own = Fault::ALL.iter().copied().filter(|fault| fault.is_of_inbox());
            faults.extend(its_own.filter(|_| random.chance(share)));
        }
        Script {
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
            letters,
        }
    }
}

/// What a cluster's orchestrator is made of, as far as anybody is told: what it runs is simulated all the same.
fn runtime(random: &mut Random) -> Runtime {
    if random.chance(500) { Runtime::Simulated } else { Runtime::Process }
}
