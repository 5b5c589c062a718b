//! Postings compared with a full scan: the results are the same, whatever the state of their files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use chancery_events::event::Event;
use chancery_events::subject::Subject;
use proptest::prelude::*;

use super::super::catalog::{file_name, list};
use super::super::postings::{PostingKey, SegmentPostings, left_over, path, write};
use super::super::postings_cache::PostingsCache;
use super::super::{OpenEvidence, SegmentJournal, verify};
use super::*;
use crate::journal::{Journal, lock};
use crate::witness::WitnessCheck;

fn subject(name: u8) -> Subject {
    format!("replica/thing-{name}").parse().expect("a subject")
}

/// Creates an event about the entity of this number, or one of an unknown type.
fn line(name: u8) -> String {
    match name {
        0 => r#"{"k":"fact","t":"thing.to_come.v9","c":2,"d":{"name":"who-knows"}}"#.into(),
        1 => r#"{"k":"fact","t":"operation.created.v1","c":1,"d":{"replica":"thing-1","kind":"create","deployment":"deployment-1","proposal":{"hash":"9f86d081884c7d659a2feaa0c55ad015","expires":1795338000000000}}}"#.into(),
        _ => {
            let cause = name % 4 * 3;
            format!(
                r#"{{"k":"fact","t":"replica.deleted.v1","c":{cause},"d":{{"name":"thing-{name}"}}}}"#
            )
        }
    }
}

fn records(names: &[Vec<u8>]) -> Vec<Record> {
    let mut author = TestWriter::new(1, None);
    let mut records = vec![author.genesis()];
    records.extend(names.iter().map(|names| {
        let lines: Vec<_> = names.iter().map(|name| line(*name)).collect();
        author.record_of(&lines)
    }));
    records
}

fn is_about(record: &Record, subject: &Subject, from: Position) -> bool {
    record.events().filter(|(position, _)| *position >= from).any(|(position, line)| {
        let Ok(event) = Event::read(line) else { return true };
        let issued = match &event {
            Event::Fact { fact, .. } => fact.issues(record.header().lineage, position),
            Event::Intent(_) | Event::Observation { .. } => None,
        };
        event.subjects().contains(subject) || issued.as_ref() == Some(subject)
    })
}

fn naive(records: &[Record], subject: &Subject, from: Position) -> Vec<Position> {
    records.iter().filter(|record| is_about(record, subject, from)).map(Record::first).collect()
}

fn about(source: &dyn JournalReader, subject: &Subject, from: Position) -> Vec<Position> {
    let found = source.records_about(subject, from).expect("readable");
    found.map(|record| record.expect("a record").first()).collect()
}

/// Returns the records after that of the cause which have facts with it, or events that this build cannot read.
fn effects(records: &[Record], cause: Position, from: Position) -> Vec<Position> {
    let is_effect = |record: &&Record| {
        let mut events = record.events().filter(|(position, _)| *position >= from);
        events.any(|(_, line)| match Event::read(line) {
            Ok(Event::Fact { cause: of, .. }) => {
                of == cause && cause < record.first() && cause != Position::ZERO
            }
            Ok(Event::Intent(_) | Event::Observation { .. }) => false,
            Err(_) => true,
        })
    };
    records.iter().filter(is_effect).map(Record::first).collect()
}

/// Returns everything named in the records, and one subject that is not.
fn subjects(records: &[Record]) -> BTreeSet<Subject> {
    let mut all: BTreeSet<Subject> = (0..12).map(subject).collect();
    for record in records {
        for (position, line) in record.events() {
            if let Ok(Event::Fact { fact, .. }) = Event::read(line) {
                all.extend(fact.issues(record.header().lineage, position));
            }
        }
    }
    all
}

fn same_as_a_scan(source: &dyn JournalReader, records: &[Record]) {
    let end = position_of(records).get() + 2;
    for subject in subjects(records) {
        for from in (0..end).step_by(13) {
            let from = Position::new(from);
            assert_eq!(
                about(source, &subject, from),
                naive(records, &subject, from),
                "{subject} from {from}"
            );
        }
    }
    for (cause, from) in
        (0..12).zip((0..end).step_by(7).cycle()).map(|(cause, from)| (cause, cause.max(from)))
    {
        let (cause, from) = (Position::new(cause), Position::new(from));
        let found = source.records_caused_by(cause, from).expect("readable");
        let found: Vec<_> = found.map(|record| record.expect("a record").first()).collect();
        assert_eq!(found, effects(records, cause, from), "caused by {cause} from {from}");
    }
}

fn until_filed(dir: &Path) -> Vec<PathBuf> {
    let files = list(dir).expect("listed");
    let closed: Vec<_> = files[..files.len() - 1].iter().map(|(_, file)| path(file)).collect();
    until("postings are filed", || closed.iter().all(|file| file.exists()));
    closed
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "timeout until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the state of the first segment's postings.
fn shelf(journal: &SegmentJournal) -> &'static str {
    let segment = journal.catalog.holding(Position::FIRST).expect("a segment");
    match &*lock(&segment.shelf) {
        PostingsCache::Unknown => "unknown",
        PostingsCache::OnDisk(_) => "filed",
        PostingsCache::InMemory(..) => "in memory",
    }
}

fn some() -> Vec<Record> {
    some_from(0)
}

/// Creates records of the same positions, about other subjects.
fn some_from(start: usize) -> Vec<Record> {
    let name = |at: usize, event: usize| ((at * 7 + event * 5 + start) % 11) as u8;
    let names: Vec<Vec<u8>> = (0..60).map(|at| (0..=at % 4).map(|event| name(at, event)).collect()).collect();
    records(&names)
}

/// Creates a journal of several closed segments, all filed, with an open one.
fn filed(records: &[Record]) -> (tempfile::TempDir, SegmentOptions, Vec<PathBuf>) {
    let dir = tempfile::tempdir().expect("a directory");
    let options = options(dir.path(), 2000, 4000);
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open_on(arc(NoSync), &options, to).expect("open");
    for record in records {
        journal.append(record.clone()).expect("queued");
    }
    wait_for(&delivered, &records[records.len() - 1]);
    let files = until_filed(dir.path());
    assert!(files.len() > 3);
    drop(journal);
    (dir, options, files)
}

fn opened(options: &SegmentOptions) -> SegmentJournal {
    SegmentJournal::open_on(arc(NoSync), options, sink().0).expect("open").0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn at_any_time_they_return_the_same_as_a_scan(
        names in prop::collection::vec(prop::collection::vec(0..12_u8, 1..6), 1..60),
        asked_at in 0..60_usize,
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let options = options(dir.path(), 1500, 3000);
        let records = records(&names);
        let (to, delivered) = sink();
        let (journal, _) = SegmentJournal::open_on(arc(NoSync), &options, to).expect("open");
        let source = journal.source();
        for (at, record) in records.iter().enumerate() {
            journal.append(record.clone()).expect("queued");
            if at == asked_at {
                wait_for(&delivered, record);
                same_as_a_scan(&*source, &records[..=at]);
            }
        }
        journal.close().expect("closed");
        same_as_a_scan(&*source, &records);
        let journal = opened(&options);
        same_as_a_scan(&*journal.source(), &records);
        until_filed(dir.path());
        same_as_a_scan(&*journal.source(), &records);
    }
}

#[test]
fn an_answer_reads_only_what_the_file_points_to() {
    let records = some();
    let (dir, options, _) = filed(&records);
    // Damage in the first record about other subjects is found by sequential reads, not by subject.
    let of = subject(3);
    let strange = records.iter().skip(1).position(|record| !is_about(record, &of, Position::ZERO));
    let strange = &records[1 + strange.expect("a record about other subjects")];
    let journal = opened(&options);
    let file = dir.path().join(file_name(Position::FIRST));
    let mut bytes = fs::read(&file).expect("read");
    let at = bytes.windows(strange.bytes().len()).position(|window| *window == **strange.bytes());
    bytes[at.expect("stored in the segment") + 5] ^= 1;
    put(&file, &bytes);
    let source = journal.source();
    assert_eq!(about(&*source, &of, Position::ZERO), naive(&records, &of, Position::ZERO));
    assert!(source.records(Position::FIRST).expect("readable").any(|record| record.is_err()));
}

#[test]
fn a_file_with_any_bit_flipped_cut_missing_or_of_an_older_format_is_made_again() {
    let records = some();
    let (_dir, options, files) = filed(&records);
    let whole = fs::read(&files[0]).expect("read");
    let of = subject(4);
    let mut bad: Vec<Option<Vec<u8>>> = vec![None, Some(Vec::new()), Some(whole[..whole.len() - 1].to_vec())];
    bad.extend((0..whole.len()).step_by(3).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        Some(bytes)
    }));
    // Its checksum does not include the magic.
    bad.push(Some([b"ChPost2\n", &whole[8..]].concat()));
    for bad in bad {
        fs::remove_file(&files[0]).expect("removed");
        if let Some(bad) = &bad {
            fs::write(&files[0], bad).expect("written");
        }
        let journal = opened(&options);
        assert_eq!(about(&*journal.source(), &of, Position::ZERO), naive(&records, &of, Position::ZERO));
        until("the file is built again", || fs::read(&files[0]).ok().as_ref() == Some(&whole));
    }
}

#[test]
fn a_file_of_another_segment_or_with_false_entries_changes_no_answer() {
    let records = some();
    let (dir, options, files) = filed(&records);
    let segment = dir.path().join(file_name(Position::FIRST));
    // The head is that of the right file, so that only the entries are wrong.
    let honest = fs::read(&files[0]).expect("read");
    let mut lies = SegmentPostings::default();
    let end = u64::from_le_bytes(honest[24..32].try_into().expect("eight"));
    let last = u64::from_le_bytes(honest[32..40].try_into().expect("eight"));
    let in_it: Vec<_> = records.iter().take_while(|record| record.last() < first_of_next(&dir)).collect();
    for record in &in_it {
        lies.note(record, last);
    }
    let of = (2..11)
        .map(subject)
        .find(|of| !lies.find(PostingKey::of(of)).is_empty())
        .expect("a subject with entries");
    let lies = lies.encode(Position::FIRST, end).expect("a file");
    for bytes in [lies, fs::read(&files[1]).expect("read")] {
        write(&segment, &bytes).expect("written");
        let journal = opened(&options);
        for _ in 0..2 {
            assert_eq!(about(&*journal.source(), &of, Position::ZERO), naive(&records, &of, Position::ZERO));
        }
        until("the file is built again", || fs::read(&files[0]).ok().as_ref() == Some(&honest));
        until("memory is released", || shelf(&journal) == "filed");
    }
    assert_eq!(verify(dir.path()).expect("readable").outcome, super::super::VerifyOutcome::Intact);
}

#[test]
fn what_cannot_be_filed_is_not_kept_in_memory_and_is_filed_once_it_can_be() {
    let records = some();
    let (dir, options, files) = filed(&records);
    fs::remove_file(&files[0]).expect("removed");
    fs::create_dir(&files[0]).expect("something in its place");
    let journal = opened(&options);
    let of = subject(4);
    for _ in 0..2 {
        assert_eq!(about(&*journal.source(), &of, Position::ZERO), naive(&records, &of, Position::ZERO));
        until("memory is released", || shelf(&journal) == "unknown");
    }
    until("the unfinished file is removed", || left_over(dir.path()).expect("listed").is_empty());
    fs::remove_dir(&files[0]).expect("removed");
    assert_eq!(about(&*journal.source(), &of, Position::ZERO), naive(&records, &of, Position::ZERO));
    until("it is filed", || shelf(&journal) == "filed" && files[0].is_file());
}

#[test]
fn a_file_alongside_a_last_segment_of_another_history_refuses_it() {
    let (_dir, _, files) = filed(&some());
    let dir = tempfile::tempdir().expect("a directory");
    let options = SegmentOptions {
        against: OpenEvidence::Witnesses(Vec::new()),
        ..options(dir.path(), 1 << 20, 1 << 20)
    };
    let journal = opened(&options);
    let other = some_from(1);
    for record in &other {
        journal.append(record.clone()).expect("queued");
    }
    journal.close().expect("closed");
    fs::copy(&files[0], path(&dir.path().join(file_name(Position::FIRST)))).expect("copied");
    let Err(SegmentOpenError::Short { loss, .. }) = SegmentJournal::open_on(arc(NoSync), &options, sink().0)
    else {
        panic!("the journal has another record where the first segment of the file ended")
    };
    assert!(loss.witnesses.iter().all(|(_, weight)| *weight == WitnessCheck::Differs), "{loss}");
}

#[test]
fn what_a_crash_left_half_written_is_removed() {
    let records = some();
    let (dir, options, files) = filed(&records);
    for file in &files[..2] {
        fs::copy(file, file.with_extension("post-new")).expect("copied");
    }
    assert_eq!(left_over(dir.path()).expect("listed").len(), 2);
    let journal = opened(&options);
    until_filed(dir.path());
    same_as_a_scan(&*journal.source(), &records);
    drop(journal);
    assert!(left_over(dir.path()).expect("listed").is_empty());
}

fn first_of_next(dir: &tempfile::TempDir) -> Position {
    list(dir.path()).expect("listed")[1].0
}
