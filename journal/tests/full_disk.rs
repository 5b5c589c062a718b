//! A file system that is full in the middle of a write: a real one, in a separate process whose files must
//! not grow beyond a limit.

#![allow(clippy::disallowed_macros, reason = "the parent process reads the output")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use chancery_events::id::Position;
use chancery_journal::conformance::{FLEET, TestWriter};
use chancery_journal::segments::{SegmentJournal, SegmentOptions, VerifyOutcome, verify};
use chancery_journal::{AppendError, CloseError, Journal, JournalDelivery};
use rustix::process::{Resource, Rlimit, setrlimit};

const DIR: &str = "CHANCERY_FULL_DISK";
const LIMIT: &str = "CHANCERY_FULL_DISK_LIMIT";
const PATIENCE: Duration = Duration::from_mins(1);

fn options(dir: PathBuf) -> SegmentOptions {
    SegmentOptions { first_segment: 4 << 10, largest_segment: 64 << 10, ..SegmentOptions::new(dir, FLEET) }
}

/// Appends until the journal stops, and prints the positions that were acknowledged.
#[test]
#[ignore = "the other test runs it, under a limit"]
fn a_writer_under_a_limit() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let (to, delivered) = channel();
    let sink = Box::new(move |delivery| drop(to.send(delivery)));
    let (journal, _) = SegmentJournal::open(&options(dir.into()), sink).expect("open");
    let limit = std::env::var(LIMIT).expect("a limit").parse().expect("a number");
    setrlimit(Resource::Fsize, Rlimit { current: Some(limit), maximum: Some(limit) }).expect("a limit");
    let mut author = TestWriter::new(1, None);
    let mut next = author.genesis();
    loop {
        // Several records in one group, so that the group is cut off.
        for _ in 0..5 {
            match journal.append(next.clone()) {
                Ok(()) => next = author.record(2, 300),
                Err(AppendError::Closed) => break,
                Err(error) => panic!("{error}"),
            }
        }
        match delivered.recv_timeout(PATIENCE).expect("an outcome") {
            JournalDelivery::Records(records) => {
                println!("acknowledged {}", records.last().expect("a record").last());
            }
            JournalDelivery::Stopped(error) => {
                println!("stopped {error}");
                break;
            }
            other => panic!("not {other:?}"),
        }
    }
    assert!(matches!(journal.append(next), Err(AppendError::Closed)));
    assert!(matches!(journal.close(), Err(CloseError::Stopped)));
    println!("ended");
}

#[test]
fn a_disk_that_is_full_in_the_middle_of_a_write_stops_the_journal_and_loses_nothing() {
    for limit in [5_000, 9_001, 20_000, 40_003] {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = dir.path().join("journal");
        // The signal would end the process; ignored, the write fails as it does on a disk that is full.
        let child = Command::new("sh")
            .args(["-c", r#"trap '' XFSZ; exec "$0" --exact a_writer_under_a_limit --ignored --nocapture"#])
            .arg(std::env::current_exe().expect("a path"))
            .env(DIR, &journal)
            .env(LIMIT, limit.to_string())
            .output()
            .expect("a process");
        let output = String::from_utf8(child.stdout).expect("text");
        assert!(child.status.success() && output.contains("ended\n"), "limit {limit}: {output}");
        let why = format!("stopped cannot create the next segment in {}: File too large", journal.display());
        assert!(output.contains(&why), "limit {limit}: {output}");
        let acknowledged: u64 = output
            .lines()
            .filter_map(|line| line.split_once("acknowledged ")?.1.parse().ok())
            .next_back()
            .unwrap_or_default();
        assert!(acknowledged > 0, "limit {limit}: {output}");

        assert_eq!(verify(&journal).expect("readable").outcome, VerifyOutcome::Intact);
        let (to, delivered) = channel();
        let sink = Box::new(move |delivery| drop(to.send(delivery)));
        let (journal, opened) = SegmentJournal::open(&options(journal), sink).expect("open");
        let head = opened.head.expect("a head");
        assert!(head.position >= Position::new(acknowledged), "limit {limit}: {head:?}, {acknowledged}");
        // With free space, the journal continues.
        let mut author = TestWriter::new(1, Some(head));
        for _ in 0..40 {
            journal.append(author.record(2, 300)).expect("queued");
        }
        journal.close().expect("closed");
        assert!(delivered.iter().all(|delivery| matches!(delivery, JournalDelivery::Records(_))));
    }
}
