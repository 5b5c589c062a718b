//! The read-only journal compared with the opened one: the same records, whatever the last segment contains, and no
//! change of any file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use chancery_events::subject::Subject;

use super::super::catalog::list;
use super::super::{FrozenSegments, SegmentJournal};
use super::*;
use crate::chain::ChainCursor;
use crate::journal::Journal;

/// Writes records to a journal of several segments, and returns it, still open.
fn written(dir: &Path, records: &[Record]) -> SegmentJournal {
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open(&options(dir, 700, 1500), to).expect("open");
    for record in records {
        journal.append(record.clone()).expect("queued");
        wait_for(&delivered, record);
    }
    journal
}

fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry").path());
    paths.map(|path| (path.clone(), fs::read(&path).expect("read"))).collect()
}

/// Returns the records up to the first that cannot be read, and whether there is one.
fn records(frozen: &FrozenSegments, from: Position) -> (Vec<Record>, bool) {
    let (mut found, mut is_damaged) = (Vec::new(), frozen.damage().is_some());
    for record in frozen.source().records(from).expect("readable") {
        match record {
            Ok(record) => found.push(Record::clone(&record)),
            Err(_) => is_damaged = true,
        }
    }
    (found, is_damaged)
}

fn frozen(dir: &Path) -> FrozenSegments {
    FrozenSegments::open(dir).expect("readable").expect("records")
}

#[test]
fn a_journal_in_use_is_read_as_it_was_when_it_was_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(FrozenSegments::open(dir.path()).expect("readable").is_none());
    let all = some_records(40);
    let journal = written(dir.path(), &all[..30]);
    assert!(list(dir.path()).expect("listed").len() > 2);
    let reader = frozen(dir.path());
    assert_eq!(
        (reader.fleet().as_ref(), reader.source().head()),
        (FLEET, Some(ChainCursor::after(&all[29])))
    );
    for record in &all[30..] {
        journal.append(record.clone()).expect("queued");
    }
    journal.close().expect("closed");
    assert_eq!(records(&reader, Position::FIRST), (all[..30].to_vec(), false));
    assert_eq!(records(&frozen(dir.path()), Position::FIRST), (all, false));
}

/// Waits for the postings of some closed segments, and returns their paths.
fn posts(dir: &Path) -> Vec<PathBuf> {
    for _ in 0..1000 {
        let mut found: Vec<_> = content(dir).into_keys().collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == "post"));
        if found.len() > 3 {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no postings are written")
}

#[test]
fn every_prefix_is_a_journal_and_no_file_is_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut author = TestWriter::new(1, None);
    let name = |at: usize| format!("thing-{}", at % 3);
    let line =
        |name: String| format!(r#"{{"k":"fact","t":"replica.deleted.v1","c":1,"d":{{"name":"{name}"}}}}"#);
    let mut all = vec![author.genesis()];
    all.extend((1..40).map(|at| author.record_of(&[line(name(at))])));
    let journal = written(dir.path(), &all);
    let posts = posts(dir.path());
    journal.close().expect("closed");
    // The postings of one segment are damaged, and those of another one are missing.
    let mut damaged = fs::read(&posts[0]).expect("read");
    damaged[20] ^= 1;
    fs::write(&posts[0], damaged).expect("written");
    fs::remove_file(&posts[2]).expect("removed");
    let before = content(dir.path());
    for count in 1..=all.len() {
        let at = ChainCursor::after(&all[count - 1]);
        let prefix = frozen(dir.path()).ending_at(&at).expect("readable");
        assert_eq!(prefix.source().head(), Some(at));
        for from in [0, 1, all[count - 1].first().get(), at.position.get(), at.position.get() + 1, 1000] {
            let from = Position::new(from);
            let wanted: Vec<_> =
                all[..count].iter().filter(|record| record.last() >= from).cloned().collect();
            assert_eq!(records(&prefix, from), (wanted, false), "{count} records, from {from}");
        }
        for thing in [0, 1, 2, 0] {
            let subject: Subject = format!("replica/{}", name(thing)).parse().expect("a subject");
            let found = prefix.source().records_about(&subject, Position::FIRST).expect("readable");
            let found = found.map(|record| Record::clone(&record.expect("a record")));
            // The first record has an event that is no event, and may be about anything.
            let found: Vec<_> = found.filter(|record| record.first() > Position::FIRST).collect();
            let about = (1..count).filter(|at| at % 3 == thing).map(|at| all[at].clone());
            assert_eq!(found, about.collect::<Vec<_>>(), "{subject} in {count} records");
        }
    }
    assert!(content(dir.path()) == before);
}

#[test]
fn a_torn_end_is_left_out_and_damage_before_it_is_an_error() {
    let (live, dir) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let all = some_records(14);
    let journal = written(live.path(), &all);
    copy_dir(live.path(), dir.path());
    journal.close().expect("closed");
    let (_, last) = list(dir.path()).expect("listed").pop().expect("a segment");
    let whole = fs::read(&last).expect("read");
    let (copy, mut outcomes) = (tempfile::tempdir().expect("a directory"), [0, 0]);
    for at in (0..whole.len()).step_by(3) {
        let (mut flipped, mut cut) = (whole.clone(), whole.clone());
        flipped[at] ^= 1;
        cut[at..].fill(0);
        for bytes in [flipped, cut] {
            put(&last, &bytes);
            let read = FrozenSegments::open(dir.path()).expect("readable").expect("records");
            let (found, is_damaged) = records(&read, Position::FIRST);
            assert_prefix(&found, &all);
            // A server would open the same directory, or refuse it.
            fs::remove_dir_all(copy.path()).expect("removed");
            copy_dir(dir.path(), copy.path());
            match recover(&options(copy.path(), 700, 1500)) {
                Ok((_, opened)) => assert_eq!((found, is_damaged), (opened, false), "byte {at}"),
                Err(_) => assert!(is_damaged, "byte {at}"),
            }
            outcomes[usize::from(is_damaged)] += 1;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 100), "{outcomes:?}");
}

#[test]
fn a_missing_or_damaged_earlier_segment_is_an_error_where_it_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let all = some_records(40);
    written(dir.path(), &all).close().expect("closed");
    let segments = list(dir.path()).expect("listed");
    for (index, (first, path)) in segments.iter().enumerate() {
        let whole = fs::read(path).expect("read");
        fs::remove_file(path).expect("removed");
        let read = frozen(dir.path());
        let (found, is_damaged) = records(&read, Position::FIRST);
        let wanted: Vec<_> = all.iter().filter(|record| record.last() < *first).cloned().collect();
        // Only other evidence shows that the last one is missing.
        let is_last = index + 1 == segments.len();
        let wanted = (if index == 0 { Vec::new() } else { wanted }, !is_last);
        assert_eq!((found, is_damaged), wanted, "segment {index}");
        fs::write(path, &whole).expect("written");
    }
    // A last segment without records does not hide that those before it are damaged.
    let (_, path) = &segments[segments.len() - 1];
    let mut bytes = fs::read(path).expect("read");
    let head = frozen(dir.path()).source().head().expect("records").position;
    fs::write(dir.path().join(super::super::catalog::file_name(head.plus(1))), [0; 100]).expect("written");
    assert_eq!(records(&frozen(dir.path()), Position::FIRST), (all.clone(), false));
    bytes[40] ^= 1;
    fs::write(path, bytes).expect("written");
    let error = frozen(dir.path()).damage().expect("damage").to_string();
    assert!(error.contains(&format!("damaged at position {}", segments[segments.len() - 1].0)), "{error}");
}
