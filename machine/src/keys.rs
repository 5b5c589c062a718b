//! Idempotency keys: the first verdict on each, as long as the window lasts.
//!
//! A *producer* is an actor with a source; the first bits of a key name it. Each producer has a *floor*: the highest
//! time of its keys that were removed. An intent at or below its producer's floor is refused, never decided again:
//! whether it was decided cannot be told any more. One producer's keys never move the floor of another.
//!
//! | what is removed | when |
//! |---|---|
//! | a key | [`AGE`] after it was decided |
//! | the key decided first of the producer that has most | there are more than [`COUNT`] keys |
//! | the floor of a producer without keys, the lowest first | there are more than [`FLOORS`] |
//!
//! A floor that is removed raises the common floor, which is that of every producer without a floor of its own. Age is
//! counted in journal time from the decision, and not from the intent's own time: a journal whose time is wrong keeps
//! the keys of intents that are dated correctly.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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

/// How long keys are kept.
const AGE: Duration = Duration::from_hours(7 * 24);
/// Maximum number of keys, of all producers.
const COUNT: usize = 250_000;
/// Maximum number of floors of producers without keys.
const FLOORS: usize = 100_000;

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
    /// When it was decided.
    pub decided: Time,
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

/// The first bits of a producer's keys.
pub(crate) type Producer = u64;

/// The keys of a fleet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "StoredKeys")]
pub struct Keys {
    #[serde(serialize_with = "in_order")]
    known: FxHashMap<Digest, Known>,
    /// By producer.
    #[serde(rename = "floors", serialize_with = "floors")]
    windows: FxHashMap<Producer, Window>,
    /// Of producers without a window.
    floor: Time,
    /// Windows with keys, by the number of those, and by when the first was decided.
    #[serde(skip)]
    by_size: BTreeSet<(usize, Producer)>,
    #[serde(skip)]
    by_time: BTreeSet<(Time, Producer)>,
    /// Windows without keys, by their floor.
    #[serde(skip)]
    empty: BTreeSet<(Time, Producer)>,
    #[serde(skip)]
    undo: Option<Vec<Undo>>,
    #[serde(skip)]
    bounds: Bounds,
}

/// How much is kept; less in tests.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    keys: usize,
    floors: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { keys: COUNT, floors: FLOORS }
    }
}

/// The keys of one producer.
#[derive(Clone, Debug, Default)]
struct Window {
    /// In the order of their decisions.
    keys: VecDeque<(Time, Digest)>,
    floor: Time,
}

/// Keys as they are in a snapshot.
#[derive(Deserialize)]
struct StoredKeys {
    known: FxHashMap<Digest, Known>,
    floors: BTreeMap<Producer, Time>,
    floor: Time,
}

impl From<StoredKeys> for Keys {
    fn from(stored: StoredKeys) -> Keys {
        let mut keys = Keys { floor: stored.floor, ..Keys::default() };
        for (producer, floor) in stored.floors {
            keys.change(producer, |window| window.floor = floor);
        }
        let mut known: Vec<_> = stored.known.iter().collect();
        known.sort_unstable_by_key(|(_, known)| known.verdict);
        for (key, known) in known {
            keys.change(key.prefix(), |window| window.keys.push_back((known.decided, *key)));
        }
        Keys { known: stored.known, ..keys }
    }
}

impl PartialEq for Keys {
    /// What is known, whatever could be taken back.
    fn eq(&self, other: &Keys) -> bool {
        self.floor == other.floor && self.known == other.known && self.floors() == other.floors()
    }
}

/// One change, to be taken back.
#[derive(Clone, Debug)]
enum Undo {
    /// A new key, and the floor of its producer, if that had one of its own.
    Added(Digest, Option<Time>),
    /// A key that was removed, and the floor of its producer before.
    Removed(Digest, Box<Known>, Time),
    /// A floor that was removed.
    Floor(Producer, Time),
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

    /// The highest time of a removed key of the key's producer, as far as that is known.
    pub fn floor(&self, key: Digest) -> Time {
        self.windows.get(&key.prefix()).map_or(self.floor, |window| window.floor)
    }

    /// How many keys are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The floor of each producer that has one of its own.
    pub(crate) fn floors(&self) -> BTreeMap<Producer, Time> {
        self.windows.iter().map(|(producer, window)| (*producer, window.floor)).collect()
    }

    /// Remembers a key that is decided now, and removes what is too old, or too much.
    pub(crate) fn remember(&mut self, key: Digest, known: Known) {
        let now = known.decided;
        let floor = self.windows.get(&key.prefix()).map(|window| window.floor);
        // The first verdict stays.
        if self.known.contains_key(&key) {
            return;
        }
        self.known.insert(key, known);
        self.change(key.prefix(), |window| window.keys.push_back((now, key)));
        self.note(Undo::Added(key, floor));
        let start = now.before(AGE);
        while let Some((_, producer)) = self.by_time.first().copied().filter(|(time, _)| *time < start) {
            self.remove_first(producer);
        }
        while self.known.len() > self.bounds.keys
            && let Some((_, producer)) = self.by_size.last().copied()
        {
            self.remove_first(producer);
        }
        while self.empty.len() > self.bounds.floors
            && let Some((floor, producer)) = self.empty.pop_first()
        {
            self.floor = self.floor.max(floor);
            self.windows.remove(&producer);
            self.note(Undo::Floor(producer, floor));
        }
    }

    /// Removes the first key of a producer, whose floor rises.
    fn remove_first(&mut self, producer: Producer) {
        let Some((_, key)) = self.windows.get(&producer).and_then(|window| window.keys.front().copied())
        else {
            return;
        };
        let Some(known) = self.known.remove(&key) else { return };
        let mut floor = Time::EPOCH;
        self.change(producer, |window| {
            window.keys.pop_front();
            floor = window.floor;
            window.floor = floor.max(known.at);
        });
        self.note(Undo::Removed(key, Box::new(known), floor));
    }

    /// Changes a producer's window, which is made if there is none, and what is sorted by it.
    fn change(&mut self, producer: Producer, change: impl FnOnce(&mut Window)) {
        if self.windows.contains_key(&producer) {
            self.sort(producer, false);
        }
        let floor = self.floor;
        change(self.windows.entry(producer).or_insert_with(|| Window { floor, ..Window::default() }));
        self.sort(producer, true);
    }

    /// Puts a window where it belongs among the others, or takes it out.
    fn sort(&mut self, producer: Producer, put: bool) {
        fn mark<T: Ord>(set: &mut BTreeSet<T>, item: T, put: bool) {
            if put {
                set.insert(item);
            } else {
                set.remove(&item);
            }
        }
        let Some(window) = self.windows.get(&producer) else { return };
        match window.keys.front() {
            Some((first, _)) => {
                mark(&mut self.by_size, (window.keys.len(), producer), put);
                mark(&mut self.by_time, (*first, producer), put);
            }
            None => mark(&mut self.empty, (window.floor, producer), put),
        }
    }

    fn note(&mut self, undo: Undo) {
        if let Some(notes) = &mut self.undo {
            notes.push(undo);
        }
    }

    pub(crate) fn begin(&mut self) -> KeysBefore {
        self.undo = Some(Vec::new());
        KeysBefore { floor: self.floor }
    }

    pub(crate) fn roll_back(&mut self, before: KeysBefore) {
        for undo in self.undo.take().unwrap_or_default().into_iter().rev() {
            match undo {
                Undo::Added(key, floor) => {
                    self.known.remove(&key);
                    self.change(key.prefix(), |window| {
                        window.keys.pop_back();
                    });
                    // It had no window: the key was its first.
                    if floor.is_none() {
                        self.sort(key.prefix(), false);
                        self.windows.remove(&key.prefix());
                    }
                }
                Undo::Removed(key, known, floor) => {
                    self.change(key.prefix(), |window| {
                        window.keys.push_front((known.decided, key));
                        window.floor = floor;
                    });
                    self.known.insert(key, *known);
                }
                Undo::Floor(producer, floor) => self.change(producer, |window| window.floor = floor),
            }
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

/// The floors alone: the rest follows from the keys.
fn floors<S: Serializer>(windows: &FxHashMap<Producer, Window>, serializer: S) -> Result<S::Ok, S::Error> {
    let floors: BTreeMap<_, _> = windows.iter().map(|(producer, window)| (producer, window.floor)).collect();
    serializer.collect_map(floors)
}

#[cfg(test)]
mod tests;
