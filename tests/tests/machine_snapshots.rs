//! Snapshots of disks that guests of the real QEMU write to, by the real program.
//!
//! | case | test |
//! |---|---|
//! | a guest that writes in order; kills of server, of supervisor and of QEMU meanwhile | `each_snapshot_is_a_state_that_the_disk_had` |
//! | a stop, a deletion of the snapshot meanwhile | `a_stop_is_final_and_a_deletion_leaves_nothing` |
//! | a guest that starts from a snapshot | `a_guest_starts_from_a_snapshot` |

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use chancery_tests::{ServerProcess, until};
use serde_json::{Value, json};

use crate::machine_disks::{RunningGuest, TestPermit, deploy, executor, machine, machines, parent_of, start};

/// Capacity of the disk, in bytes.
const CAPACITY: u64 = 16 << 20;
/// Number of sectors that the guest writes to.
const PARTS: u32 = 64;

/// Returns a server with a guest that writes to the volume `db` in order.
fn writing() -> (ServerProcess, RunningGuest) {
    let server = machines(|_| {});
    deploy(&server.client(), "db", "d1", &with_disk("db", "plan=db"));
    let mut guest = RunningGuest::wait(&server, "db", |_| true);
    guest.must("q data 20", "ok");
    (server, guest)
}

/// Returns a payload whose disk is the volume.
fn with_disk(volume: &str, cmdline: &str) -> Value {
    let mut payload = machine(&[("data", CAPACITY)]);
    payload["volumes"][0]["volume"] = json!(volume);
    payload["vm"]["cmdline"] = json!(cmdline);
    payload
}

fn request(server: &ServerProcess, snapshot: &str) {
    server.client().must("volume.snapshot", &json!({"name": "db", "snapshot": snapshot}));
}

/// Returns the row of a volume, if it exists.
fn row(server: &ServerProcess, volume: &str) -> Option<Value> {
    server.client().items("volumes").into_iter().find(|row| row["name"] == volume)
}

/// Waits until the volume is ready, and returns the number of the last write on its disk. Every earlier write is on it, and no later one.
fn last_write(server: &ServerProcess, volume: &str) -> u32 {
    let id = until(&format!("{volume} is ready"), || {
        let row = row(server, volume).unwrap_or_else(|| panic!("{volume} was deleted"));
        (row["state"] == "ready").then(|| row["id"].as_str().expect("an id").to_owned())
    });
    let disk = executor(server).join("volumes").join(id).join("data/disk");
    let disk = std::fs::File::open(disk).expect("a disk");
    assert_eq!(disk.metadata().expect("a disk").len(), CAPACITY, "{volume}");
    let mut found = Vec::new();
    for part in 0..PARTS {
        let mut sector = [0; 512];
        disk.read_exact_at(&mut sector, u64::from(part) * (CAPACITY / u64::from(PARTS))).expect("a sector");
        let words: Vec<_> =
            sector.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert!(words.iter().all(|word| *word == words[0]), "{volume}: a sector was torn");
        found.push(words[0]);
    }
    let last = found.iter().copied().max().expect("parts");
    for (part, number) in (0..PARTS).zip(&found) {
        let wanted = last.saturating_sub((last + PARTS - part) % PARTS);
        assert_eq!(*number, wanted, "{volume}: part {part} of {found:?}");
    }
    last
}

fn delete(server: &ServerProcess, volume: &str) {
    server.client().must("volume.delete", &json!({"name": volume}));
    until(&format!("{volume} is deleted"), || row(server, volume).is_none().then_some(()));
}

#[test]
fn each_snapshot_is_a_state_that_the_disk_had() {
    let _permit = TestPermit::take();
    let (mut server, mut guest) = writing();
    let count: u32 = std::env::var("SNAPSHOTS").ok().and_then(|count| count.parse().ok()).unwrap_or(24);
    let mut before = 0;
    for number in 0..count {
        let name = format!("copy-{number}");
        request(&server, &name);
        std::thread::sleep(Duration::from_millis(u64::from(number * 37 % 120)));
        match number % 6 {
            1 => {
                server.kill();
                server.start_again();
            }
            3 if parent_of(guest.qemu(&server).expect("it runs")).as_raw_nonzero().get() != 1 => {
                guest.kill(&server, parent_of);
            }
            5 => {
                guest.kill(&server, |qemu| qemu);
                guest = guest.next(&server);
                guest.must("q data 20", "ok");
            }
            _ => {}
        }
        let last = last_write(&server, &name);
        assert!(last >= before, "{name}: {last} after {before}");
        before = last;
        delete(&server, &name);
    }
    let output = server.run(&["logs", &guest.replica, "--stdout"]).stdout;
    assert!(!String::from_utf8_lossy(&output).contains("write failed"), "the guest noticed none of it");
}

#[test]
fn a_stop_is_final_and_a_deletion_leaves_nothing() {
    let _permit = TestPermit::take();
    let (server, guest) = writing();
    let client = server.client();
    request(&server, "copy");
    client.must("replica.stop", &json!({"name": guest.replica}));
    client.wait_for("db", "stopped", 1);
    assert!(last_write(&server, "copy") > 0);
    assert_eq!(client.items("replicas?plan=db")[0]["phase"], "stopped");
    delete(&server, "copy");
    start(&client, &guest.replica);
    let mut guest = guest.next(&server);
    guest.must("q data 20", "ok");
    request(&server, "copy");
    delete(&server, "copy");
    let volumes = executor(&server).join("volumes");
    until("nothing of it is left", || {
        let entries = std::fs::read_dir(&volumes).expect("volumes").flatten();
        let copies = entries.filter(|entry| {
            let path = entry.path();
            path.join("data.new").exists() || path.join("doomed").exists()
        });
        (copies.count() == 0).then_some(())
    });
    guest.must("s data", "ok 32768");
}

#[test]
fn a_guest_starts_from_a_snapshot() {
    let _permit = TestPermit::take();
    let (server, mut guest) = writing();
    let client = server.client();
    guest.must("w data 1 100 7", "ok");
    let printed = server.cli(&["snapshot", "volume", "db", "--as", "copy", "--wait"]);
    assert_eq!(printed, "volume/db as volume/copy requested\nvolume/copy ready\n");
    guest.must("w data 1 100 8", "ok");
    assert_eq!(row(&server, "copy").expect("a volume")["source"], "db");
    deploy(&client, "other", "d1", &with_disk("copy", "plan=other"));
    let mut other = RunningGuest::wait(&server, "other", |_| true);
    other.must("v data 1 100 7", "ok");
    guest.must("v data 1 100 8", "ok");
    let again = server.run(&["snapshot", "volume", "db", "--as", "copy"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("volume copy exists already"), "{again:?}");
}
