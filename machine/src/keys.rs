//! What is remembered of idempotency keys: the first verdict on each, for as long as the window lasts.
//!
//! Keys leave in the order of their intents' times, by age and by count; the *floor* is the highest time that has
//! left. An intent at or below it is refused, never decided again: whether it was decided cannot be told any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::digest::Digest;
use chancery_events::fact::Outcome;
use chancery_events::id::Position;
use chancery_events::refusal::Refusal;
use chancery_events::subject::Subject;
use chancery_events::time::Time;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize, Serializer};

/// Keys are kept this long,
const AGE: Duration = Duration::from_hours(7 * 24);
/// and at most so many.
const COUNT: usize = 250_000;

/// The first verdict on a key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Known {
    /// Of the body that was asked for.
    pub digest: Digest,
    /// The position of its `accepted` or `refused` fact.
    pub verdict: Position,
    /// What that said: a repeat gets the same.
    pub reply: Arc<Result<Accepted, Refusal>>,
    /// The intent's time.
    pub at: Time,
}

/// The intent holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Accepted {
    /// Whether it changed anything.
    pub outcome: Outcome,
    /// What it was about.
    pub subject: Option<Subject>,
    /// The subject's version now.
    pub version: Option<u64>,
}

/// The keys of a fleet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Keys {
    #[serde(serialize_with = "in_order")]
    known: FxHashMap<Digest, Known>,
    by_time: BTreeSet<(Time, Digest)>,
    floor: Time,
    #[serde(skip)]
    undo: Option<Vec<(Digest, Option<Known>)>>,
}

impl PartialEq for Keys {
    /// What is known, whatever could be taken back.
    fn eq(&self, other: &Keys) -> bool {
        self.floor == other.floor && self.known == other.known
    }
}

/// What [`Keys::roll_back`] needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeysBefore {
    floor: Time,
}

impl Keys {
    /// What is known of a key.
    pub fn get(&self, key: Digest) -> Option<&Known> {
        self.known.get(&key)
    }

    /// The highest time of a key that is no longer known.
    pub fn floor(&self) -> Time {
        self.floor
    }

    /// Remembers a key, and forgets those whose time is over at `now`.
    pub(crate) fn remember(&mut self, key: Digest, known: Known, now: Time) {
        self.set(key, Some(known));
        while let Some((at, oldest)) = self.by_time.first().copied() {
            if self.by_time.len() <= COUNT && at >= now.before(AGE) {
                break;
            }
            self.set(oldest, None);
            self.floor = self.floor.max(at);
        }
    }

    fn set(&mut self, key: Digest, known: Option<Known>) {
        let at = known.as_ref().map(|known| known.at);
        let old = match known {
            Some(known) => self.known.insert(key, known),
            None => self.known.remove(&key),
        };
        if let Some(old) = &old {
            self.by_time.remove(&(old.at, key));
        }
        if let Some(at) = at {
            self.by_time.insert((at, key));
        }
        if let Some(undo) = &mut self.undo {
            undo.push((key, old));
        }
    }

    pub(crate) fn begin(&mut self) -> KeysBefore {
        self.undo = Some(Vec::new());
        KeysBefore { floor: self.floor }
    }

    pub(crate) fn roll_back(&mut self, before: KeysBefore) {
        for (key, known) in self.undo.take().unwrap_or_default().into_iter().rev() {
            self.set(key, known);
        }
        self.floor = before.floor;
    }
}

/// So that equal keys are equal bytes.
fn in_order<S: Serializer>(known: &FxHashMap<Digest, Known>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut known: Vec<_> = known.iter().collect();
    known.sort_unstable_by_key(|(key, _)| **key);
    serializer.collect_map(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Digest {
        Digest::of(&[&n.to_be_bytes()])
    }

    fn known(n: u64, at: Time) -> Known {
        let reply = Arc::new(Ok(Accepted { outcome: Outcome::Changed, subject: None, version: None }));
        Known { digest: key(n), verdict: Position::new(n), reply, at }
    }

    #[test]
    fn a_key_leaves_by_age_and_raises_the_floor() {
        let mut keys = Keys::default();
        let start = Time::EPOCH + Duration::from_secs(1);
        keys.remember(key(1), known(1, start), start);
        let later = start + AGE + Duration::from_secs(1);
        keys.remember(key(2), known(2, later), later);
        assert_eq!((keys.get(key(1)), keys.floor()), (None, start));
        assert!(keys.get(key(2)).is_some());
    }

    #[test]
    fn rolling_back_gives_the_same_keys() {
        let mut keys = Keys::default();
        let start = Time::EPOCH + Duration::from_secs(1);
        keys.remember(key(1), known(1, start), start);
        let same = keys.clone();
        let before = keys.begin();
        let later = start + AGE + Duration::from_secs(1);
        keys.remember(key(2), known(2, later), later);
        keys.roll_back(before);
        assert_eq!(keys, same);
    }
}
