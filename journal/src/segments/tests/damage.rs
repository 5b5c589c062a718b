//! Damage to the bytes: all damage is detected, and no record silently changes.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::super::catalog::file_name;
use super::super::frame::{self, FrameLookup};
use super::super::{SegmentJournal, VerifyOutcome, verify};
use super::*;
use crate::journal::Journal;

const SIZE: u64 = 2600;

/// Journal of six records, each a group of its own, in one segment.
struct SampleJournal {
    dir: tempfile::TempDir,
    records: Vec<Record>,
    bytes: Vec<u8>,
}

impl SampleJournal {
    fn file(&self) -> PathBuf {
        self.dir.path().join(file_name(Position::FIRST))
    }

    fn options(&self) -> SegmentOptions {
        options(self.dir.path(), SIZE, SIZE)
    }

    fn frames(&self) -> Vec<&[u8]> {
        let mut frames = Vec::new();
        let mut rest = &self.bytes[..];
        while let FrameLookup::Frame(frame) = frame::find(rest) {
            let (this, behind) = rest.split_at(frame.len());
            frames.push(this);
            rest = behind;
        }
        frames
    }

    /// Replaces the file by `bytes` and opens the journal. Returns the earlier verdict, and the number of
    /// kept records.
    fn try_with(&self, bytes: &[u8]) -> (VerifyOutcome, usize) {
        put(&self.file(), bytes);
        let outcome = verify(self.dir.path()).expect("readable").outcome;
        let kept = match (recover(&self.options()), &outcome) {
            (Ok((opened, records)), VerifyOutcome::Intact | VerifyOutcome::TornTail(_)) => {
                assert_eq!(
                    opened.cut.is_some(),
                    outcome != VerifyOutcome::Intact,
                    "a truncation is reported"
                );
                assert_prefix(&records, &self.records);
                if let Some(cut) = opened.cut {
                    assert_eq!(cut.from, position_of(&records).plus(1));
                    fs::remove_file(cut.kept).expect("the truncated tail is kept");
                }
                let after = verify(self.dir.path()).expect("readable");
                assert_eq!(after.outcome, VerifyOutcome::Intact);
                assert_eq!(after.records, records.len() as u64);
                records.len()
            }
            (Err(SegmentOpenError::Damaged { .. }), VerifyOutcome::Damaged(_)) => {
                assert_eq!(fs::read(self.file()).expect("read"), bytes, "nothing was changed");
                0
            }
            (found, _) => panic!("{outcome:?} and {:?} do not agree", found.map(|(opened, _)| opened)),
        };
        (outcome, kept)
    }
}

enum JournalEnd {
    Closed,
    Killed,
}

fn sample(end: &JournalEnd) -> SampleJournal {
    let live = tempfile::tempdir().expect("a directory");
    let dir = tempfile::tempdir().expect("a directory");
    let records = some_records(6);
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open(&options(live.path(), SIZE, SIZE), to).expect("open");
    for record in &records {
        journal.append(record.clone()).expect("queued");
        wait_for(&delivered, record);
    }
    match end {
        JournalEnd::Closed => {
            journal.close().expect("closed");
            copy_dir(live.path(), dir.path());
        }
        JournalEnd::Killed => copy_dir(live.path(), dir.path()),
    }
    let bytes = fs::read(dir.path().join(file_name(Position::FIRST))).expect("read");
    assert_eq!(bytes.len() as u64, SIZE);
    SampleJournal { dir, records, bytes }
}

#[test]
fn every_flipped_bit_is_found() {
    for end in [JournalEnd::Closed, JournalEnd::Killed] {
        let sample = sample(&end);
        let frames: Vec<_> = sample.frames().iter().map(|frame| frame.len()).collect();
        // Without a marker, no frame names the sixth record; no frame names the marker.
        let named: usize = frames[..if matches!(end, JournalEnd::Closed) { 6 } else { 5 }].iter().sum();
        for at in 0..sample.bytes.len() {
            for bit in 0..8 {
                let mut bytes = sample.bytes.clone();
                bytes[at] ^= 1 << bit;
                if bit != at % 8 {
                    put(&sample.file(), &bytes);
                    let outcome = verify(sample.dir.path()).expect("readable").outcome;
                    assert_eq!(
                        matches!(outcome, VerifyOutcome::Damaged(_)),
                        at < named,
                        "bit {bit} of {at}: {outcome:?}"
                    );
                    assert_eq!(
                        matches!(outcome, VerifyOutcome::TornTail(_)),
                        at >= named,
                        "bit {bit} of {at}: {outcome:?}"
                    );
                    continue;
                }
                let (outcome, kept) = sample.try_with(&bytes);
                assert_eq!(
                    matches!(outcome, VerifyOutcome::Damaged(_)),
                    at < named,
                    "bit {bit} of {at}: {outcome:?}"
                );
                assert_ne!(outcome, VerifyOutcome::Intact);
                let last = frames.iter().take(6).sum();
                let wanted = if at < named {
                    0
                } else if at < last {
                    5
                } else {
                    6
                };
                assert_eq!(kept, wanted, "bit {bit} of {at}");
            }
        }
    }
}

#[test]
fn every_length_to_which_the_file_is_cut_leaves_a_prefix() {
    for end in [JournalEnd::Closed, JournalEnd::Killed] {
        let sample = sample(&end);
        for len in 0..sample.bytes.len() {
            let (_, kept) = sample.try_with(&sample.bytes[..len]);
            let whole: Vec<_> = sample.frames().iter().map(|frame| frame.len()).collect();
            let ends = whole.iter().take(6).scan(0, |sum, len| {
                *sum += len;
                Some(*sum)
            });
            let wanted = ends.filter(|end| *end <= len).count();
            assert_eq!(kept, wanted, "cut to {len} bytes");
        }
    }
}

#[test]
fn a_journal_continues_after_a_cut_and_stale_bytes_do_not_reappear() {
    let sample = sample(&JournalEnd::Killed);
    let frames = sample.frames();
    // The fifth record is torn, the sixth after it intact: both of the last group, if it was one.
    let mut bytes = sample.bytes.clone();
    let fifth: usize = frames[..4].iter().map(|frame| frame.len()).sum();
    let unnamed = {
        let mut tail = Vec::new();
        for record in &sample.records[4..] {
            frame::write(&mut tail, frame::FrameKind::Record, sample.records[3].last(), record.bytes());
        }
        tail
    };
    bytes[fifth..fifth + unnamed.len()].copy_from_slice(&unnamed);
    bytes[fifth + 100] = 0;
    let (outcome, kept) = sample.try_with(&bytes);
    assert!(matches!(outcome, VerifyOutcome::TornTail(_)), "{outcome:?}");
    assert_eq!(kept, 4);
    // A shorter record than the torn one: the old bytes after it must not follow it.
    let mut author = TestWriter::new(1, Some(crate::ChainCursor::after(&sample.records[3])));
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open(&sample.options(), to).expect("open");
    let more = author.record(1, 0);
    journal.append(more.clone()).expect("queued");
    wait_for(&delivered, &more);
    drop(journal);
    let (opened, records) = recover(&sample.options()).expect("open");
    assert_eq!((opened.cut, records.len()), (None, 5));
    assert_eq!(records[4], more);
}

#[test]
fn another_fleet_and_a_newer_format_are_refused_untouched() {
    let sample = sample(&JournalEnd::Closed);
    let other = SegmentOptions { fleet: "other".into(), ..sample.options() };
    assert!(matches!(recover(&other), Err(SegmentOpenError::OtherFleet { .. })));
    // A record that continues the chain in the unnamed tail, in a format that this build does not read.
    let text = String::from_utf8(some_records(7)[6].bytes().to_vec()).expect("text");
    let newer = text.replacen("{\"chancery\":2", "{\"chancery\":3", 1);
    let used: usize = sample.frames().iter().map(|frame| frame.len()).sum();
    let mut bytes = sample.bytes[..used].to_vec();
    frame::write(&mut bytes, frame::FrameKind::Record, sample.records[5].last(), newer.as_bytes());
    put(&sample.file(), &bytes);
    assert!(matches!(recover(&sample.options()), Err(SegmentOpenError::Broken { .. })));
    assert!(matches!(verify(sample.dir.path()).expect("readable").outcome, VerifyOutcome::Damaged(_)));
    assert_eq!(fs::read(sample.file()).expect("read"), bytes);
}

#[test]
fn a_journal_of_format_1_is_refused_with_one_sentence_and_untouched() {
    let dir = tempfile::tempdir().expect("a directory");
    let genesis = &some_records(1)[0];
    let text = String::from_utf8(genesis.bytes().to_vec()).expect("text");
    let old = text.replacen("{\"chancery\":2", "{\"chancery\":1", 1);
    // tidy: allow(begins)
    let old = old.replacen("\"starts\":", "\"begins\":", 1);
    let mut bytes = Vec::new();
    frame::write(&mut bytes, frame::FrameKind::Record, Position::ZERO, old.as_bytes());
    let first = dir.path().join(file_name(Position::FIRST));
    fs::write(&first, &bytes).expect("written");
    let reason = "cannot read record of format 1: this build reads only format 2; format 1 was written by builds before 0.1.0";
    // It is the last segment, then an earlier one.
    for next in [None, Some(genesis.last().plus(1))] {
        if let Some(next) = next {
            fs::write(dir.path().join(file_name(next)), "").expect("written");
        }
        let error = recover(&options(dir.path(), SIZE, SIZE)).expect_err("refused");
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        assert_eq!(causes.last().map(ToString::to_string).as_deref(), Some(reason));
        let VerifyOutcome::Damaged(finding) = verify(dir.path()).expect("readable").outcome else {
            panic!("it cannot be verified");
        };
        assert_eq!(finding.reason, reason);
        assert_eq!(fs::read(&first).expect("read"), bytes);
    }
}

#[test]
fn damage_in_an_earlier_segment_or_a_missing_one_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = options(dir.path(), 1000, 1000);
    let records = some_records(12);
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open(&options, to).expect("open");
    for record in &records {
        journal.append(record.clone()).expect("queued");
    }
    wait_for(&delivered, &records[11]);
    drop(journal);
    let files: Vec<_> = super::super::catalog::list(dir.path()).expect("listed");
    assert!(files.len() > 4);
    assert_eq!(verify(dir.path()).expect("readable").outcome, VerifyOutcome::Intact);
    for (_, file) in &files[..files.len() - 1] {
        refused_without(&options, file);
        let whole = fs::read(file).expect("read");
        for at in (0..whole.len()).step_by(41) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            put(file, &bytes);
            assert!(
                matches!(recover(&options), Err(SegmentOpenError::Damaged { .. })),
                "byte {at} of {}",
                file.display()
            );
            assert!(matches!(verify(dir.path()).expect("readable").outcome, VerifyOutcome::Damaged(_)));
        }
        put(file, &whole);
    }
    let lazy = SegmentOptions { check: super::super::OpenCheck::Newest, ..options };
    let (_, found) = recover(&lazy).expect("open");
    assert_eq!(found, records);
    let (_, file) = &files[1];
    let mut bytes = fs::read(file).expect("read");
    bytes[200] ^= 1;
    put(file, &bytes);
    let source = SegmentSource(open(&lazy, &NoSync).expect("open").catalog);
    let mut reader = source.records(files[1].0).expect("readable");
    assert!(
        matches!(reader.next(), Some(Err(crate::ReadError::Damaged { position, .. })) if position == files[1].0)
    );
    assert!(reader.next().is_none());
    assert_eq!(
        source.records(files[2].0).expect("readable").filter_map(Result::ok).count(),
        records.len() - from(&records, files[2].0)
    );
}

fn from(records: &[Record], position: Position) -> usize {
    records.partition_point(|record| record.last() < position)
}

fn refused_without(options: &SegmentOptions, file: &Path) {
    let whole = fs::read(file).expect("read");
    fs::remove_file(file).expect("removed");
    assert!(matches!(recover(options), Err(SegmentOpenError::Damaged { .. })), "without {}", file.display());
    assert!(matches!(verify(&options.dir).expect("readable").outcome, VerifyOutcome::Damaged(_)));
    fs::write(file, whole).expect("written");
}

/// Change to the frames of a file.
#[derive(Clone, Debug)]
enum FrameChange {
    Swap(usize, usize),
    Repeat(usize, usize),
    Remove(usize),
    InsertMarker(usize, u64),
    InsertNoise(usize, Vec<u8>),
}

fn tampering() -> impl Strategy<Value = FrameChange> {
    let at = 0..8usize;
    prop_oneof![
        (at.clone(), at.clone()).prop_map(|(a, b)| FrameChange::Swap(a, b)),
        (at.clone(), at.clone()).prop_map(|(a, b)| FrameChange::Repeat(a, b)),
        at.clone().prop_map(FrameChange::Remove),
        (at.clone(), 0..20u64).prop_map(|(at, named)| FrameChange::InsertMarker(at, named)),
        (at, prop::collection::vec(any::<u8>(), 1..60))
            .prop_map(|(at, noise)| FrameChange::InsertNoise(at, noise)),
    ]
}

fn tampered(sample: &SampleJournal, tamperings: &[FrameChange]) -> Vec<u8> {
    let mut frames: Vec<Vec<u8>> = sample.frames().iter().map(|frame| frame.to_vec()).collect();
    for tampering in tamperings {
        let len = frames.len();
        match tampering {
            _ if len == 0 => {}
            FrameChange::Swap(a, b) => frames.swap(a % len, b % len),
            FrameChange::Repeat(from, to) => frames.insert(to % (len + 1), frames[from % len].clone()),
            FrameChange::Remove(at) => drop(frames.remove(at % len)),
            FrameChange::InsertNoise(at, noise) => frames.insert(at % (len + 1), noise.clone()),
            FrameChange::InsertMarker(at, named) => {
                let mut marker = Vec::new();
                frame::write(&mut marker, frame::FrameKind::Marker, Position::new(*named), &[]);
                frames.insert(at % (len + 1), marker);
            }
        }
    }
    let mut bytes = frames.concat();
    bytes.resize(bytes.len().max(SIZE as usize), 0);
    bytes
}

#[test]
fn every_swapped_repeated_or_missing_frame_is_found_or_cut() {
    for end in [JournalEnd::Closed, JournalEnd::Killed] {
        let sample = sample(&end);
        let count = sample.frames().len();
        for a in 0..count {
            for b in 0..count {
                if a != b {
                    let (outcome, _) = sample.try_with(&tampered(&sample, &[FrameChange::Swap(a, b)]));
                    assert_ne!(outcome, VerifyOutcome::Intact, "frames {a} and {b} swapped");
                }
                let (outcome, _) = sample.try_with(&tampered(&sample, &[FrameChange::Repeat(a, b)]));
                assert_ne!(outcome, VerifyOutcome::Intact, "frame {a} repeated before {b}");
            }
            let (outcome, kept) = sample.try_with(&tampered(&sample, &[FrameChange::Remove(a)]));
            // A clean cut at the end leaves no trace in the bytes.
            assert_eq!(outcome == VerifyOutcome::Intact, a + 1 == count, "frame {a} removed");
            assert!(outcome != VerifyOutcome::Intact || kept == a.min(6));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_frames_replaces_a_record_silently(
        tamperings in prop::collection::vec(tampering(), 1..4),
        is_closed: bool,
    ) {
        let sample = sample(if is_closed { &JournalEnd::Closed } else { &JournalEnd::Killed });
        // `try_with` asserts that the kept records are a prefix of those written.
        sample.try_with(&tampered(&sample, &tamperings));
    }
}
