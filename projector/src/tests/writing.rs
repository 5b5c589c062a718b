//! Writes of rows by several stores of a process.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::driver::TestDriver;
use super::tuning;
use crate::changes::RowWrites;
use crate::store::{FoundRows, RowStore};

const STORES: usize = 2;
const BATCHES: u32 = 12_000;
/// Number of large rows in a batch, and of different ones.
const ROWS: u32 = 5;
const KEYS: usize = 20;
const BYTES: usize = 60_000;
/// Number of batches that write rows before as many that delete them, so that sled truncates its file often.
const PHASE: u32 = 40;
/// Maximum time of a batch on a slow disk.
const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn stores_that_grow_and_shrink_never_stop_each_other() {
    let (written, batches) = channel();
    for number in 0..STORES {
        let written = written.clone();
        // A thread that never ends is left to the end of the process.
        thread::spawn(move || {
            let dir = tempfile::tempdir().expect("a directory");
            let found = FoundRows::open(dir.path(), tuning()).expect("rows");
            let store = RowStore::settle(found).expect("rows");
            let mut draws = TestDriver::new(number as u64 + 1);
            for batch in 0..BATCHES {
                let is_growing = (batch / PHASE).is_multiple_of(2);
                let mut row = |_| {
                    let key = draws.pick(KEYS).to_be_bytes();
                    (key.to_vec(), is_growing.then(|| vec![7; BYTES]))
                };
                let unwritten =
                    store.apply(RowWrites((0..ROWS).map(&mut row).collect()), None).expect("applied");
                unwritten.wait().expect("written");
                written.send(number).expect("a test that listens");
            }
            drop(store);
        });
    }
    drop(written);
    let mut counts = [0; STORES];
    while counts.iter().any(|count| *count < BATCHES) {
        let number = batches.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("batches: {counts:?}"));
        counts[number] += 1;
    }
}

#[test]
fn sled_and_the_store_share_one_collector() {
    // With two versions, the store would flush a collector that sled does not use.
    let locked = include_str!("../../../Cargo.lock");
    assert_eq!(locked.matches("name = \"crossbeam-epoch\"\n").count(), 1);
}
