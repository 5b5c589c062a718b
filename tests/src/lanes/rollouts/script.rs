//! What a round plays. All of it is drawn from the seed and the number of the round before the round begins, so that no
//! draw depends on how fast the machine is.

use std::time::Duration;

use chancery_events::spec::{OnTimeout, Strategy};
use serde_json::{Value, json};

use super::REPLICAS;
use crate::server::program;
use crate::sim::Random;

/// Maximum of updates that one deployment may run at once.
pub(super) const WAVE: u32 = 3;

/// What a version of the payload does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// Serves at once.
    Good,
    /// Serves after most of a second.
    Slow,
    /// Exits with status 1 before it serves.
    Crashing,
    /// Runs and never listens.
    Hung,
    /// Answers that it is not ready, and never is.
    Unready,
}

impl Version {
    const ALL: [Version; 5] =
        [Version::Good, Version::Slow, Version::Crashing, Version::Hung, Version::Unready];

    /// The first word of the coordinate.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Version::Good => "good",
            Version::Slow => "slow",
            Version::Crashing => "crashing",
            Version::Hung => "hung",
            Version::Unready => "unready",
        }
    }

    /// Whether its replicas become ready.
    pub(super) const fn serves(self) -> bool {
        matches!(self, Version::Good | Version::Slow)
    }

    /// What the version with that coordinate does.
    pub(super) fn of(coordinate: &str) -> Option<Version> {
        let word = coordinate.split('-').next()?;
        Version::ALL.into_iter().find(|version| version.word() == word)
    }

    fn draw(random: &mut Random) -> Version {
        match random.below(10) {
            0..4 => Version::Good,
            4..6 => Version::Slow,
            6..8 => Version::Crashing,
            8 => Version::Hung,
            _ => Version::Unready,
        }
    }
}

/// A payload that does what the first word of its version says, and tells whoever asks its version, replica and node.
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

/// What the plan says in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Whether an update stops the old run before the new one is started.
    pub(super) stop_first: bool,
    /// Whether all that ends by itself is started again, and not only what fails.
    pub(super) always: bool,
    /// Replicas that a drain or a rebalance may move at once.
    pub(super) budget: u64,
}

/// A deployment of a new version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rollout {
    pub(super) version: Version,
    pub(super) strategy: Strategy,
    /// Whether it takes the place of the deployment that is carried out.
    pub(super) supersedes: bool,
    pub(super) auto_rollback: bool,
}

impl Rollout {
    /// A version that works, in the place of whatever is carried out.
    pub(super) const REPAIR: Rollout = Rollout {
        version: Version::Good,
        strategy: Strategy::Rolling { wave: Some(WAVE), per_domain: false, pause: 0 },
        supersedes: true,
        auto_rollback: false,
    };

    fn draw(random: &mut Random) -> Rollout {
        let version = Version::draw(random);
        Rollout {
            version,
            strategy: strategy(random, version),
            supersedes: random.chance(500),
            auto_rollback: random.chance(300),
        }
    }

    /// Version and strategy, for the tally.
    pub(super) fn words(&self) -> String {
        let strategy = match self.strategy {
            Strategy::Rolling { .. } => "rolling",
            Strategy::Graceful { .. } => "graceful",
            Strategy::Canary { .. } => "canary",
        };
        format!("{}, {strategy}", self.version.word())
    }
}

fn strategy(random: &mut Random, version: Version) -> Strategy {
    match random.below(10) {
        0..6 => {
            // One slow version after another would make a long round.
            let fewest = if version == Version::Slow { 2 } else { 0 };
            let wave = Some(random.between(fewest, u64::from(WAVE)) as u32).filter(|wave| *wave > 0);
            let pause = if random.chance(200) { 100 } else { 0 };
            Strategy::Rolling { wave, per_domain: random.chance(250), pause }
        }
        6..8 => {
            // A version that serves is in time on any machine; one that does not may wait for the end of its time.
            let timeout = if version.serves() || random.chance(500) { 120_000 } else { 1500 };
            let commits = version.serves() && random.chance(300);
            let on_timeout = if commits { OnTimeout::Commit } else { OnTimeout::Rollback };
            Strategy::Graceful { timeout, on_timeout }
        }
        _ => Strategy::Canary { count: random.between(1, 2) as u32 },
    }
}

/// One thing that people or a fault do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A version is deployed.
    Deploy(Rollout),
    /// The deployment that was created last is cancelled.
    Cancel,
    /// The plan is rolled back.
    RollBack,
    /// The canary that is carried out, if there is one, is promoted, or withdrawn.
    Decide { promotes: bool },
    /// A node is drained; if one was drained before, that one is put back instead.
    Drain(u64),
    /// The plan is rebalanced.
    Rebalance,
    /// The server is killed, and started again after that time.
    Kill(Duration),
}

/// How people end a deployment that does not end by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Cancel,
    RollBack,
    Supersede,
}

/// A round.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a draw of its own")]
pub(super) struct Script {
    pub(super) policy: Policy,
    /// What is done, each with the time until the next.
    pub(super) steps: Vec<(Step, Duration)>,
    /// How a deployment is ended that does not end by itself, and how long it is waited for before.
    pub(super) way: Way,
    pub(super) patience: Duration,
    /// Whether a canary that works is promoted in the end, or withdrawn.
    pub(super) promotes: bool,
    /// Whether the node that is drained is put back before the last check, or after it.
    pub(super) undrains_early: bool,
    /// Whether the plan is rebalanced after the last check, if it is uneven.
    pub(super) rebalances: bool,
    /// Whether what was ended halfway is rolled back, or replaced by another version.
    pub(super) rolls_back: bool,
}

impl Script {
    pub(super) fn draw(seed: u64, round: u64) -> Script {
        let mut random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let policy = Policy {
            stop_first: random.chance(400),
            always: random.chance(300),
            budget: random.between(1, REPLICAS as u64 / 2),
        };
        let mut steps = vec![(Step::Deploy(Rollout::draw(&mut random)), pause(&mut random))];
        let (count, mut kills) = (random.between(3, 6) as usize, 0);
        while steps.len() < count {
            let step = draw(&mut random);
            // A start of the server takes as long as all other steps.
            kills += u32::from(matches!(step, Step::Kill(_)));
            if kills < 2 || !matches!(step, Step::Kill(_)) {
                steps.push((step, pause(&mut random)));
            }
        }
        let way = match random.below(3) {
            0 => Way::Cancel,
            1 => Way::RollBack,
            _ => Way::Supersede,
        };
        Script {
            policy,
            steps,
            way,
            patience: Duration::from_millis(random.below(800)),
            promotes: random.chance(600),
            undrains_early: random.chance(300),
            rebalances: random.chance(500),
            rolls_back: random.chance(500),
        }
    }
}

fn draw(random: &mut Random) -> Step {
    match random.below(14) {
        0..4 => Step::Deploy(Rollout::draw(random)),
        4..6 => Step::Cancel,
        6..8 => Step::RollBack,
        8 => Step::Decide { promotes: random.chance(500) },
        9..11 => Step::Drain(random.between(1, 4)),
        11 => Step::Rebalance,
        _ => Step::Kill(Duration::from_millis(random.below(300))),
    }
}

/// The time until the next step.
fn pause(random: &mut Random) -> Duration {
    Duration::from_millis(random.below(700))
}
