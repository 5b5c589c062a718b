//! Script of a round. Everything is drawn from the seed and the round's number before the round starts: no
//! draw depends on the machine's speed.

use std::time::Duration;

use chancery_events::spec::{DeploymentStrategy, TimeoutAction};
use serde_json::{Value, json};

use super::REPLICAS;
use crate::server::program;
use crate::sim::RandomSource;

/// Maximum number of concurrent updates of a deployment.
pub(super) const MAX_PARALLEL: u32 = 3;

/// Behaviour of a payload version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PayloadVersion {
    /// Version that serves immediately.
    Good,
    /// Version that serves after 0.7 seconds.
    Slow,
    /// Version that exits with status 1 before it serves.
    Crashing,
    /// Version that runs and never listens.
    Hung,
    /// Version that always answers that it is not ready.
    Unready,
}

impl PayloadVersion {
    const ALL: [PayloadVersion; 5] = [
        PayloadVersion::Good,
        PayloadVersion::Slow,
        PayloadVersion::Crashing,
        PayloadVersion::Hung,
        PayloadVersion::Unready,
    ];

    /// First word of the version coordinate.
    pub(super) const fn word(self) -> &'static str {
        match self {
            PayloadVersion::Good => "good",
            PayloadVersion::Slow => "slow",
            PayloadVersion::Crashing => "crashing",
            PayloadVersion::Hung => "hung",
            PayloadVersion::Unready => "unready",
        }
    }

    /// Whether replicas of the version become ready.
    pub(super) const fn serves(self) -> bool {
        matches!(self, PayloadVersion::Good | PayloadVersion::Slow)
    }

    /// Behaviour of the version with this coordinate.
    pub(super) fn of(coordinate: &str) -> Option<PayloadVersion> {
        let word = coordinate.split('-').next()?;
        PayloadVersion::ALL.into_iter().find(|version| version.word() == word)
    }

    fn draw(random: &mut RandomSource) -> PayloadVersion {
        match random.below(10) {
            0..4 => PayloadVersion::Good,
            4..6 => PayloadVersion::Slow,
            6..8 => PayloadVersion::Crashing,
            8 => PayloadVersion::Hung,
            _ => PayloadVersion::Unready,
        }
    }
}

/// Payload that acts on the first word of its version, and reports version, replica and node over HTTP.
pub(super) fn payload() -> Value {
    let script = "case \"$$VERSION\" in \
        slow-*) sleep 0.7 ;; \
        crashing-*) exit 1 ;; \
        hung-*) exec sleep 100000 ;; \
        unready-*) exec \"$$1\" ;; \
        esac; exec \"$$0\" demo-payload --port \"$$PORT_HTTP\"";
    let unready = concat!(env!("CARGO_MANIFEST_DIR"), "/payloads/unready");
    json!({
        "name": "app", "resources": {"cpu": 100, "memory": 256 << 20},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "ready": {"http": {"port": "http", "path": "/", "timing": {"period": 100}}},
        "run": {
            "argv": ["bash", "-c", script, program().display().to_string(), unready],
            "env": {"VERSION": "${version}"},
        },
    })
}

/// Settings of the plan in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanSettings {
    /// Whether an update stops the old incarnation before it starts the new one.
    pub(super) stop_first: bool,
    /// Whether incarnations restart after every exit, not only after failures.
    pub(super) always: bool,
    /// Maximum number of replicas moved concurrently by a drain or rebalance.
    pub(super) max_unavailable: u64,
}

/// Deployment of a new version.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionRollout {
    pub(super) version: PayloadVersion,
    pub(super) strategy: DeploymentStrategy,
    /// Whether the deployment supersedes the current one.
    pub(super) supersedes: bool,
    pub(super) auto_rollback: bool,
}

impl VersionRollout {
    /// Working version that supersedes any current deployment.
    pub(super) const REPAIR: VersionRollout = VersionRollout {
        version: PayloadVersion::Good,
        strategy: DeploymentStrategy::Rolling {
            max_parallel: Some(MAX_PARALLEL),
            per_domain: false,
            delay: 0,
        },
        supersedes: true,
        auto_rollback: false,
    };

    fn draw(random: &mut RandomSource) -> VersionRollout {
        let version = PayloadVersion::draw(random);
        VersionRollout {
            version,
            strategy: strategy(random, version),
            supersedes: random.chance(500),
            auto_rollback: random.chance(300),
        }
    }

    /// Version and strategy, for the tally.
    pub(super) fn words(&self) -> String {
        let strategy = match self.strategy {
            DeploymentStrategy::Rolling { .. } => "rolling",
            DeploymentStrategy::BlueGreen { .. } => "blue_green",
            DeploymentStrategy::Canary { .. } => "canary",
        };
        format!("{}, {strategy}", self.version.word())
    }
}

fn strategy(random: &mut RandomSource, version: PayloadVersion) -> DeploymentStrategy {
    match random.below(10) {
        0..6 => {
            // Updating slow versions one at a time would make a long round.
            let fewest = if version == PayloadVersion::Slow { 2 } else { 0 };
            let max_parallel =
                Some(random.between(fewest, u64::from(MAX_PARALLEL)) as u32).filter(|most| *most > 0);
            let delay = if random.chance(200) { 100 } else { 0 };
            DeploymentStrategy::Rolling { max_parallel, per_domain: random.chance(250), delay }
        }
        6..8 => {
            // A serving version is in time on any machine; for others the timeout may be short.
            let timeout = if version.serves() || random.chance(500) { 120_000 } else { 1500 };
            let commits = version.serves() && random.chance(300);
            let on_timeout = if commits { TimeoutAction::CutOver } else { TimeoutAction::Rollback };
            DeploymentStrategy::BlueGreen { timeout, on_timeout }
        }
        _ => DeploymentStrategy::Canary { count: random.between(1, 2) as u32 },
    }
}

/// One operator action or fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum RoundStep {
    /// Deploys a version.
    Deploy(VersionRollout),
    /// Cancels the deployment that was created last.
    Cancel,
    /// Rolls the plan back.
    RollBack,
    /// Promotes or rolls back the current canary, if there is one.
    Decide { promotes: bool },
    /// Drains a node, or undrains the one already drained.
    Drain(u64),
    /// Rebalances the plan.
    Rebalance,
    /// Kills the server, and restarts it after the delay.
    Kill(Duration),
}

/// Action that ends a deployment which does not end automatically.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndAction {
    Cancel,
    RollBack,
    Supersede,
}

/// Script of a round.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a draw of its own")]
pub(super) struct RoundScript {
    pub(super) policy: PlanSettings,
    /// Steps, each with the delay until the next.
    pub(super) steps: Vec<(RoundStep, Duration)>,
    /// Action that ends such a deployment, and the time to wait before it.
    pub(super) end_action: EndAction,
    pub(super) patience: Duration,
    /// Whether a working canary is finally promoted, or rolled back.
    pub(super) promotes: bool,
    /// Whether the node is undrained before the last check, or after it.
    pub(super) undrains_early: bool,
    /// Whether an uneven plan is rebalanced after the last check.
    pub(super) rebalances: bool,
    /// Whether a deployment ended halfway is rolled back, or replaced.
    pub(super) rolls_back: bool,
}

impl RoundScript {
    pub(super) fn draw(seed: u64, round: u64) -> RoundScript {
        let mut random = RandomSource::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let policy = PlanSettings {
            stop_first: random.chance(400),
            always: random.chance(300),
            max_unavailable: random.between(1, REPLICAS as u64 / 2),
        };
        let mut steps = vec![(RoundStep::Deploy(VersionRollout::draw(&mut random)), pause(&mut random))];
        let (count, mut kills) = (random.between(3, 6) as usize, 0);
        while steps.len() < count {
            let step = draw(&mut random);
            // A start of the server takes as long as all other steps.
            kills += u32::from(matches!(step, RoundStep::Kill(_)));
            if kills < 2 || !matches!(step, RoundStep::Kill(_)) {
                steps.push((step, pause(&mut random)));
            }
        }
        let end_action = match random.below(3) {
            0 => EndAction::Cancel,
            1 => EndAction::RollBack,
            _ => EndAction::Supersede,
        };
        RoundScript {
            policy,
            steps,
            end_action,
            patience: Duration::from_millis(random.below(800)),
            promotes: random.chance(600),
            undrains_early: random.chance(300),
            rebalances: random.chance(500),
            rolls_back: random.chance(500),
        }
    }
}

fn draw(random: &mut RandomSource) -> RoundStep {
    match random.below(14) {
        0..4 => RoundStep::Deploy(VersionRollout::draw(random)),
        4..6 => RoundStep::Cancel,
        6..8 => RoundStep::RollBack,
        8 => RoundStep::Decide { promotes: random.chance(500) },
        9..11 => RoundStep::Drain(random.between(1, 4)),
        11 => RoundStep::Rebalance,
        _ => RoundStep::Kill(Duration::from_millis(random.below(300))),
    }
}

/// Delay until the next step.
fn pause(random: &mut RandomSource) -> Duration {
    Duration::from_millis(random.below(700))
}
