//! Journals with events of given types, for golden data: parts of the journals of simulated worlds.
//!
//! A world writes most types sooner or later. The choice takes the shortest starts of journals that together have
//! all of them. What no world writes is appended to the last one ([`without_a_world`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chancery_events::event::{Event, EventLine};
use chancery_events::fact::{EntityQuarantined, Fact, LineageStarted};
use chancery_events::id::{Lineage, Position};
use chancery_events::intent::Intent;
use chancery_events::level::FleetLevel;
use chancery_events::observation::Observation;
use chancery_events::record::{HeaderParts, Record, RecordDraft};
use chancery_events::subject::Subject;
use chancery_journal::{ChainCursor, WriterIdentity};
use chancery_projector::JournalFold;

use crate::sim::WorldScript;
use crate::sim::universe::ScriptedWorld;

/// Bytes that a journal costs apart from its records: few journals are better than many short ones.
const OVERHEAD: usize = 64 << 10;

/// Records of a journal, from its first one on.
pub type JournalStart = Vec<Arc<Record>>;

/// Returns every type of the registers that a journal of this build can have.
pub fn types() -> BTreeSet<&'static str> {
    let mut all: BTreeSet<_> =
        [Intent::TYPES, Fact::TYPES, Observation::TYPES].concat().into_iter().collect();
    // A fleet can be raised once there is a second level.
    if FleetLevel::HIGHEST.is_first() {
        all.remove("fleet.level_raised.v1");
    }
    all
}

/// Returns the types of the events of a record.
pub fn types_of(record: &Record) -> BTreeSet<String> {
    let type_of = |line| EventLine::read(line).expect("an event").type_name.into_owned();
    record.events().map(|(_, line)| type_of(line)).collect()
}

/// Returns the journal of a world.
fn journal_of(seed: u64) -> JournalStart {
    let mut world = ScriptedWorld::new(WorldScript::draw(seed), false);
    world.play().unwrap_or_else(|violation| panic!("SEED={seed}: {violation}"));
    let records = world.log.source().records(Position::FIRST).expect("a journal");
    records.map(|record| record.expect("a record")).collect()
}

/// Starts of the journals of worlds that end with the first event of a type.
struct FirstEvents {
    seed: u64,
    /// Number of bytes and of records up to the first event, by type.
    by_type: BTreeMap<String, (usize, usize)>,
}

impl FirstEvents {
    fn of(seed: u64, wanted: &BTreeSet<&str>) -> FirstEvents {
        let (mut by_type, mut bytes) = (BTreeMap::new(), 0);
        for (index, record) in journal_of(seed).iter().enumerate() {
            bytes += record.bytes().len();
            for found in types_of(record).into_iter().filter(|found| wanted.contains(found.as_str())) {
                by_type.entry(found).or_insert((bytes, index + 1));
            }
        }
        FirstEvents { seed, by_type }
    }

    /// Returns the start with the fewest bytes for each wanted type: bytes for each type, and number of records.
    fn best(&self, wanted: &BTreeSet<&str>) -> Option<(usize, usize)> {
        let firsts = self.by_type.iter().filter(|(found, _)| wanted.contains(found.as_str()));
        let mut firsts: Vec<_> = firsts.map(|(_, first)| *first).collect();
        firsts.sort_unstable();
        let each = firsts
            .into_iter()
            .zip(1..)
            .map(|((bytes, records), count)| ((OVERHEAD + bytes) / count, records));
        each.min()
    }
}

/// Returns starts of journals of the worlds of these seeds that together have the wanted types.
pub fn journals_with(wanted: &BTreeSet<&str>, seeds: std::ops::RangeInclusive<u64>) -> Vec<JournalStart> {
    let mut wanted: BTreeSet<_> = wanted.iter().copied().collect();
    let rare: Vec<_> = WITHOUT_A_WORLD.into_iter().filter(|rare| wanted.remove(rare)).collect();
    let worlds: Vec<_> = seeds.map(|seed| FirstEvents::of(seed, &wanted)).collect();
    let mut chosen = Vec::new();
    while !wanted.is_empty() {
        let best = worlds.iter().filter_map(|world| Some((world.best(&wanted)?, world.seed))).min();
        let Some(((_, records), seed)) = best else {
            panic!("no world has events of {wanted:?}: let a world write them, or append them");
        };
        let journal = journal_of(seed)[..records].to_vec();
        for found in journal.iter().flat_map(|record| types_of(record)) {
            wanted.remove(found.as_str());
        }
        chosen.push(journal);
    }
    if !rare.is_empty() {
        let last = chosen.last_mut().expect("a journal of the other types");
        let more = without_a_world(last);
        last.extend(more);
    }
    chosen
}

/// Types that no world writes: a skipped inbox message, an accepted loss and a raise need an operator, a quarantine a defect,
/// and a record of the time an idle server.
const WITHOUT_A_WORLD: [&str; 6] = [
    "entity.quarantined.v1",
    "inbox.skip.v1",
    "inbox.skipped.v1",
    "lineage.started.v1",
    "time.recorded.v1",
    "fleet.raise.v1",
];

/// Returns records with the types that no world writes, as a server could write them after these records.
fn without_a_world(journal: &[Arc<Record>]) -> Vec<Arc<Record>> {
    let mut fold = JournalFold::default();
    for record in journal {
        fold.take(record).expect("a record that can be folded");
    }
    let state = fold.into_state().expect("a state");
    let plan = state.fleet.plans().sorted().first().expect("a plan").name.clone();
    let skip = r#"{"k":"intent","t":"inbox.skip.v1","id":"skip","src":"cli","by":"local","d":{"offset":42}}"#;
    let cause = state.at.next();
    let skipped = format!(r#"{{"k":"fact","t":"inbox.skipped.v1","c":{cause},"d":{{"offset":42}}}}"#);
    let detail = "decide what is next for it: a contradiction".to_owned();
    let quarantined = EntityQuarantined { subject: Subject::Plan(plan), detail };
    let quarantined = Event::Fact { cause, fact: quarantined.into() }.line();
    let last = journal.last().expect("a record");
    let raise = r#"{"k":"intent","t":"fleet.raise.v1","id":"raise","src":"cli","by":"local","d":{"to":1}}"#;
    let time = format!(r#"{{"k":"fact","t":"time.recorded.v1","c":{cause},"d":{{}}}}"#);
    let next = appended(
        last,
        &[skip.as_bytes(), skipped.as_bytes(), &quarantined, raise.as_bytes(), time.as_bytes()],
    );

    let head = ChainCursor::after(&next);
    let header = next.header();
    let by =
        WriterIdentity { fleet: header.fleet.clone(), build: header.build.clone(), writer: header.writer };
    let at = head.position;
    let started = LineageStarted {
        previous: head.lineage,
        at,
        missing_through: Some(at.plus(100)),
        abandoned: Vec::new(),
    };
    let started = Event::Fact { cause: head.next(), fact: started.into() }.line();
    let parts = head.renew(&by, head.time, Lineage::from_random(7));
    vec![Arc::new(next), Arc::new(sealed(&[&started], parts))]
}

fn sealed(lines: &[&[u8]], parts: HeaderParts) -> Record {
    let mut draft = RecordDraft::new();
    for line in lines {
        draft.push(line).expect("space in the record");
    }
    draft.seal(parts).expect("a record")
}

/// Returns a record with these lines, which continues the journal after its last record.
pub fn appended(last: &Record, lines: &[&[u8]]) -> Record {
    let header = last.header();
    let by =
        WriterIdentity { fleet: header.fleet.clone(), build: header.build.clone(), writer: header.writer };
    sealed(lines, ChainCursor::after(last).follow(&by, header.time, None))
}
