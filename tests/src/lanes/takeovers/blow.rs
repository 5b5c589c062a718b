//! The faults of the lane.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::letters::{JOURNAL, Letters, leave_transaction_open, put_foreign, put_good};
use crate::clock::ServerClock;
use crate::kafka::Cluster;
use crate::kafka::proxy::ProxyFaults;
use crate::lanes::evidence::records;
use crate::lanes::load::Load;
use crate::sim::Random;
use crate::{Server, Standbys, decides, program, until};

/// What the group waits before a server that is silent is out of it.
const SESSION: Duration = Duration::from_secs(6);
/// What a slow network passes on in a second, in bytes.
const SLOW: u64 = 1_000_000;
/// Inbox messages that come while nobody decides, and how large each is: together more than comes over a slow network in
/// the time that a request may take, however much a reader asks for.
const BACKLOG: u64 = 100;
const BACKLOG_BYTES: usize = 100_000;
/// Servers have so long to find out that their journal has lost its end, while one broker of three is there.
const KNOWN: Duration = Duration::from_secs(40);

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blow {
    /// `kill -9` of the server that decides. Another one decides.
    KillDecider,
    /// The server that decides dies, and messages of topics come to others seconds late. No inbox message is left out.
    SlowFetches,
    /// The server that decides stands still past its session, and wakes. Another one decides; nothing of the sleeper counts.
    PauseDecider,
    /// A foreign producer leaves a transaction open on the topics of journal and inbox. It goes on when the brokers end that.
    OpenTransaction,
    /// `kill -9` of the broker that leads the journal. Another broker leads.
    KillLeader,
    /// No broker can be reached.
    CutConnections,
    /// The server that decides is asked to stop, and retention has deleted all of the events topic. Another one decides at
    /// once, and writes the events that follow.
    EmptyEvents,
    /// A broker stands still, and wakes.
    PauseBroker,
    /// A broker dies, and comes back with an empty disk.
    WipeBroker,
    /// `kill -9` of Kafka's controller.
    KillController,
    /// All brokers take requests, and answer none.
    StallResponses,
    /// Two brokers of three die: fewer in sync than the topic wants. Nothing is acknowledged until one is back.
    KillTwoBrokers,
    /// The server that decides is asked to stop, and responses of partitions overtake each other.
    ReorderResponses,
    /// Topics get another partition.
    AddPartitions,
    /// Topics are compacted, for a while.
    Compact,
    /// Every broker dies. It goes on when they are back.
    KillBrokers,
    /// The events topic alone cannot be written, for a while. The fleet is decided for meanwhile.
    CloseEvents,
    /// The clock of the server that decides leaps, and the server dies. Another one, with another clock, decides.
    LeapClock,
    /// An import of another journal into the topics is killed, while the fleet is decided for.
    KillImport,
    /// A broker leads that lacks records which were acknowledged. Every server ends; the topic is filled again from a mirror.
    ElectUnclean,
    /// An inbox message is of a codec that no client knows. It holds the inbox up until it is skipped.
    BreakLetter,
    /// The server that decides dies, and the way from each broker takes a megabyte in a second. Another one decides, and reads
    /// what has come into the inbox meanwhile.
    SlowNetwork,
    /// The broker of inbox and events topic stands still, and has the only copies. `/readyz` says so; the fleet is decided for
    /// meanwhile.
    PausePosts,
}

/// What is struck.
pub(super) struct Struck<'a> {
    /// Which server decides.
    pub(super) decider: usize,
    pub(super) standbys: &'a mut Standbys,
    pub(super) cluster: &'a Cluster,
    pub(super) load: &'a Load,
    pub(super) letters: &'a Letters,
    /// Of each server.
    pub(super) clocks: &'a [ServerClock],
    pub(super) random: &'a mut Random,
    /// The last position whose event was deleted from the events topic.
    pub(super) deleted: &'a mut Option<u64>,
}

impl Blow {
    /// In the order in which they come.
    pub(super) const ALL: [Blow; 23] = [
        Blow::KillDecider,
        Blow::SlowFetches,
        Blow::PauseDecider,
        Blow::OpenTransaction,
        Blow::KillLeader,
        Blow::CutConnections,
        Blow::EmptyEvents,
        Blow::PauseBroker,
        Blow::WipeBroker,
        Blow::KillController,
        Blow::StallResponses,
        Blow::KillTwoBrokers,
        Blow::ReorderResponses,
        Blow::AddPartitions,
        Blow::Compact,
        Blow::KillBrokers,
        Blow::CloseEvents,
        Blow::LeapClock,
        Blow::KillImport,
        Blow::ElectUnclean,
        Blow::BreakLetter,
        Blow::SlowNetwork,
        Blow::PausePosts,
    ];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Blow::KillDecider => "kill of the deciding server",
            Blow::SlowFetches => "slow fetches after a kill of the deciding server",
            Blow::PauseDecider => "pause of the deciding server past its session",
            Blow::OpenTransaction => "foreign transaction left open",
            Blow::KillLeader => "kill of the leading broker",
            Blow::CutConnections => "cut of all connections",
            Blow::EmptyEvents => "events topic emptied",
            Blow::PauseBroker => "pause of a broker",
            Blow::WipeBroker => "wiped disk of a broker",
            Blow::KillController => "kill of the controller",
            Blow::StallResponses => "stall of all responses",
            Blow::KillTwoBrokers => "fewer brokers in sync than wanted",
            Blow::ReorderResponses => "responses in another order",
            Blow::AddPartitions => "more partitions",
            Blow::Compact => "compaction turned on",
            Blow::KillBrokers => "kill of every broker",
            Blow::CloseEvents => "events topic not writable",
            Blow::LeapClock => "leap of the deciding server's clock",
            Blow::KillImport => "kill of an import",
            Blow::ElectUnclean => "unclean election",
            Blow::BreakLetter => "inbox message of an unknown codec",
            Blow::SlowNetwork => "slow network after a kill of the deciding server",
            Blow::PausePosts => "pause of the broker of inbox and events topic",
        }
    }

    /// Does it, and has everything up again. How long it took until another server decided, if one had to.
    pub(super) fn strike(self, struck: &mut Struck<'_>) -> Result<Option<Duration>> {
        let cluster = struck.cluster;
        let took = match self {
            Blow::KillDecider => struck.kill_decider(),
            Blow::PauseDecider => struck.pause_decider()?,
            Blow::SlowFetches => {
                let slow_fetches = Duration::from_millis(struck.random.between(2500, 4000));
                cluster.set_faults(ProxyFaults { slow_fetches, ..ProxyFaults::default() });
                let took = struck.kill_decider();
                cluster.set_faults(ProxyFaults::default());
                took
            }
            Blow::SlowNetwork => {
                cluster.set_faults(ProxyFaults { bytes_per_second: SLOW, ..ProxyFaults::default() });
                let took = struck.read_backlog()?;
                cluster.set_faults(ProxyFaults::default());
                took
            }
            Blow::ReorderResponses => {
                let disorder = Duration::from_millis(struck.random.between(200, 800));
                cluster.set_faults(ProxyFaults { disorder, ..ProxyFaults::default() });
                let took = struck.stop_decider()?;
                std::thread::sleep(Duration::from_secs(2));
                cluster.set_faults(ProxyFaults::default());
                took
            }
            Blow::EmptyEvents => {
                struck.empty_events()?;
                struck.stop_decider()?
            }
            Blow::LeapClock => {
                // Never far from the others: what has a date is decided by whoever decides.
                let seconds = struck.random.between(1, 60) as i64;
                let forth = struck.random.chance(500);
                struck.clocks[struck.decider].set(if forth { seconds } else { -seconds });
                struck.sleep(100, 1500);
                struck.kill_decider()
            }
            Blow::OpenTransaction => {
                leave_transaction_open(cluster.bootstrap(), Duration::from_secs(2))?;
                return Ok(None);
            }
            Blow::KillImport => {
                struck.kill_import()?;
                return Ok(None);
            }
            Blow::ElectUnclean => {
                struck.elect_unclean()?;
                return Ok(None);
            }
            Blow::AddPartitions => {
                struck.add_partitions();
                return Ok(None);
            }
            Blow::Compact => {
                struck.compact();
                return Ok(None);
            }
            Blow::CloseEvents => {
                struck.close_events()?;
                return Ok(None);
            }
            Blow::BreakLetter => {
                struck.break_letter()?;
                return Ok(None);
            }
            Blow::PausePosts => {
                struck.pause_posts()?;
                return Ok(None);
            }
            Blow::CutConnections
            | Blow::StallResponses
            | Blow::KillLeader
            | Blow::PauseBroker
            | Blow::WipeBroker
            | Blow::KillController
            | Blow::KillTwoBrokers
            | Blow::KillBrokers => {
                self.strike_brokers(struck);
                return Ok(None);
            }
        };
        Ok(Some(took))
    }

    /// Those of brokers, and of the way to them.
    fn strike_brokers(self, struck: &mut Struck<'_>) {
        let cluster = struck.cluster;
        let pass = |faults: ProxyFaults, struck: &mut Struck<'_>| {
            cluster.set_faults(faults);
            struck.sleep(1000, 7000);
            cluster.set_faults(ProxyFaults::default());
        };
        let broker = 1 + struck.random.below(3) as u32;
        match self {
            Blow::CutConnections => pass(ProxyFaults { cuts: true, ..ProxyFaults::default() }, struck),
            Blow::StallResponses => pass(ProxyFaults { stalls: true, ..ProxyFaults::default() }, struck),
            Blow::KillLeader => {
                let leader = leader(cluster, JOURNAL);
                cluster.kill(leader);
                std::thread::sleep(Duration::from_secs(3));
                cluster.restart(leader);
            }
            Blow::PauseBroker => {
                cluster.pause(broker);
                struck.sleep(2000, 5000);
                cluster.resume(broker);
            }
            Blow::WipeBroker => {
                cluster.kill(broker);
                cluster.wipe(broker);
                cluster.restart(broker);
                in_sync(cluster);
            }
            Blow::KillController => {
                cluster.kill(100);
                struck.sleep(500, 3000);
                cluster.restart(100);
            }
            Blow::KillTwoBrokers => {
                cluster.kill(1);
                cluster.kill(2);
                struck.sleep(1000, 4000);
                cluster.restart(1);
                cluster.restart(2);
            }
            _ => {
                (1..=3).for_each(|broker| cluster.kill(broker));
                (1..=3).for_each(|broker| cluster.restart(broker));
            }
        }
    }
}

impl Struck<'_> {
    pub(super) fn sleep(&mut self, low: u64, high: u64) {
        std::thread::sleep(Duration::from_millis(self.random.between(low, high)));
    }

    /// The clients ask another server.
    fn move_clients(&self) {
        self.load.moved(&self.standbys.servers[(self.decider + 1) % 3].url());
    }

    /// Waits until another server decides.
    fn another_decides(&self) {
        until("another server decides", || self.standbys.decides().filter(|now| *now != self.decider));
    }

    fn kill_decider(&mut self) -> Duration {
        let began = Instant::now();
        self.standbys.servers[self.decider].kill();
        self.move_clients();
        self.another_decides();
        let took = began.elapsed();
        self.standbys.servers[self.decider].start_again();
        took
    }

    /// Has the decider killed, and more put into the inbox than a reader gets at once. The next one answers it.
    fn read_backlog(&mut self) -> Result<Duration> {
        let (began, brokers) = (Instant::now(), self.cluster.bootstrap());
        self.standbys.servers[self.decider].kill();
        self.move_clients();
        // No message is like another: what is alike would be small on its way.
        let mut random = Random::new(self.random.bits());
        let noise: String = (0..BACKLOG_BYTES).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
        let backlog: Vec<_> = (0..BACKLOG).map(|number| format!("{number} {noise}")).collect();
        put_foreign(brokers, &backlog)?;
        let behind = self.random.bits();
        put_good(brokers, &format!("slow-{behind}"), behind)?;
        self.another_decides();
        let took = began.elapsed();
        let path = format!("/v1/fleets/default/capabilities/by-slow-{behind}");
        let survivor = &self.standbys.servers[(self.decider + 1) % 3];
        until("the inbox is read over a slow network", || {
            (survivor.client().get(&path).status == 200).then_some(())
        });
        self.standbys.servers[self.decider].start_again();
        Ok(took)
    }

    fn stop_decider(&mut self) -> Result<Duration> {
        let began = Instant::now();
        let server = &mut self.standbys.servers[self.decider];
        let code = server.stop();
        ensure!(code == Some(0), "it stops with {code:?}:\n{}", server.log());
        self.move_clients();
        self.another_decides();
        let took = began.elapsed();
        self.standbys.servers[self.decider].start_again();
        Ok(took)
    }

    fn pause_decider(&mut self) -> Result<Duration> {
        let (began, decider) = (Instant::now(), self.decider);
        self.standbys.servers[decider].signal(Signal::STOP);
        self.move_clients();
        std::thread::sleep(SESSION);
        // The sleeper does not answer: only the others are asked.
        let servers = &self.standbys.servers;
        until("another server decides", || {
            (0..3).filter(|at| *at != decider).find(|at| decides(&servers[*at], "default") == Some(true))
        });
        let took = began.elapsed();
        self.sleep(0, 2000);
        self.standbys.servers[decider].signal(Signal::CONT);
        until("the sleeper has noticed", || {
            (decides(&self.standbys.servers[decider], "default") == Some(false)).then_some(())
        });
        let server = &mut self.standbys.servers[decider];
        ensure!(server.ended().is_none(), "the sleeper ended:\n{}", server.log());
        Ok(took)
    }

    /// An intent is acknowledged while something else is not as it should be.
    pub(super) fn decides_on(&mut self) {
        let key = format!("meanwhile-{}", self.random.bits());
        let data = json!({"name": "meanwhile", "spec": {"type": "T", "score": self.random.below(1000)}});
        let server = &self.standbys.servers[self.decider];
        until("an intent is acknowledged meanwhile", || {
            (server.client().intent(&key, "capability.apply", &data).status / 100 == 2).then_some(())
        });
    }

    /// Begins to import the journal of another fleet, again and again, and kills that.
    fn kill_import(&mut self) -> Result<()> {
        let mut other = Server::start();
        other.client().must("capability.apply", &json!({"name": "other", "spec": {"type": "T", "score": 1}}));
        let code = other.stop();
        ensure!(code == Some(0), "it stops with {code:?}:\n{}", other.log());
        for _ in 0..3 {
            let mut import = Command::new(program())
                .args(["import", "--journal", self.standbys.journal()])
                .arg(other.data())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            self.sleep(0, 600);
            // It may have ended by itself.
            let _ = import.kill();
            import.wait()?;
        }
        Ok(())
    }

    /// Lets a broker lead that lacks records which were acknowledged, and repairs that as an operator would.
    fn elect_unclean(&mut self) -> Result<()> {
        let cluster = self.cluster;
        // A topic is filled only where nobody has written.
        self.letters.spare_journal(true);
        cluster.set_topic(JOURNAL, "unclean.leader.election.enable", Some("true"));
        let leader = leader(cluster, JOURNAL);
        let (lacking, other) = (1 + leader % 3, 1 + (leader + 1) % 3);
        cluster.kill(lacking);
        // It is out of those in sync after two seconds; then what it does not have is acknowledged.
        std::thread::sleep(Duration::from_secs(3));
        self.decides_on();
        self.sleep(200, 1000);
        cluster.kill(leader);
        cluster.kill(other);
        cluster.restart(lacking);
        let began = Instant::now();
        while began.elapsed() < KNOWN && !self.have_ended()? {
            std::thread::sleep(Duration::from_millis(100));
        }
        // The broker that leads may not say how far the topic goes while the others are away. That is for `/readyz` to say.
        for server in self.standbys.servers.iter().filter(|server| server.is_up()) {
            let ready = server.client().get("/readyz");
            ensure!(
                ready.status == 503 && ready.text.contains("journal"),
                "{}\n{}",
                ready.text,
                server.log()
            );
        }
        cluster.restart(leader);
        cluster.restart(other);
        let began = Instant::now();
        while !self.have_ended()? {
            ensure!(
                began.elapsed() < Duration::from_mins(1),
                "a server has not ended whose journal has lost its end"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        self.fill_again()?;
        self.letters.spare_journal(false);
        Ok(())
    }

    /// Whether every server has ended, as its journal has lost its end.
    fn have_ended(&mut self) -> Result<bool> {
        for server in &mut self.standbys.servers {
            if let Some(status) = server.ended() {
                ensure!(!status.success(), "{status}:\n{}", server.log());
            }
        }
        Ok(self.standbys.servers.iter().all(|server| !server.is_up()))
    }

    /// Makes the topic of the journal anew from the mirror that goes furthest, and starts every server.
    fn fill_again(&mut self) -> Result<()> {
        let (cluster, journal) = (self.cluster, self.standbys.journal().to_owned());
        let mut furthest = (0, None);
        for server in &self.standbys.servers {
            let last = records(server.data())?.last().map_or(0, |record| record.last().get());
            if last > furthest.0 {
                furthest = (last, Some(server.data().to_owned()));
            }
        }
        let Some(source) = furthest.1 else { bail!("no mirror holds anything") };
        cluster.tool("kafka-topics", &["--delete", "--topic", JOURNAL]);
        until("the topic is gone", || {
            (!cluster.tool("kafka-topics", &["--list"]).lines().any(|topic| topic == JOURNAL)).then_some(())
        });
        let run = |args: &[&str]| -> Result<()> {
            let done = Command::new(program()).args(args).args(["--journal", &journal]).output()?;
            ensure!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
            Ok(())
        };
        run(&["init-topics", "--copies", "3"])?;
        let place = "fleets/default/journal/kafka.json";
        for server in &self.standbys.servers {
            std::fs::remove_file(server.data().join(place))?;
        }
        run(&["import", source.to_str().context("a path that is text")?])?;
        for server in &mut self.standbys.servers {
            server.start_again();
        }
        self.standbys.decider();
        Ok(())
    }
}

/// Waits until every broker has everything again.
pub(super) fn in_sync(cluster: &Cluster) {
    until("every partition is on all brokers", || {
        cluster
            .tool("kafka-topics", &["--describe", "--under-replicated-partitions"])
            .is_empty()
            .then_some(())
    });
}

/// Which broker leads partition 0 of the topic.
pub(super) fn leader(cluster: &Cluster, topic: &str) -> u32 {
    let told = cluster.tool("kafka-topics", &["--describe", "--topic", topic]);
    let leader = told.split("Leader: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    leader.and_then(|leader| leader.parse().ok()).unwrap_or(1)
}
