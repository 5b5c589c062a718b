//! Idempotency keys: the first verdict on each key, as long as the window lasts.
//!
//! A *producer* is an actor with a source; the first bits of a key name the actor, the next bits the
//! producer. Each producer has a *floor*: the highest time of its keys that were removed. An intent at or
//! below its producer's floor is refused and never decided again, because it may have been decided before.
//! The keys of an actor never move the floor of another, however many sources the actor names.
//!
//! | what is removed | when |
//! |---|---|
//! | a key | [`AGE`] after its decision; if its intent is dated more than [`AHEAD`] later, [`AGE`] after that date |
//! | of the actor with most keys, of its producer with most keys, the key that would be removed first by age | there are more than [`COUNT`] keys |
//! | the floor of a producer without keys, the lowest first: it raises that of its actor | there are more than [`FLOORS`] |
//! | the floor of an actor without producers, the lowest first: it raises the common floor | there are more than [`FLOORS`] |
//!
//! A producer without a floor of its own has that of its actor, and an actor without one the common floor.
//! Age is counted in journal time from the decision, not from the intent's own time. A journal whose time is
//! wrong thus keeps the keys of correctly dated intents. An intent dated ahead by a wrong clock keeps its key
//! until that date is past. If the key were removed earlier, the floor would rise to the date, and correctly
//! dated intents would be refused until then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chancery_events::digest::Digest;
use chancery_events::fact::IntentOutcome;
use chancery_events::id::Position;
use chancery_events::refusal::Refusal;
use chancery_events::subject::Subject;
use chancery_events::time::Time;
use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::{Deserialize, Serialize, Serializer};

use crate::index::mark;
use crate::snapshot::SnapshotMeter;

/// Maximum time by which an intent may be dated ahead of the wall clock.
pub(crate) const AHEAD: Duration = Duration::from_mins(5);
/// Time for which keys are kept.
const AGE: Duration = Duration::from_hours(7 * 24);
/// Maximum number of keys, of all producers.
const COUNT: usize = 250_000;
/// Maximum number of floors of producers without keys, and of actors without producers.
const FLOORS: usize = 100_000;

/// First verdict on a key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredVerdict {
    /// Digest of the requested body.
    pub digest: Digest,
    /// Position of the `accepted` or `refused` fact.
    pub verdict: Position,
    /// Reply of the verdict, which a repeat of the intent gets again. Most intents are accepted: their replies have no
    /// memory of their own.
    pub reply: Result<AcceptedIntent, Arc<Refusal>>,
    /// Time of the intent.
    pub at: Time,
    /// Time of the decision.
    pub decided: Time,
}

impl StoredVerdict {
    /// Time from which the key's age counts.
    fn ages_from(&self) -> Time {
        if self.at > self.decided + AHEAD { self.at } else { self.decided }
    }
}

/// Reply to an accepted intent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AcceptedIntent {
    /// Whether the intent changed anything.
    pub outcome: IntentOutcome,
    /// Subject of the intent.
    pub subject: Option<Subject>,
    /// Version of the subject after the intent.
    pub version: Option<u64>,
}

/// First bits of a producer's keys.
pub(crate) type ProducerBits = u64;
/// First bits of an actor's keys.
pub(crate) type ActorBits = u64;

/// Returns the actor of a producer.
const fn actor_of(producer: ProducerBits) -> ActorBits {
    producer >> 24
}

/// First verdicts by key.
type KnownVerdicts = IndexMap<Digest, StoredVerdict, FxBuildHasher>;

/// Idempotency keys of a fleet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "StoredKeys")]
pub struct IdempotencyKeys {
    /// Verdicts by key. The map has its entries in one list, without empty slots of the size of an entry between them.
    #[serde(serialize_with = "in_order")]
    known: KnownVerdicts,
    /// Windows by producer.
    #[serde(rename = "floors", serialize_with = "floors")]
    windows: FxHashMap<ProducerBits, ProducerWindow>,
    #[serde(serialize_with = "actor_floors")]
    actors: FxHashMap<ActorBits, ActorWindows>,
    /// Floor of actors without windows of their own.
    floor: Time,
    /// Actors with keys, by their number of keys.
    #[serde(skip)]
    by_actor: BTreeSet<(usize, ActorBits)>,
    /// Windows with keys, by the time from which the age of the first key counts.
    #[serde(skip)]
    by_time: BTreeSet<(Time, ProducerBits)>,
    /// Windows without keys, by their floor.
    #[serde(skip)]
    empty: BTreeSet<(Time, ProducerBits)>,
    /// Actors without windows, by their floor.
    #[serde(skip)]
    idle: BTreeSet<(Time, ActorBits)>,
    #[serde(skip)]
    undo: Option<Vec<KeyUndo>>,
    #[serde(skip)]
    bounds: KeyBounds,
}

/// Limits on what is kept; lower in tests.
#[derive(Clone, Copy, Debug)]
struct KeyBounds {
    keys: usize,
    floors: usize,
}

impl Default for KeyBounds {
    fn default() -> KeyBounds {
        KeyBounds { keys: COUNT, floors: FLOORS }
    }
}

/// Keys of one producer.
#[derive(Clone, Debug, Default)]
struct ProducerWindow {
    /// Keys in the order of the times from which their age counts, then of their decisions.
    keys: VecDeque<(Time, Digest)>,
    floor: Time,
}

impl ProducerWindow {
    /// Adds a key after the keys whose age counts from the same time or an earlier one.
    fn add(&mut self, from: Time, key: Digest) {
        // The last position is almost always right.
        let place = match self.keys.back() {
            Some((last, _)) if *last > from => self.keys.partition_point(|(time, _)| *time <= from),
            Some(_) | None => self.keys.len(),
        };
        self.keys.insert(place, (from, key));
    }

    /// Removes the key that [`ProducerWindow::add`] added last with the same `from`.
    fn remove_last(&mut self, from: Time) {
        let place = self.keys.partition_point(|(time, _)| *time <= from);
        if let Some(place) = place.checked_sub(1) {
            self.keys.remove(place);
        }
    }
}

/// Windows of one actor.
#[derive(Clone, Debug, Default)]
struct ActorWindows {
    windows: usize,
    keys: usize,
    /// Windows with keys, by their number of keys.
    by_size: BTreeSet<(usize, ProducerBits)>,
    /// Floor of producers without a window.
    floor: Time,
}

/// Keys as stored in a snapshot.
#[derive(Deserialize)]
struct StoredKeys {
    known: KnownVerdicts,
    floors: BTreeMap<ProducerBits, Time>,
    actors: BTreeMap<ActorBits, Time>,
    floor: Time,
}

impl From<StoredKeys> for IdempotencyKeys {
    fn from(stored: StoredKeys) -> IdempotencyKeys {
        let mut keys = IdempotencyKeys { floor: stored.floor, ..IdempotencyKeys::default() };
        for (actor, floor) in stored.actors {
            keys.put_actor(actor, floor);
        }
        for (producer, floor) in stored.floors {
            keys.change(producer, |window| window.floor = floor);
        }
        let mut known: Vec<_> = stored.known.iter().collect();
        known.sort_unstable_by_key(|(_, known)| known.verdict);
        for (key, known) in known {
            keys.change(key.prefix(), |window| window.add(known.ages_from(), *key));
        }
        IdempotencyKeys { known: stored.known, ..keys }
    }
}

impl PartialEq for IdempotencyKeys {
    /// Compares the keys and floors, not the undo log.
    fn eq(&self, other: &IdempotencyKeys) -> bool {
        let floors = |keys: &IdempotencyKeys| (keys.floor, keys.floors(), keys.actor_floors());
        self.known == other.known && floors(self) == floors(other)
    }
}

/// Undo record of one change.
#[derive(Clone, Debug)]
enum KeyUndo {
    /// New key, the time from which its age counts, and what existed before.
    Added(Digest, Time, KeyBefore),
    /// Removed key, and the previous floor of its producer.
    Removed(Digest, Box<StoredVerdict>, Time),
    /// Removed floor of a producer, and the previous floor of its actor.
    Floor(ProducerBits, Time, Time),
    /// Removed floor of an actor.
    Actor(ActorBits, Time),
}

/// Entries of a key's actor and producer before the key was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyBefore {
    /// Neither the actor nor the producer had an entry.
    Nothing,
    /// The actor had an entry, the producer had none.
    Actor,
    /// The producer had an entry.
    Window,
}

impl IdempotencyKeys {
    /// Returns the verdict on a key, if known.
    pub fn get(&self, key: Digest) -> Option<&StoredVerdict> {
        self.known.get(&key)
    }

    /// Highest known time of a removed key of the key's producer.
    pub fn floor(&self, key: Digest) -> Time {
        let producer = key.prefix();
        self.windows.get(&producer).map_or_else(|| self.floor_of(actor_of(producer)), |window| window.floor)
    }

    fn floor_of(&self, actor: ActorBits) -> Time {
        self.actors.get(&actor).map_or(self.floor, |own| own.floor)
    }

    /// Number of known keys.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Floors of producers that have their own.
    pub(crate) fn floors(&self) -> BTreeMap<ProducerBits, Time> {
        self.windows.iter().map(|(producer, window)| (*producer, window.floor)).collect()
    }

    /// Floors of actors that have their own.
    fn actor_floors(&self) -> BTreeMap<ActorBits, Time> {
        self.actors.iter().map(|(actor, own)| (*actor, own.floor)).collect()
    }

    /// Adds a key that is decided now, and removes keys and floors beyond the limits.
    pub(crate) fn remember(&mut self, key: Digest, known: StoredVerdict) {
        // The first verdict stays.
        if self.known.contains_key(&key) {
            return;
        }
        let (now, from, producer) = (known.decided, known.ages_from(), key.prefix());
        let before = match self.windows.get(&producer) {
            Some(_) => KeyBefore::Window,
            None if self.actors.contains_key(&actor_of(producer)) => KeyBefore::Actor,
            None => KeyBefore::Nothing,
        };
        self.known.insert(key, known);
        self.change(producer, |window| window.add(from, key));
        self.note(KeyUndo::Added(key, from, before));
        let start = now.before(AGE);
        while let Some((_, producer)) = self.by_time.first().copied().filter(|(time, _)| *time < start) {
            self.remove_first(producer);
        }
        while self.known.len() > self.bounds.keys
            && let Some((_, actor)) = self.by_actor.last()
            && let Some((_, producer)) = self.actors.get(actor).and_then(|own| own.by_size.last().copied())
        {
            self.remove_first(producer);
        }
        while self.empty.len() > self.bounds.floors
            && let Some((floor, producer)) = self.empty.first().copied()
        {
            let actor = actor_of(producer);
            self.note(KeyUndo::Floor(producer, floor, self.floor_of(actor)));
            if let Some(own) = self.actors.get_mut(&actor) {
                own.floor = own.floor.max(floor);
            }
            self.drop_window(producer);
        }
        while self.idle.len() > self.bounds.floors
            && let Some((floor, actor)) = self.idle.first().copied()
        {
            self.note(KeyUndo::Actor(actor, floor));
            self.floor = self.floor.max(floor);
            self.drop_actor(actor);
        }
    }

    /// Removes the first key of a producer, and raises its floor.
    fn remove_first(&mut self, producer: ProducerBits) {
        let Some((_, key)) = self.windows.get(&producer).and_then(|window| window.keys.front().copied())
        else {
            return;
        };
        let Some(known) = self.known.swap_remove(&key) else { return };
        let mut floor = Time::EPOCH;
        self.change(producer, |window| {
            window.keys.pop_front();
            floor = window.floor;
            window.floor = floor.max(known.at);
        });
        self.note(KeyUndo::Removed(key, Box::new(known), floor));
    }

    /// Changes a producer's window, created if missing, and the sets sorted by it.
    fn change(&mut self, producer: ProducerBits, change: impl FnOnce(&mut ProducerWindow)) {
        self.sort(producer, false);
        if !self.windows.contains_key(&producer) {
            let (actor, common) = (actor_of(producer), self.floor);
            let own = self.actors.entry(actor);
            let own = own.or_insert_with(|| ActorWindows { floor: common, ..ActorWindows::default() });
            self.idle.remove(&(own.floor, actor));
            own.windows += 1;
            self.windows.insert(producer, ProducerWindow { floor: own.floor, ..ProducerWindow::default() });
        }
        if let Some(window) = self.windows.get_mut(&producer) {
            change(window);
        }
        self.sort(producer, true);
    }

    /// Removes a producer's window; the actor stays.
    fn drop_window(&mut self, producer: ProducerBits) {
        self.sort(producer, false);
        let actor = actor_of(producer);
        if self.windows.remove(&producer).is_some()
            && let Some(own) = self.actors.get_mut(&actor)
        {
            own.windows -= 1;
            if own.windows == 0 {
                self.idle.insert((own.floor, actor));
            }
        }
    }

    /// Adds an actor without windows.
    fn put_actor(&mut self, actor: ActorBits, floor: Time) {
        self.actors.insert(actor, ActorWindows { floor, ..ActorWindows::default() });
        self.idle.insert((floor, actor));
    }

    /// Removes an actor without windows.
    fn drop_actor(&mut self, actor: ActorBits) {
        if let Some(own) = self.actors.remove(&actor) {
            self.idle.remove(&(own.floor, actor));
        }
    }

    /// Adds a window to the sorted sets, or removes it.
    fn sort(&mut self, producer: ProducerBits, put: bool) {
        let actor = actor_of(producer);
        let Some(window) = self.windows.get(&producer) else { return };
        let Some((first, _)) = window.keys.front() else {
            return mark(&mut self.empty, (window.floor, producer), put);
        };
        mark(&mut self.by_time, (*first, producer), put);
        let Some(own) = self.actors.get_mut(&actor) else { return };
        let size = window.keys.len();
        mark(&mut own.by_size, (size, producer), put);
        self.by_actor.remove(&(own.keys, actor));
        own.keys = if put { own.keys + size } else { own.keys - size };
        if own.keys > 0 {
            self.by_actor.insert((own.keys, actor));
        }
    }

    fn note(&mut self, undo: KeyUndo) {
        if let Some(notes) = &mut self.undo {
            notes.push(undo);
        }
    }

    /// Starts to record changes. Returns the common floor, for [`IdempotencyKeys::roll_back`].
    pub(crate) fn begin(&mut self) -> Time {
        self.undo = Some(Vec::new());
        self.floor
    }

    /// Adds every part of the serialized keys to a meter.
    pub(crate) fn measure<M: SnapshotMeter>(&self, by: &mut M) -> Result<(), M::Error> {
        by.entries(self.known.iter())?;
        by.entries(self.windows.iter().map(|(producer, window)| (producer, window.floor)))?;
        by.entries(self.actors.iter().map(|(actor, own)| (actor, own.floor)))?;
        by.part(&self.floor)
    }

    pub(crate) fn release(&mut self) {
        self.undo = None;
    }

    pub(crate) fn roll_back(&mut self, floor_before: Time) {
        for undo in self.undo.take().unwrap_or_default().into_iter().rev() {
            match undo {
                KeyUndo::Added(key, from, before) => {
                    let producer = key.prefix();
                    self.known.swap_remove(&key);
                    self.change(producer, |window| window.remove_last(from));
                    if before != KeyBefore::Window {
                        self.drop_window(producer);
                    }
                    if before == KeyBefore::Nothing {
                        self.drop_actor(actor_of(producer));
                    }
                }
                KeyUndo::Removed(key, known, floor) => {
                    self.change(key.prefix(), |window| {
                        window.keys.push_front((known.ages_from(), key));
                        window.floor = floor;
                    });
                    self.known.insert(key, *known);
                }
                KeyUndo::Floor(producer, floor, of_actor) => {
                    self.change(producer, |window| window.floor = floor);
                    if let Some(own) = self.actors.get_mut(&actor_of(producer)) {
                        own.floor = of_actor;
                    }
                }
                KeyUndo::Actor(actor, floor) => self.put_actor(actor, floor),
            }
        }
        self.floor = floor_before;
    }
}

/// Serializes in order, so that equal keys are equal bytes.
fn in_order<S: Serializer>(known: &KnownVerdicts, serializer: S) -> Result<S::Ok, S::Error> {
    let mut known: Vec<_> = known.iter().collect();
    known.sort_unstable_by_key(|(key, _)| **key);
    serializer.collect_map(known)
}

/// Serializes the floors only: the rest follows from the keys.
fn floors<S: Serializer>(
    windows: &FxHashMap<ProducerBits, ProducerWindow>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let floors: BTreeMap<_, _> = windows.iter().map(|(producer, window)| (producer, window.floor)).collect();
    serializer.collect_map(floors)
}

/// Serializes the floors of actors only, for the same reason.
fn actor_floors<S: Serializer>(
    actors: &FxHashMap<ActorBits, ActorWindows>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let floors: BTreeMap<_, _> = actors.iter().map(|(actor, own)| (actor, own.floor)).collect();
    serializer.collect_map(floors)
}

#[cfg(test)]
mod tests;
