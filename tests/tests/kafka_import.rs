//! Import of a journal from a directory into a real Kafka: complete or not at all, whatever dies meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_journal::conformance::{FLEET, TestWriter};
use chancery_journal::kafka::topics::{TopicAdmin, TopicRole};
use chancery_journal::kafka::{
    ImportError, KafkaClient, KafkaJournal, KafkaOptions, OpenedKafkaJournal, PartitionMismatch,
    PartitionState, import_journal, offsets,
};
use chancery_journal::segments::{self, SegmentJournal};
use chancery_journal::{AppendError, DeliverySink, Journal, JournalDelivery, is_mirror};
use chancery_tests::fault_campaigns::evidence::records;
use chancery_tests::kafka::{KafkaCluster, shared};
use chancery_tests::{ServerProcess, StandbyServers, program, until};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::json;
use tempfile::TempDir;

/// Longest timeout that brokers allow.
const LONG: Duration = Duration::from_mins(14);

fn nowhere() -> DeliverySink {
    Box::new(|_| ())
}

/// Server directory with a generated journal, and the journal's records.
struct WrittenJournal {
    directory: TempDir,
    records: Vec<Record>,
}

impl WrittenJournal {
    /// Generates `count` records of a kilobyte.
    fn new(count: usize) -> WrittenJournal {
        let directory = tempfile::tempdir().expect("a directory");
        let mut author = TestWriter::new(1, None);
        let mut records = vec![author.genesis()];
        records.extend((1..count).map(|_| author.record(1, 1000)));
        let written = WrittenJournal { directory, records };
        let (journal, _) = SegmentJournal::open(&written.mirror(), nowhere()).expect("open");
        for record in &written.records {
            let mut record = record.clone();
            while let Err(error) = journal.append(record) {
                let AppendError::Busy(back) = error else { panic!("{error}") };
                record = *back;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        journal.close().expect("closed");
        written
    }

    fn journal(&self) -> PathBuf {
        self.directory.path().join("fleets").join(FLEET).join("journal")
    }

    fn mirror(&self) -> segments::SegmentOptions {
        segments::SegmentOptions::new(self.journal(), FLEET)
    }
}

/// Separate topics on a shared cluster.
struct ImportTarget<'a> {
    cluster: &'a KafkaCluster,
    prefix: String,
}

impl<'a> ImportTarget<'a> {
    fn new(cluster: &'a KafkaCluster, prefix: &str) -> ImportTarget<'a> {
        let target = ImportTarget { cluster, prefix: prefix.into() };
        let copies = cluster.bootstrap().split(',').count() as i32;
        let made = async {
            let topics = TopicAdmin::of(&target.client())?;
            topics.make(&target.topic(), TopicRole::Journal, 1, copies).await?;
            topics.make(&format!("{prefix}.inbox"), TopicRole::Inbox, 1, copies).await
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(made).expect("made");
        target
    }

    fn client(&self) -> KafkaClient {
        KafkaClient::new(self.cluster.bootstrap(), BTreeMap::new()).expect("a client")
    }

    fn topic(&self) -> String {
        format!("{}.journal", self.prefix)
    }

    fn url(&self) -> String {
        format!("kafka://{}/{}", self.cluster.bootstrap(), self.prefix)
    }

    fn options(&self, mirror: segments::SegmentOptions) -> KafkaOptions {
        KafkaOptions { mirror, ..KafkaOptions::new(self.client(), &self.topic(), 0, "", FLEET) }
    }

    /// Opens the topic without a mirror. Returns how it was opened, and the records.
    fn read(&self) -> (OpenedKafkaJournal, Vec<Arc<Record>>) {
        let directory = tempfile::tempdir().expect("a directory");
        let options = self.options(segments::SegmentOptions::new(directory.path(), FLEET));
        let (journal, opened) = KafkaJournal::open(&options, nowhere()).expect("open");
        let records = journal.source().records(Position::FIRST).expect("readable");
        let records = records.map(|record| record.expect("a record")).collect();
        journal.close().expect("closed");
        (opened, records)
    }

    /// End offset, including records that may never count.
    fn written(&self) -> i64 {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.cluster.bootstrap()).set("group.id", "tests");
        let watcher: BaseConsumer =
            config.set("isolation.level", "read_uncommitted").create().expect("a client");
        offsets(&watcher, &self.topic(), 0).expect("offsets").1
    }

    fn command(&self, data: &Path, fleet: &str) -> Command {
        let mut command = Command::new(program());
        command.args(["import", "--journal", &self.url(), "--fleet", fleet]).arg(data);
        // A single broker cannot guarantee durability.
        command.env("CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS", "yes").stdin(Stdio::null());
        command
    }

    fn import(&self, data: &Path, fleet: &str) -> Output {
        self.command(data, fleet).output().expect("the program runs")
    }

    /// Starts an import that has written something on return.
    fn begin(&self, data: &Path) -> Child {
        let before = self.written();
        let mut command = self.command(data, FLEET);
        // An import that fails prints its error to the output of the tests.
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().expect("it runs");
        // Ending a predecessor's transaction also writes something.
        until("something is written", || {
            (self.written() > before + 1 || child.try_wait().expect("ours").is_some()).then_some(())
        });
        child
    }
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Checks that both journals are equal, record by record.
fn assert_same(found: &[Arc<Record>], wanted: &[Record]) {
    assert_eq!(found.len(), wanted.len());
    assert!(found.iter().zip(wanted).all(|(found, wanted)| **found == *wanted), "the same bytes");
}

/// Files of a directory with their bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.map(|path| (path.clone(), std::fs::read(&path).expect("a file"))).collect()
}

#[test]
fn a_moved_fleet_continues_where_it_was_and_no_server_continues_without_kafka() {
    let target = ImportTarget::new(shared(1), "moved");
    let apply = |score: u64| json!({"name": "T", "spec": {"type": "T", "score": score}});
    let mut server = ServerProcess::start();
    let first = server.client().intent("key-1", "capability.apply", &apply(1));
    assert_eq!(first.status, 201, "{}", first.text);
    let running = target.import(server.data(), "default");
    assert!(
        !running.status.success() && printed(&running).contains("locked by another server"),
        "{running:?}"
    );
    assert_eq!(server.stop(), Some(0));
    // A start without the import is refused with the hint.
    let mut early = Command::new(program());
    early
        .args(["serve", "--listen", "127.0.0.1:0", "--journal", &target.url(), "--data-dir"])
        .arg(server.data());
    let early = early.env("CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS", "yes").output().expect("the program runs");
    assert!(printed(&early).contains("was never on Kafka\ntry: chancery import"), "{early:?}");
    let before = records(server.data()).expect("a journal");
    let journal = server.data().join("fleets/default/journal");

    let done = target.import(server.data(), "default");
    assert!(done.status.success(), "{}", printed(&done));
    let head = before.last().expect("records");
    let wanted = format!(
        "fleet default: imported {} records ({} bytes), positions 1 to {}, head hash {}\n",
        before.len(),
        before.iter().map(|record| record.bytes().len()).sum::<usize>(),
        head.last(),
        head.hash()
    );
    assert!(printed(&done).starts_with(&wanted), "{}", printed(&done));
    assert!(is_mirror(&journal).expect("checked"));
    let again = target.import(server.data(), "default");
    assert!(
        printed(&again).starts_with(&wanted.replace("imported", "already there:")),
        "{}",
        printed(&again)
    );

    // A start without Kafka would split the history.
    let kept = files(&journal);
    let refused = server.try_start_again().expect_err("it is a mirror");
    assert!(
        refused.output.contains("the mirror of a journal on Kafka") && refused.output.contains("kafka.json"),
        "{refused:?}"
    );
    assert_eq!(files(&journal), kept, "nothing was changed");
    let url = target.url();
    for (name, value) in
        [("JOURNAL", &*url), ("KAFKA_ALLOW_UNSAFE_TOPICS", "yes"), ("KAFKA_SESSION_TIMEOUT", "6s")]
    {
        server.set(&format!("CHANCERY_{name}"), value);
    }
    server.start_again();
    let client = server.client();
    let repeated = client.decided("key-1", "capability.apply", &apply(1));
    assert_eq!(repeated.text, first.text);
    assert!(client.must("capability.apply", &apply(2)) > head.last().get());
    assert_eq!(server.stop(), Some(0));
    let after = records(server.data()).expect("a mirror");
    assert!(after.len() > before.len() && after[..before.len()] == before, "the same, and more");

    // An import overwrites no later records; an old copy is refused with a hint.
    let late = target.import(server.data(), "default");
    assert!(printed(&late).starts_with("fleet default: already there:"), "{}", printed(&late));
    let copy = tempfile::tempdir().expect("a directory");
    let old = copy.path().join("fleets/default/journal");
    let (old_journal, _) =
        SegmentJournal::open(&segments::SegmentOptions::new(&old, "default"), nowhere()).expect("open");
    for record in &before {
        old_journal.append((**record).clone()).expect("appended");
    }
    old_journal.close().expect("closed");
    let late = target.import(copy.path(), "default");
    assert!(
        printed(&late).contains("it contains this history, which servers continued at position"),
        "{}",
        printed(&late)
    );
    assert!(!is_mirror(&old).expect("checked"), "the directory is unchanged");
}

#[test]
fn a_directory_is_marked_as_a_mirror_before_anything_from_the_topic_is_in_it() {
    let mut standbys = StandbyServers::start(shared(1), "marked", 1, &[]);
    let server = &mut standbys.servers[0];
    let journal = server.data().join("fleets/default/journal");
    assert!(is_mirror(&journal).expect("checked"));
    server.kill();
    server.set("CHANCERY_JOURNAL", "embedded");
    let refused = server.try_start_again().expect_err("it is a mirror");
    assert!(refused.output.contains("the mirror of a journal on Kafka"), "{refused:?}");
    // An operator can remove the mark.
    std::fs::remove_file(journal.join("kafka.json")).expect("a file");
    server.start_again();
    // A directory that the topic does not contain is no mirror.
    assert_eq!(server.stop(), Some(0));
    let other = ImportTarget::new(shared(1), "marked-not");
    let options = KafkaOptions {
        mirror: segments::SegmentOptions::new(&journal, "default"),
        ..KafkaOptions::new(other.client(), &other.topic(), 0, "", "default")
    };
    assert!(KafkaJournal::open(&options, nowhere()).is_err(), "the topic is empty");
    assert!(!is_mirror(&journal).expect("checked"));
}

#[test]
fn what_is_damaged_torn_empty_or_not_there_is_not_imported() {
    let target = ImportTarget::new(shared(1), "refused");
    let written = WrittenJournal::new(50);
    let data = written.directory.path();
    let unknown = target.import(data, "unknown");
    assert!(printed(&unknown).contains("cannot import journal of fleet unknown"), "{}", printed(&unknown));
    let segment = written.journal().join("00000000000000000001.seg");
    let whole = std::fs::read(&segment).expect("a segment");
    let refused = |bytes: &[u8], wanted: &str| {
        std::fs::write(&segment, bytes).expect("written");
        let output = target.import(data, FLEET);
        assert!(
            !output.status.success() && printed(&output).contains(wanted),
            "{wanted}: {}",
            printed(&output)
        );
        assert_eq!(std::fs::read(&segment).expect("a segment"), bytes, "the directory is unchanged");
        assert!(!is_mirror(&written.journal()).expect("checked"));
    };
    let mut damaged = whole.clone();
    damaged[2000] ^= 1;
    refused(&damaged, "00000000000000000001.seg: damaged at byte");
    let end = whole.iter().rposition(|byte| *byte != 0).expect("frames") + 1;
    let mut torn = whole.clone();
    // After the last marker: a frame's start.
    torn[end + 16..end + 24].copy_from_slice(b"\xffCh\xfe1234");
    let at = torn.iter().rposition(|byte| *byte != 0).expect("frames");
    assert!(at > end);
    refused(&torn, "00000000000000000001.seg: torn at byte");
    refused(&[], "it contains no records");
    assert_eq!(target.written(), 0, "nothing was sent");
    std::fs::write(&segment, whole).expect("written");
    assert!(target.import(data, FLEET).status.success());
    assert_same(&target.read().1, &written.records);
}

#[test]
fn a_journal_that_is_shorter_than_the_read_models_prove_is_not_imported() {
    let target = ImportTarget::new(shared(1), "shorter");
    let mut server = ServerProcess::start();
    let fleet = server.data().join("fleets/default");
    let (journal, aside) = (fleet.join("journal"), fleet.join("aside"));
    server.client().must("capability.apply", &json!({"name": "a", "spec": {"type": "T", "score": 1}}));
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    let copied = Command::new("cp").arg("-a").args([&journal, &aside]).status().expect("cp");
    assert!(copied.success());
    server.start_again();
    server.client().must("capability.apply", &json!({"name": "b", "spec": {"type": "T", "score": 1}}));
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    std::fs::remove_dir_all(&journal).expect("removed");
    std::fs::rename(&aside, &journal).expect("put back");
    std::fs::remove_dir_all(fleet.join("snapshots")).expect("removed");
    let refused = target.import(server.data(), "default");
    assert!(!refused.status.success(), "{}", printed(&refused));
    assert!(printed(&refused).contains("the cursor of the read models in "), "{}", printed(&refused));
    assert_eq!(target.written(), 0, "nothing was sent");
}

#[test]
fn a_partition_that_contains_anything_is_not_changed() {
    let target = ImportTarget::new(shared(1), "holds");
    let (written, other) = (WrittenJournal::new(20), WrittenJournal::new(2));
    import_journal(&target.options(written.mirror()), LONG).expect("filled");
    let before = target.written();
    let mut author = TestWriter::new(2, None);
    let third = WrittenJournal {
        directory: tempfile::tempdir().expect("a directory"),
        records: vec![author.genesis()],
    };
    let (journal, _) = SegmentJournal::open(&third.mirror(), nowhere()).expect("open");
    journal.append(third.records[0].clone()).expect("appended");
    journal.close().expect("closed");
    for (written, wanted) in [
        (&other, PartitionMismatch::Further(Position::new(3))),
        (&third, PartitionMismatch::Differs(Position::FIRST)),
    ] {
        match import_journal(&target.options(written.mirror()), LONG) {
            Err(ImportError::NotEmpty { found, .. }) => assert_eq!(found, wanted),
            other => panic!("{other:?}"),
        }
        assert!(!is_mirror(&written.journal()).expect("checked"));
    }
    assert_eq!(target.written(), before, "nothing was sent");
    let emptied = ImportTarget::new(shared(1), "holds-no-more");
    match import_journal(&emptied.options(written.mirror()), LONG) {
        Err(ImportError::Mirror { topic, partition: 0, .. }) => assert_eq!(*topic, *target.topic()),
        other => panic!("a second history would start: {other:?}"),
    }
    std::fs::remove_file(written.journal().join("kafka.json")).expect("a mirror");
    import_journal(&emptied.options(written.mirror()), LONG).expect("filled");
    let file = written.directory.path().join("delete.json");
    let list = format!(
        r#"{{"partitions": [{{"topic": "{}", "partition": 0, "offset": -1}}], "version": 1}}"#,
        emptied.topic()
    );
    std::fs::write(&file, list).expect("written");
    shared(1).tool("kafka-delete-records", &["--offset-json-file", file.to_str().expect("a path")]);
    match import_journal(&emptied.options(written.mirror()), LONG) {
        Err(ImportError::NotEmpty { found: PartitionMismatch::BeginsLate(_), .. }) => {}
        other => panic!("no server would read it: {other:?}"),
    }
}

#[test]
fn what_takes_too_long_counts_for_nothing_and_may_be_tried_again() {
    let target = ImportTarget::new(shared(1), "too-long");
    let written = WrittenJournal::new(100);
    let options = target.options(written.mirror());
    match import_journal(&options, Duration::ZERO) {
        Err(ImportError::TooLong { sent: 1, records: 100, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(!is_mirror(&written.journal()).expect("checked"), "the directory is unchanged");
    let (opened, records) = target.read();
    assert_eq!((opened.head, opened.skipped, records.len()), (None, 0, 0), "no reader sees it");
    let filled = import_journal(&options, LONG).expect("filled");
    assert_eq!((filled.found, filled.records), (PartitionState::Empty, 100));
    assert_same(&target.read().1, &written.records);
}

#[test]
fn an_import_that_is_killed_counts_for_nothing_and_the_next_one_makes_one_history() {
    let written = WrittenJournal::new(20_000);
    for round in 0..2 {
        let target = ImportTarget::new(shared(1), &format!("killed-{round}"));
        for _ in 0..=round {
            let mut child = target.begin(written.directory.path());
            if round > 0 {
                let now = target.written();
                until("more of it is written, or all", || {
                    (target.written() > now + 3000 || child.try_wait().expect("ours").is_some()).then_some(())
                });
            }
            child.kill().expect("it can be killed");
            child.wait().expect("it is ours");
            // An open transaction at most delays readers, and is invisible to them.
            let (opened, found) = target.read();
            assert!(found.is_empty() || found.len() == written.records.len(), "{opened:?}");
        }
        let done = target.import(written.directory.path(), FLEET);
        assert!(done.status.success(), "{}", printed(&done));
        let (opened, found) = target.read();
        assert_eq!(opened.skipped, 0);
        assert_same(&found, &written.records);
        // As if that topic were lost.
        std::fs::remove_file(written.journal().join("kafka.json")).expect("a mirror");
    }
}

#[test]
fn a_journal_that_starts_after_the_first_record_of_an_import_has_not_started() {
    use rustix::process::{Pid, Signal, kill_process};
    let target = ImportTarget::new(shared(1), "behind");
    let written = WrittenJournal::new(40_000);
    let mut child = target.begin(written.directory.path());
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::STOP).expect("it can be stopped");
    // A server that finds no records takes over, and receives nothing.
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = target.options(segments::SegmentOptions::new(directory.path(), FLEET));
    options.outcome = Duration::from_secs(3);
    let (to, delivered) = std::sync::mpsc::channel();
    let (journal, opened) =
        KafkaJournal::open(&options, Box::new(move |delivery| drop(to.send(delivery)))).expect("open");
    assert_eq!(opened.head, None);
    journal.append(TestWriter::new(2, None).genesis()).expect("sent");
    assert!(matches!(delivered.recv().expect("delivered"), JournalDelivery::OutcomeUnknown(_)));
    // Longer than the import waits for an acknowledgment: time in which it does not run does not count.
    std::thread::sleep(Duration::from_secs(62));
    kill_process(pid, Signal::CONT).expect("it can be woken");
    assert!(child.wait().expect("it is ours").success());
    let mut seen: usize = 0;
    let mut skipped = 0;
    while seen < written.records.len() || skipped == 0 {
        match delivered.recv_timeout(Duration::from_mins(1)).expect("delivered") {
            JournalDelivery::Records(records) => seen += records.len(),
            JournalDelivery::Skipped(_) => skipped += 1,
            other => panic!("{other:?}"),
        }
    }
    journal.close().expect("closed");
    let (opened, found) = target.read();
    assert_eq!(opened.skipped, 1);
    assert_same(&found, &written.records);
}

#[test]
fn a_broker_that_dies_while_it_is_imported_loses_nothing_and_doubles_nothing() {
    for brokers in [3, 1] {
        let cluster = KafkaCluster::start(brokers);
        let target = ImportTarget::new(&cluster, "broker");
        let written = WrittenJournal::new(40_000);
        let leader = {
            let watcher: BaseConsumer =
                target.client().config().set("group.id", "tests").create().expect("a client");
            let topics =
                watcher.fetch_metadata(Some(&target.topic()), Duration::from_secs(30)).expect("metadata");
            u32::try_from(topics.topics()[0].partitions()[0].leader()).expect("a leader")
        };
        std::thread::scope(|scope| {
            let options = target.options(written.mirror());
            let filling = scope.spawn(move || import_journal(&options, LONG));
            until("something is written", || (target.written() > 0).then_some(()));
            println!("in the middle of it: {}", !filling.is_finished());
            // Clients with any metadata of the leader get an answer meanwhile.
            let target = &target;
            let asking = scope.spawn(move || {
                while !filling.is_finished() {
                    let watcher = target.client().watcher().expect("a client");
                    // The only broker answers no request between its end and its start.
                    let (first, _) =
                        until("the offsets are known", || offsets(&watcher, &target.topic(), 0).ok());
                    assert_eq!(first, 0);
                }
                filling.join().expect("no panic").expect("filled")
            });
            cluster.kill(leader);
            cluster.restart(leader);
            let filled = asking.join().expect("no panic");
            assert_eq!(filled.records, 40_000);
        });
        let (opened, found) = target.read();
        assert_eq!(opened.skipped, 0);
        assert_same(&found, &written.records);
    }
}

#[test]
fn a_lost_topic_is_filled_again_from_a_mirror_and_all_servers_continue() {
    let mut standbys = StandbyServers::start(shared(1), "lost", 2, &[]);
    let decider = standbys.decider();
    for score in 0..20 {
        let data = json!({"name": "T", "spec": {"type": "T", "score": score}});
        standbys.servers[decider].client().must("capability.apply", &data);
    }
    // The other server misses the end.
    let (first, other) = (decider, 1 - decider);
    assert_eq!(standbys.servers[other].stop(), Some(0));
    let last = json!({"name": "T", "spec": {"type": "T", "score": 99}});
    standbys.servers[first].client().must("capability.apply", &last);
    assert_eq!(standbys.servers[first].stop(), Some(0));
    let before = records(standbys.servers[first].data()).expect("a mirror");

    shared(1).tool("kafka-topics", &["--delete", "--topic", "lost.journal"]);
    until("it is gone", || {
        (!shared(1).tool("kafka-topics", &["--list"]).lines().any(|topic| topic == "lost.journal"))
            .then_some(())
    });
    let target = ImportTarget::new(shared(1), "lost");
    let refused = standbys.servers[first].try_start_again().expect_err("the topic is empty");
    assert!(refused.output.contains("topic and mirror differ at position"), "{refused:?}");
    let done = target.import(standbys.servers[first].data(), "default");
    assert!(done.status.success(), "{}", printed(&done));
    standbys.servers[first].start_again();
    // Offsets of the old topic are not valid in the new one.
    let journal = standbys.servers[other].data().join("fleets/default/journal");
    std::fs::remove_file(journal.join("kafka.json")).expect("a file");
    standbys.servers[other].start_again();
    standbys.decider();
    let more = json!({"name": "U", "spec": {"type": "U", "score": 1}});
    standbys.servers[other].client().must("capability.apply", &more);
    for server in &mut standbys.servers {
        assert_eq!(server.stop(), Some(0), "{}", server.log());
        let after = records(server.data()).expect("a mirror");
        assert!(after.len() > before.len() && after[..before.len()] == before, "the same, and more");
    }
}
