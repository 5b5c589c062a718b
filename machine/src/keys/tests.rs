use super::*;
use crate::testing::TestRandom;

/// The `n`th key of an actor with one source.
fn key(actor: u64, n: u64) -> Digest {
    key_of(actor, 0, n)
}

/// The `n`th key of a source of an actor.
fn key_of(actor: u64, source: u64, n: u64) -> Digest {
    let [actor, source, n] = [actor, source, n].map(u64::to_be_bytes);
    Digest::of(&[&n]).under(Digest::of(&[&actor]), Digest::of(&[&actor, &source]))
}

fn known(n: u64, at: Time, decided: Time) -> StoredVerdict {
    let reply = Ok(AcceptedIntent { outcome: IntentOutcome::Changed, subject: None, version: None });
    StoredVerdict { digest: Digest::of(&[]), verdict: Position::new(n), reply, at, decided }
}

fn at(seconds: u64) -> Time {
    Time::EPOCH + Duration::from_secs(seconds)
}

fn bounded(keys: usize, floors: usize) -> IdempotencyKeys {
    IdempotencyKeys { bounds: KeyBounds { keys, floors }, ..IdempotencyKeys::default() }
}

#[test]
fn a_key_leaves_by_age_and_raises_the_floor_of_its_producer() {
    let mut keys = IdempotencyKeys::default();
    keys.remember(key(1, 1), known(1, at(1), at(9)));
    let later = at(10) + AGE;
    keys.remember(key(1, 2), known(2, later, later));
    assert_eq!((keys.get(key(1, 1)), keys.floor(key(1, 1))), (None, at(1)));
    assert!(keys.get(key(1, 2)).is_some());
    assert_eq!(keys.floor(key(2, 1)), Time::EPOCH, "another producer's stays");
}

#[test]
fn a_journal_whose_time_is_years_ahead_keeps_the_keys_of_intents_that_are_dated_correctly() {
    let mut keys = IdempotencyKeys::default();
    let years = Duration::from_hours(10 * 365 * 24);
    for n in 0..100 {
        keys.remember(key(1, n), known(n, at(n), at(n) + years));
    }
    assert!((0..100).all(|n| keys.get(key(1, n)).is_some()));
    assert_eq!(keys.floor(key(1, 0)), Time::EPOCH);
}

#[test]
fn an_intent_dated_ahead_by_a_wrong_clock_makes_no_later_intent_expire_and_stays_known_until_its_date_is_past()
 {
    let day = |n: u64| at(n * 24 * 60 * 60);
    let mut keys = IdempotencyKeys::default();
    keys.remember(key(1, 0), known(0, day(30), day(0)));
    for n in 1..60 {
        let (now, is_known) = (day(n), n <= 37);
        assert!(keys.floor(key(1, n)) < now, "day {n}: an intent of today is decided");
        keys.remember(key(1, n), known(n, now, now));
        assert_eq!(keys.get(key(1, 0)).is_some(), is_known, "day {n}");
        assert!(is_known || keys.floor(key(1, 0)) >= day(30), "day {n}: the first is never decided twice");
        assert_eq!(keys.len() as u64, n.min(8) + u64::from(is_known), "day {n}: others leave as ever");
    }
}

#[test]
fn one_producer_with_too_many_keys_loses_its_own_and_no_other_producer_loses_any() {
    let mut keys = bounded(100, 10);
    for n in 0..10 {
        keys.remember(key(1, n), known(n, at(n), at(n)));
    }
    let ahead = at(400);
    for n in 0..1000 {
        keys.remember(key(2, n), known(n, ahead, at(100)));
    }
    assert_eq!((keys.floor(key(1, 0)), keys.floor(key(2, 0))), (Time::EPOCH, ahead));
    assert!((0..10).all(|n| keys.get(key(1, n)).is_some()));
    assert_eq!((keys.known.len(), keys.floor(key(3, 0))), (100, Time::EPOCH));
}

#[test]
fn producers_without_number_are_bounded_and_move_no_floor_of_a_producer_with_keys() {
    let mut keys = bounded(100, 10);
    for n in 0..20 {
        keys.remember(key(0, n), known(n, at(n), at(100)));
    }
    for producer in 1..5000 {
        keys.remember(key(producer, 1), known(1, at(400), at(100)));
        assert!(keys.windows.len() <= 110, "{}", keys.windows.len());
        if keys.windows.get(&key(0, 0).prefix()).is_some_and(|window| !window.keys.is_empty()) {
            assert!(keys.floor(key(0, 0)) < at(20), "its own keys alone moved its floor");
        }
    }
}

#[test]
fn sources_without_number_cost_their_actor_its_keys_and_floors_and_no_other_actor_any() {
    let mut keys = bounded(100, 10);
    for n in 0..20 {
        keys.remember(key(0, n), known(n, at(n), at(100)));
    }
    for source in 0..5000 {
        keys.remember(key_of(1, source, 1), known(1, at(400), at(100)));
    }
    assert!((0..20).all(|n| keys.get(key(0, n)).is_some()), "those of the actor with the fewest stay");
    assert_eq!((keys.known.len(), keys.windows.len()), (100, 91));
    assert_eq!(keys.floor(key_of(1, 9999, 1)), at(400), "the actor's own floor has risen");
    assert_eq!((keys.floor(key(0, 0)), keys.floor(key(2, 0))), (Time::EPOCH, Time::EPOCH), "no other has");
}

#[test]
fn within_an_actor_the_source_with_most_keys_loses_its_own() {
    let mut keys = bounded(100, 10);
    for n in 0..10 {
        keys.remember(key_of(1, 1, n), known(n, at(n), at(n)));
    }
    for n in 0..1000 {
        keys.remember(key_of(1, 2, n), known(n, at(400), at(100)));
    }
    assert!((0..10).all(|n| keys.get(key_of(1, 1, n)).is_some()));
    assert_eq!((keys.floor(key_of(1, 1, 0)), keys.floor(key_of(1, 2, 0))), (Time::EPOCH, at(400)));
}

/// Keys, in the plainest way.
#[derive(Default)]
struct PlainKeys {
    /// With the time from which the age of each counts, in the order of decisions, and its intent's time.
    known: Vec<(Digest, Time, Time)>,
    floors: BTreeMap<ProducerBits, Time>,
    actors: BTreeMap<ActorBits, Time>,
    floor: Time,
}

impl PlainKeys {
    fn remember(&mut self, key: Digest, time: Time, now: Time, bounds: KeyBounds) {
        if self.known.iter().any(|(known, ..)| *known == key) {
            return;
        }
        let of_actor = *self.actors.entry(actor_of(key.prefix())).or_insert(self.floor);
        self.floors.entry(key.prefix()).or_insert(of_actor);
        self.known.push((key, if time > now + AHEAD { time } else { now }, time));
        while let Some(place) = self.known.iter().position(|(_, from, _)| *from < now.before(AGE)) {
            self.remove(place);
        }
        while self.known.len() > bounds.keys {
            let of = |actor| self.known.iter().filter(|(key, ..)| actor_of(key.prefix()) == actor).count();
            let (_, actor) = self.actors.keys().map(|actor| (of(*actor), *actor)).max().expect("actors");
            let own = self.floors.keys().filter(|producer| actor_of(**producer) == actor);
            let (_, most) = own.map(|p| (self.count(*p), *p)).max().expect("producers");
            let own = self.known.iter().enumerate().filter(|(_, (key, ..))| key.prefix() == most);
            self.remove(own.min_by_key(|(_, (_, from, _))| *from).expect("it has keys").0);
        }
        loop {
            let mut empty: Vec<_> = self.floors.iter().map(|(producer, floor)| (*floor, *producer)).collect();
            empty.retain(|(_, producer)| self.count(*producer) == 0);
            if empty.len() <= bounds.floors {
                break;
            }
            let (floor, producer) = *empty.iter().min().expect("one");
            self.floors.remove(&producer);
            let own = self.actors.get_mut(&actor_of(producer)).expect("its actor is known");
            *own = (*own).max(floor);
        }
        loop {
            let mut idle: Vec<_> = self.actors.iter().map(|(actor, floor)| (*floor, *actor)).collect();
            idle.retain(|(_, actor)| !self.floors.keys().any(|producer| actor_of(*producer) == *actor));
            if idle.len() <= bounds.floors {
                return;
            }
            let (floor, actor) = *idle.iter().min().expect("one");
            self.actors.remove(&actor);
            self.floor = self.floor.max(floor);
        }
    }

    fn count(&self, producer: ProducerBits) -> usize {
        self.known.iter().filter(|(key, ..)| key.prefix() == producer).count()
    }

    fn remove(&mut self, place: usize) {
        let (key, _, time) = self.known.remove(place);
        let floor = self.floors.get_mut(&key.prefix()).expect("its producer is known");
        *floor = (*floor).max(time);
    }
}

#[test]
fn keys_match_the_simplest_model_whatever_is_remembered_undone_and_stored() {
    for seed in 1..40 {
        let mut dice = TestRandom(seed);
        let bounds = KeyBounds { keys: 12, floors: 3 };
        let (mut keys, mut naive) = (bounded(bounds.keys, bounds.floors), PlainKeys::default());
        let mut now = at(1_000_000);
        for n in 0..400 {
            now = now + Duration::from_secs(dice.of(&[0, 1, 60, 86_400]));
            let key = key_of(dice.below(8), dice.below(3), dice.below(30));
            let time = now.before(Duration::from_secs(dice.below(1000)))
                + Duration::from_secs(dice.of(&[0, 700, 1300, 2_000_000]));
            if dice.below(4) == 0 {
                let same = keys.clone();
                let before = keys.begin();
                for _ in 0..dice.below(20) {
                    let other = key_of(dice.below(10), dice.below(4), dice.below(60));
                    keys.remember(other, known(n, time, now + Duration::from_secs(dice.of(&[0, 700_000]))));
                }
                keys.roll_back(before);
                assert_eq!(sorted(&keys), sorted(&same), "seed {seed}, {n}");
            }
            keys.remember(key, known(n, time, now));
            naive.remember(key, time, now, bounds);
            let times: BTreeMap<_, _> = keys.known.iter().map(|(key, known)| (*key, known.at)).collect();
            let expected: BTreeMap<_, _> = naive.known.iter().map(|(key, _, time)| (*key, *time)).collect();
            assert_eq!(times, expected, "seed {seed}, {n}");
            let floors = (keys.floors(), keys.actor_floors(), keys.floor);
            assert_eq!(floors, (naive.floors.clone(), naive.actors.clone(), naive.floor), "seed {seed}, {n}");
            let json = serde_json::to_string(&keys).expect("JSON");
            let again: IdempotencyKeys = serde_json::from_str(&json).expect("keys");
            assert_eq!(sorted(&again), sorted(&keys), "seed {seed}, {n}");
        }
    }
}

/// All that there is of keys, in order.
fn sorted(keys: &IdempotencyKeys) -> String {
    let windows: BTreeMap<_, _> = keys.windows.iter().collect();
    let known: BTreeMap<_, _> = keys.known.iter().collect();
    let actors: BTreeMap<_, _> = keys.actors.iter().collect();
    let order = (&keys.by_actor, &keys.by_time, &keys.empty, &keys.idle);
    format!("{known:?} {windows:?} {actors:?} {order:?} {:?}", keys.floor)
}
