//! Behaviour of simulated objects: faultless, unless a rule, a seed or their coordinates define a fault.
//!
//! The coordinate `simulate` of a payload is a list of values, as `delay:50ms,crash:3@1s`:
//!
//! | value | effect |
//! |---|---|
//! | `delay:50ms` | starting takes this long |
//! | `fail`, `fail:retry`, `fail:retry:2` | starting fails: permanently, retryable at each attempt, retryable at the first two |
//! | `crash:3`, `crash:3@1s` | the first process ends with status 3, immediately or after running for 1 s |
//! | `exit:0`, `exit:0@1s` | all processes end with that status |
//! | `poweroff`, `poweroff@1s` | the guest powers itself off, likewise |
//! | `reboot`, `reboot@1s` | the guest of the first process resets, likewise, and is ready again 500 ms later |
//! | `hang`, `hang@1s` | the first process stops answering its liveness probe, likewise |
//! | `unready`, `unready@1s` | the first process is no longer ready, likewise |
//! | `never-ready` | no process becomes ready |
//! | `partial` | the last process does not become ready |
//! | `late` | the start succeeds, but its first outcome is a timeout |
//! | `deaf` | processes ignore a stop, and are killed when its grace has passed |
//!
//! A change in place behaves as a start, by the new spec's values; a seed draws separately for each change.
//! An object whose change fails continues as before.
//!
//! A volume has no coordinates: its faults come from a rule or a seed. Creation behaves as a start, and every
//! value that ends the volume loses its contents. No seed draws such a loss, nor a permanent failure to
//! create, nor processes that ignore a stop.

use std::str::FromStr;
use std::time::Duration;

use chancery_events::id::{IncarnationId, ObjectId, VolumeId};
use chancery_events::observation::RetryClass;
use chancery_events::protocol::ObjectSpec;

const COORDINATE: &str = "simulate";

/// Behaviour of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SimulatedBehaviour {
    /// Time from the command until everything is started, or changed.
    pub delay: Duration,
    /// Failure of the start, at each attempt up to this number.
    pub fail: Option<(RetryClass, u32)>,
    /// Time that the object runs, and how it ends then.
    pub end: Option<(Duration, SimulatedExit)>,
    /// Processes that become ready.
    pub readiness: SimulatedReadiness,
    /// Whether the first attempt succeeds but reports a timeout.
    pub late: bool,
    /// Whether the processes ignore a stop.
    pub ignores_stop: bool,
}

/// End of an object on its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SimulatedExit {
    /// First process ends with this status, which ends the others.
    Crash(i32),
    /// All processes end with this status.
    Exit(i32),
    /// The guest of the first process powers itself off, which ends the others.
    PowerOff,
    /// Nothing ends, but the guest of the first process resets. It is ready again after [`BOOT`].
    Reboot,
    /// Nothing ends, but the first process stops responding.
    Hang,
    /// Nothing ends, but the first process is no longer ready.
    Unready,
    /// All processes are killed, because they have ignored a stop.
    Kill,
}

/// Time after which a guest that was reset is ready again.
pub(super) const BOOT: Duration = Duration::from_millis(500);

/// Processes that become ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SimulatedReadiness {
    /// All processes.
    #[default]
    All,
    /// All processes but the last.
    Partial,
    /// No process.
    Never,
}

/// Text that is no behaviour.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid behaviour {0:?}: must be one of delay:50ms, fail, fail:retry, crash:3, exit:0, poweroff, reboot, hang, \
     unready, never-ready, partial, late, deaf"
)]
pub struct InvalidBehaviour(String);

impl FromStr for SimulatedBehaviour {
    type Err = InvalidBehaviour;
    fn from_str(text: &str) -> Result<SimulatedBehaviour, InvalidBehaviour> {
        let mut behaviour = SimulatedBehaviour::default();
        for word in text.split(',').map(str::trim) {
            behaviour.add(word).ok_or_else(|| InvalidBehaviour(word.to_owned()))?;
        }
        Ok(behaviour)
    }
}

impl SimulatedBehaviour {
    fn add(&mut self, word: &str) -> Option<()> {
        if let Some((ending, after)) = exit_without_status(word) {
            self.end = Some((duration(after)?, ending));
            return Some(());
        }
        let (name, value) = word.split_once(':').unwrap_or((word, ""));
        match (name, value) {
            ("delay", value) => self.delay = duration(value)?,
            ("fail", "" | "never") => self.fail = Some((RetryClass::Permanent, u32::MAX)),
            ("fail", "retry") => self.fail = Some((RetryClass::Retryable, u32::MAX)),
            ("fail", value) => {
                self.fail = Some((RetryClass::Retryable, value.strip_prefix("retry:")?.parse().ok()?));
            }
            ("crash" | "exit", value) => {
                let (code, after) = value.split_once('@').unwrap_or((value, "0ms"));
                let code = code.parse().ok()?;
                let ending =
                    if name == "crash" { SimulatedExit::Crash(code) } else { SimulatedExit::Exit(code) };
                self.end = Some((duration(after)?, ending));
            }
            ("never-ready", "") => self.readiness = SimulatedReadiness::Never,
            ("partial", "") => self.readiness = SimulatedReadiness::Partial,
            ("late", "") => self.late = true,
            ("deaf", "") => self.ignores_stop = true,
            _ => return None,
        }
        Some(())
    }
}

/// Parses a value for what happens without an exit status, and its delay.
fn exit_without_status(word: &str) -> Option<(SimulatedExit, &str)> {
    let (name, after) = word.split_once('@').unwrap_or((word, "0ms"));
    let ending = match name {
        "poweroff" => SimulatedExit::PowerOff,
        "reboot" => SimulatedExit::Reboot,
        "hang" => SimulatedExit::Hang,
        "unready" => SimulatedExit::Unready,
        _ => return None,
    };
    Some((ending, after))
}

fn duration(text: &str) -> Option<Duration> {
    if let Some(millis) = text.strip_suffix("ms") {
        return millis.parse().ok().map(Duration::from_millis);
    }
    text.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
}

/// Target of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FaultTarget {
    /// Incarnation with this id.
    Incarnation(IncarnationId),
    /// Replicas whose name has this prefix.
    Replicas(String),
    /// Volume with this id.
    Volume(VolumeId),
    /// Volumes whose name has this prefix.
    Volumes(String),
    /// Every object.
    Any,
}

/// Fault rules. The coordinate `simulate` of a payload takes precedence, then the first matching rule,
/// then the seed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FaultRules {
    rules: Vec<(FaultTarget, SimulatedBehaviour)>,
    seeded: Option<(u64, u64)>,
}

impl FaultRules {
    /// Adds a rule after the others.
    #[must_use]
    pub fn rule(mut self, which: FaultTarget, behaviour: SimulatedBehaviour) -> FaultRules {
        self.rules.push((which, behaviour));
        self
    }

    /// Makes `of_a_thousand` of 1000 objects misbehave, each in its own way; the same seed gives the same
    /// faults.
    #[must_use]
    pub fn seeded(mut self, seed: u64, of_a_thousand: u64) -> FaultRules {
        self.seeded = Some((seed, of_a_thousand));
        self
    }

    /// Returns the behaviour of an object that is started or created.
    pub fn of(&self, object: ObjectId, spec: &ObjectSpec) -> Result<SimulatedBehaviour, InvalidBehaviour> {
        self.find(object, spec, 0)
    }

    /// Returns the behaviour of an object that the target with this revision changes.
    pub fn of_change(
        &self,
        object: ObjectId,
        revision: u32,
        spec: &ObjectSpec,
    ) -> Result<SimulatedBehaviour, InvalidBehaviour> {
        self.find(object, spec, mix(u64::from(revision)))
    }

    fn find(
        &self,
        object: ObjectId,
        spec: &ObjectSpec,
        salt: u64,
    ) -> Result<SimulatedBehaviour, InvalidBehaviour> {
        let mut payloads = spec.incarnation().into_iter().flat_map(|spec| &spec.payloads);
        if let Some(text) = payloads.find_map(|payload| payload.coordinates.get(COORDINATE)) {
            return text.parse();
        }
        let fits = |which: &FaultTarget| match (which, spec) {
            (FaultTarget::Any, _) => true,
            (FaultTarget::Incarnation(id), _) => object == ObjectId::Incarnation(*id),
            (FaultTarget::Volume(id), _) => object == ObjectId::Volume(*id),
            (FaultTarget::Replicas(prefix), ObjectSpec::Incarnation(spec)) => {
                spec.replica.as_str().starts_with(&**prefix)
            }
            (FaultTarget::Volumes(prefix), ObjectSpec::Volume(spec)) => {
                spec.name.as_str().starts_with(&**prefix)
            }
            (FaultTarget::Replicas(_), ObjectSpec::Volume(_))
            | (FaultTarget::Volumes(_), ObjectSpec::Incarnation(_)) => false,
        };
        if let Some((_, behaviour)) = self.rules.iter().find(|(which, _)| fits(which)) {
            return Ok(*behaviour);
        }
        Ok(self.seeded.and_then(|(seed, share)| drawn(seed ^ salt, share, object)).unwrap_or_default())
    }
}

fn drawn(seed: u64, of_a_thousand: u64, object: ObjectId) -> Option<SimulatedBehaviour> {
    let (high, low) = object.uuid().as_u64_pair();
    let draw = mix(seed ^ mix(high ^ mix(low)));
    if draw % 1000 >= of_a_thousand {
        return None;
    }
    let well = SimulatedBehaviour::default();
    let after = Duration::from_millis((draw >> 40) % 1000);
    let ways = match object {
        ObjectId::Incarnation(_) => 0..10,
        ObjectId::Volume(_) => 10..13,
    };
    Some(match ways.start + (draw >> 16) % (ways.end - ways.start) {
        0 | 10 => SimulatedBehaviour { delay: after, ..well },
        1 => SimulatedBehaviour { fail: Some((RetryClass::Permanent, u32::MAX)), ..well },
        2 | 11 => {
            SimulatedBehaviour { fail: Some((RetryClass::Retryable, 1 + (draw >> 32) as u32 % 3)), ..well }
        }
        3 => SimulatedBehaviour { end: Some((after, SimulatedExit::Crash(1))), ..well },
        4 => SimulatedBehaviour { end: Some((after, SimulatedExit::Exit(0))), ..well },
        5 => SimulatedBehaviour { readiness: SimulatedReadiness::Partial, ..well },
        6 => SimulatedBehaviour { readiness: SimulatedReadiness::Never, ..well },
        7 => SimulatedBehaviour { end: Some((after, SimulatedExit::PowerOff)), ..well },
        8 => SimulatedBehaviour { end: Some((after, SimulatedExit::Reboot)), ..well },
        _ => SimulatedBehaviour { late: true, ..well },
    })
}

/// Finaliser of `SplitMix64` (Steele, Lea, Flood, 2014): every bit of the seed affects every bit drawn.
fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
