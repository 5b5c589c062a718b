//! Last group, torn at every byte; a closed segment, with every bit flipped.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

use super::super::catalog::{file_name, list};
use super::super::{OpenCheck, SegmentJournal, VerifyFinding, VerifyOutcome, frame, verify};
use super::*;
use crate::journal::{Journal, ReadError};

/// Replacement of the torn part.
#[derive(Clone, Copy, Debug)]
enum TornPart {
    /// Zeros: the part was never written.
    Zeros,
    /// Zeros for 64 bytes; the bytes after them were written.
    Hole,
    /// Other bytes.
    Noise,
}

fn tear(bytes: &mut [u8], torn: TornPart) {
    match torn {
        TornPart::Zeros => bytes.fill(0),
        TornPart::Hole => bytes.iter_mut().take(64).for_each(|byte| *byte = 0),
        TornPart::Noise => bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31).wrapping_add(7)),
    }
}

#[test]
fn the_last_group_torn_at_any_byte_loses_nothing_that_was_acknowledged() {
    let (live, dir) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let records = some_records(8);
    let (acknowledged, group) = records.split_at(4);
    let (to, delivered) = sink();
    let (journal, _) =
        SegmentJournal::open_on(arc(NoSync), &options(live.path(), 8000, 8000), to).expect("open");
    for record in acknowledged {
        journal.append(record.clone()).expect("queued");
        wait_for(&delivered, record);
    }
    copy_dir(live.path(), dir.path());
    let file = dir.path().join(file_name(Position::FIRST));
    let mut whole = fs::read(&file).expect("read");
    let start = frame::len_without_zeros(&whole);
    assert!(whole[..start].ends_with(acknowledged[3].bytes()), "the last frame is a record");
    let mut tail = Vec::new();
    let ends: Vec<_> = group
        .iter()
        .map(|record| {
            frame::write(&mut tail, frame::FrameKind::Record, position_of(acknowledged), record.bytes());
            start + tail.len()
        })
        .collect();
    whole[start..start + tail.len()].copy_from_slice(&tail);
    let options = options(dir.path(), 8000, 8000);
    for torn in [TornPart::Zeros, TornPart::Hole, TornPart::Noise] {
        for at in start..start + tail.len() {
            let mut bytes = whole.clone();
            tear(&mut bytes[at..start + tail.len()], torn);
            put(&file, &bytes);
            let outcome = verify(dir.path()).expect("readable").outcome;
            let (opened, kept) = recover(&options).expect("open");
            assert_prefix(&kept, &records);
            let before = ends.iter().filter(|end| **end <= at).count();
            assert!(kept.len() >= 4 + before, "{torn:?} from byte {at} on: {} are left", kept.len());
            let is_cut = opened.cut.as_ref().map(|cut| (cut.from, cut.offset));
            match outcome {
                VerifyOutcome::Intact => assert_eq!(is_cut, None),
                VerifyOutcome::TornTail(VerifyFinding { position, offset, .. }) => {
                    assert_eq!(is_cut, Some((position, offset)));
                    assert_eq!(position, position_of(&kept).plus(1));
                }
                VerifyOutcome::Damaged(finding) => panic!("{torn:?} from byte {at} on: {finding:?}"),
            }
            if let Some(cut) = opened.cut {
                fs::remove_file(cut.kept).expect("the truncated tail is kept");
            }
            let (again, kept_again) = recover(&options).expect("open");
            assert_eq!((again.cut, kept_again.len()), (None, kept.len()));
        }
    }
}

#[test]
fn every_flipped_bit_of_a_closed_segment_is_found_on_opening_reading_and_checking() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = options(dir.path(), 1100, 1100);
    let records = some_records(10);
    let (to, delivered) = sink();
    let (journal, _) = SegmentJournal::open_on(arc(NoSync), &options, to).expect("open");
    for record in &records {
        journal.append(record.clone()).expect("queued");
    }
    wait_for(&delivered, &records[9]);
    drop(journal);
    let files = list(dir.path()).expect("listed");
    assert!(files.len() > 3, "segments follow the damaged one");
    let (first, file) = &files[1];
    let whole = fs::read(file).expect("read");
    let damaged = OpenOptions::new().write(true).open(file).expect("open");
    let lazy = SegmentOptions { check: OpenCheck::Newest, ..options.clone() };
    for (at, byte) in whole.iter().enumerate() {
        for bit in 0..8 {
            damaged.write_all_at(&[byte ^ (1 << bit)], at as u64).expect("written");
            match verify(dir.path()).expect("readable").outcome {
                VerifyOutcome::Damaged(VerifyFinding { file: found, offset, .. }) => {
                    assert!(
                        found == *file && offset <= at as u64,
                        "bit {bit} of {at}: {} {offset}",
                        found.display()
                    );
                }
                outcome => panic!("bit {bit} of {at}: {outcome:?}"),
            }
            match recover(&options) {
                Err(SegmentOpenError::Damaged { file: found, .. }) => assert_eq!(found, *file),
                other => panic!("bit {bit} of {at}: {:?}", other.map(|(opened, _)| opened)),
            }
            // Without a check on opening, a reader finds the damage, after the records before it.
            let SegmentParts { catalog, .. } = open(&lazy, &NoSync).expect("open");
            let read: Vec<_> = SegmentSource(catalog).records(Position::ZERO).expect("readable").collect();
            let (error, before) = read.split_last().expect("a result");
            assert!(matches!(error, Err(ReadError::Damaged { .. })), "bit {bit} of {at}: {error:?}");
            let before: Vec<_> =
                before.iter().map(|record| Record::clone(record.as_ref().expect("a record"))).collect();
            assert_prefix(&before, &records);
            assert!(position_of(&before).plus(1) >= *first);
        }
        damaged.write_all_at(&[*byte], at as u64).expect("written");
    }
    assert_eq!(recover(&options).expect("open").1, records);
}
