//! Kafka of the tests: records outlive one broker of three, and no node outlives the test. Requires what
//! `tests/run` installs: Java, Kafka itself (`tests/kafka/install`), and kcat, an independent client.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use chancery_tests::kafka::{KafkaCluster, shared};
use chancery_tests::until;
use serde_json::Value;

/// Topic with one partition, accessed through kcat.
struct KcatTopic<'a> {
    cluster: &'a KafkaCluster,
    name: &'static str,
}

impl<'a> KcatTopic<'a> {
    fn create(cluster: &'a KafkaCluster, name: &'static str) -> KcatTopic<'a> {
        cluster.tool("kafka-topics", &["--create", "--topic", name]);
        KcatTopic { cluster, name }
    }

    /// Runs kcat. Returns its output if it succeeded.
    fn kcat(&self, args: &[&str], input: &str) -> Option<String> {
        let mut kcat = Command::new("kcat")
            .args(["-b", self.cluster.bootstrap(), "-t", self.name])
            // The leader is refreshed quickly, and paused brokers time out soon.
            .args(["-X", "topic.metadata.refresh.interval.ms=200", "-X", "socket.timeout.ms=2000"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null()) // kcat reports every unavailable broker
            .spawn()
            .expect("kcat runs (on Debian: apt-get install kcat)");
        kcat.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("kcat reads");
        let output = kcat.wait_with_output().expect("kcat ends");
        output.status.success().then(|| String::from_utf8(output.stdout).expect("text"))
    }

    fn write(&self, line: &str) {
        // A record whose acknowledgement is late is sent again: the broker must not store it twice.
        let idempotent = ["-P", "-X", "enable.idempotence=true"];
        self.kcat(&idempotent, &format!("{line}\n")).expect("the record is acknowledged");
    }

    fn lines(&self) -> Vec<String> {
        let all = self.kcat(&["-C", "-e", "-o", "beginning"], "").expect("the topic can be read");
        all.lines().map(str::to_owned).collect()
    }

    /// Id of the leading broker, and number of brokers in sync.
    fn leader_and_in_sync(&self) -> Option<(u32, usize)> {
        let metadata: Value = serde_json::from_str(&self.kcat(&["-L", "-J"], "")?).expect("JSON");
        let partition = &metadata["topics"][0]["partitions"][0];
        // -1 means no leader.
        let leader = u32::try_from(partition["leader"].as_i64()?).ok()?;
        Some((leader, partition["isrs"].as_array()?.len()))
    }

    /// Waits until a broker outside `away` leads. A returning broker may briefly report outdated metadata.
    fn leader_outside(&self, away: &[u32]) -> u32 {
        until(&format!("a broker leads that is not among {away:?}"), || {
            self.leader_and_in_sync().filter(|(leader, _)| !away.contains(leader))
        })
        .0
    }
}

#[test]
fn what_is_written_to_one_broker_can_be_read() {
    let topic = KcatTopic::create(shared(1), "words");
    topic.write("intent");
    topic.write("fact");
    assert_eq!(topic.lines(), ["intent", "fact"]);
}

#[test]
fn writes_and_reads_continue_without_one_broker_of_three() {
    let cluster = KafkaCluster::start(3);
    let topic = KcatTopic::create(&cluster, "words");
    topic.write("before");
    let first = topic.leader_outside(&[]);

    cluster.kill(first);
    topic.write("without the first");
    let second = topic.leader_outside(&[first]);
    assert_eq!(topic.lines(), ["before", "without the first"]);

    cluster.restart(first);
    until("the first is in sync again", || topic.leader_and_in_sync().filter(|(_, count)| *count == 3));
    cluster.pause(second);
    topic.write("while the second sleeps");
    topic.leader_outside(&[second]);
    cluster.resume(second);
    until("everything can be read", || {
        (topic.lines() == ["before", "without the first", "while the second sleeps"]).then_some(())
    });
}

/// Number of processes that were started for a directory.
fn processes_of(dir: &Path) -> usize {
    let dir = dir.to_str().expect("text").as_bytes();
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(dir.len()).any(|part| part == dir)).count()
}

#[test]
fn no_node_outlives_a_test_that_panics() {
    let (sender, dir) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let cluster = KafkaCluster::start(1);
        assert_ne!(processes_of(cluster.dir()), 0, "it runs");
        sender.send(cluster.dir().to_owned()).expect("the receiver exists");
        panic!("as a test does");
    });
    let dir = dir.recv().expect("it sent its directory");
    assert!(test.join().is_err());
    assert_eq!(processes_of(&dir), 0);
    assert!(!dir.exists());
}

#[test]
fn no_node_outlives_a_test_process_that_is_killed() {
    let mut test = Command::new(std::env::current_exe().expect("a test has a path"))
        .args(["--exact", "kafka::is_killed_while_its_node_runs", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(test.stdout.take().expect("it is piped")).lines();
    let dir =
        lines.map_while(Result::ok).find_map(|line| Some(PathBuf::from(line.strip_prefix("runs in ")?)));
    let dir = dir.expect("the other prints where its node is");
    assert_ne!(processes_of(&dir), 0, "it runs");
    test.kill().expect("it can be killed");
    test.wait().expect("it is ours");
    until("node, script and directory are gone", || (processes_of(&dir) == 0 && !dir.exists()).then_some(()));
}

#[test]
#[ignore = "runs in a process of its own, which the test above kills"]
fn is_killed_while_its_node_runs() {
    let cluster = KafkaCluster::start(1);
    println!("\nruns in {}", cluster.dir().display());
    // Blocks while the other process keeps its end open.
    std::io::stdin().read_line(&mut String::new()).expect("it can be read");
}
