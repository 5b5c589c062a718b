//! Faults of the campaign `takeovers`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::messages::{JOURNAL, Letters, leave_transaction_open, put_foreign, put_good};
use crate::clock::ServerClock;
use crate::fault_campaigns::evidence::records;
use crate::fault_campaigns::load::Load;
use crate::kafka::Cluster;
use crate::kafka::proxy::ProxyFaults;
use crate::sim::Random;
use crate::{Server, Standbys, decides, program, until};

/// Time after which the consumer group removes a silent server.
const SESSION: Duration = Duration::from_secs(6);
/// Throughput of a slow network in bytes per second.
const SLOW: u64 = 1_000_000;
/// Number of inbox messages that arrive without a leader, and the size of each in bytes. Together they exceed
/// what a slow network transfers within a request timeout, however much a reader requests.
const BACKLOG: u64 = 100;
const BACKLOG_BYTES: usize = 100_000;
/// Maximum time for servers to detect the lost end of their journal, while one broker of three is running.
const KNOWN: Duration = Duration::from_secs(40);

/// Fault of the campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blow {
    /// Kills the leader (`kill -9`). Another server takes over.
    KillDecider,
    /// Kills the leader, while fetches arrive seconds late. No inbox message is skipped.
    SlowFetches,
    /// Pauses the leader past its session. Another server takes over; later writes of the paused server do
    /// not count.
    PauseDecider,
    /// Leaves a foreign transaction open on the journal and inbox topics. Work continues when the brokers end
    /// it.
    OpenTransaction,
    /// Kills the journal's leading broker (`kill -9`). Another broker leads.
    KillLeader,
    /// Makes every broker unreachable.
    CutConnections,
    /// Empties the events topic as retention would, and stops the leader. Another server takes over
    /// immediately, and writes the following events.
    EmptyEvents,
    /// Pauses a broker.
    PauseBroker,
    /// Kills a broker, and restarts it with an empty disk.
    WipeBroker,
    /// Kills Kafka's controller (`kill -9`).
    KillController,
    /// Stalls all responses: brokers still accept requests.
    StallResponses,
    /// Kills two brokers of three: fewer in sync than the topic requires. Nothing is acknowledged until one
    /// is back.
    KillTwoBrokers,
    /// Stops the leader while responses of partitions arrive in another order.
    ReorderResponses,
    /// Adds a partition to each topic.
    AddPartitions,
    /// Enables compaction of topics for a while.
    Compact,
    /// Kills every broker. Work continues when the brokers are back.
    KillBrokers,
    /// Makes only the events topic unwritable for a while. The leader continues.
    CloseEvents,
    /// Moves the leader's clock, and kills the leader. A server with another clock takes over.
    LeapClock,
    /// Kills an import of another journal into the topics. The leader continues.
    KillImport,
    /// Elects a broker without some acknowledged records. Every server ends; a mirror is imported again.
    ElectUnclean,
    /// Sends an inbox message with a codec that no client knows. It blocks the inbox until it is skipped.
    BreakLetter,
    /// Kills the leader, and limits each broker to a megabyte per second. Another server takes over, and
    /// reads the inbox messages that arrived meanwhile.
    SlowNetwork,
    /// Pauses the broker with the only replicas of the inbox and events topics. `/readyz` reports that; the
    /// leader continues.
    PausePosts,
}

/// Targets of a fault.
pub(super) struct Struck<'a> {
    /// Index of the leader in `standbys`.
    pub(super) decider: usize,
    pub(super) standbys: &'a mut Standbys,
    pub(super) cluster: &'a Cluster,
    pub(super) load: &'a Load,
    pub(super) messages: &'a Letters,
    /// Clock of each server.
    pub(super) clocks: &'a [ServerClock],
    pub(super) random: &'a mut Random,
    /// Last position whose event was deleted from the events topic.
    pub(super) deleted: &'a mut Option<u64>,
}

impl Blow {
    /// All faults in order of injection.
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

    /// Injects the fault and restores everything. Returns the time until another server took over, if
    /// required.
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
                // Small jumps only: decisions with a date use the leader's clock.
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
                struck.break_message()?;
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

    /// Injects a fault of brokers or their connections.
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

    /// Directs the clients to another server.
    fn move_clients(&self) {
        self.load.moved(&self.standbys.servers[(self.decider + 1) % 3].url());
    }

    /// Waits until another server is leader.
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

    /// Kills the leader, and adds more inbox messages than one fetch returns. The next leader processes them.
    fn read_backlog(&mut self) -> Result<Duration> {
        let (began, brokers) = (Instant::now(), self.cluster.bootstrap());
        self.standbys.servers[self.decider].kill();
        self.move_clients();
        // Random content is incompressible.
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
        ensure!(code == Some(0), "the server stops with {code:?}:\n{}", server.log());
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
        // Only the others are asked: the paused server does not answer.
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

    /// Checks that an intent is acknowledged during a fault.
    pub(super) fn decides_on(&mut self) {
        let key = format!("meanwhile-{}", self.random.bits());
        let data = json!({"name": "meanwhile", "spec": {"type": "T", "score": self.random.below(1000)}});
        let server = &self.standbys.servers[self.decider];
        until("an intent is acknowledged meanwhile", || {
            (server.client().intent(&key, "capability.apply", &data).status / 100 == 2).then_some(())
        });
    }

    /// Starts an import of another fleet's journal and kills it, three times.
    fn kill_import(&mut self) -> Result<()> {
        let mut other = Server::start();
        other.client().must("capability.apply", &json!({"name": "other", "spec": {"type": "T", "score": 1}}));
        let code = other.stop();
        ensure!(code == Some(0), "the server stops with {code:?}:\n{}", other.log());
        for _ in 0..3 {
            let mut import = Command::new(program())
                .args(["import", "--journal", self.standbys.journal()])
                .arg(other.data())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            self.sleep(0, 600);
            // The import may have ended on its own.
            let _ = import.kill();
            import.wait()?;
        }
        Ok(())
    }

    /// Elects a broker that lacks acknowledged records, and repairs the journal as an operator would.
    fn elect_unclean(&mut self) -> Result<()> {
        let cluster = self.cluster;
        // An import requires a topic without other writers.
        self.messages.spare_journal(true);
        cluster.set_topic(JOURNAL, "unclean.leader.election.enable", Some("true"));
        let leader = leader(cluster, JOURNAL);
        let (lacking, other) = (1 + leader % 3, 1 + (leader + 1) % 3);
        cluster.kill(lacking);
        // After two seconds, the broker is out of sync, and records that it lacks are acknowledged.
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
        // Without the others, the leading broker perhaps does not report the topic's end. Then `/readyz` must
        // report that.
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
        self.messages.spare_journal(false);
        Ok(())
    }

    /// Whether every server has ended because its journal has lost its end.
    fn have_ended(&mut self) -> Result<bool> {
        for server in &mut self.standbys.servers {
            if let Some(status) = server.ended() {
                ensure!(!status.success(), "{status}:\n{}", server.log());
            }
        }
        Ok(self.standbys.servers.iter().all(|server| !server.is_up()))
    }

    /// Creates the journal topic again from the most recent mirror, and starts every server.
    fn fill_again(&mut self) -> Result<()> {
        let (cluster, journal) = (self.cluster, self.standbys.journal().to_owned());
        let mut furthest = (0, None);
        for server in &self.standbys.servers {
            let last = records(server.data())?.last().map_or(0, |record| record.last().get());
            if last > furthest.0 {
                furthest = (last, Some(server.data().to_owned()));
            }
        }
        let Some(source) = furthest.1 else { bail!("every mirror is empty") };
        cluster.tool("kafka-topics", &["--delete", "--topic", JOURNAL]);
        until("the topic is deleted", || {
            (!cluster.tool("kafka-topics", &["--list"]).lines().any(|topic| topic == JOURNAL)).then_some(())
        });
        let run = |args: &[&str]| -> Result<()> {
            let done = Command::new(program()).args(args).args(["--journal", &journal]).output()?;
            ensure!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
            Ok(())
        };
        run(&["init-topics", "--replication-factor", "3"])?;
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

/// Waits until every broker has all partitions again.
pub(super) fn in_sync(cluster: &Cluster) {
    until("every partition is on all brokers", || {
        cluster
            .tool("kafka-topics", &["--describe", "--under-replicated-partitions"])
            .is_empty()
            .then_some(())
    });
}

/// Id of the broker that leads partition 0 of the topic.
pub(super) fn leader(cluster: &Cluster, topic: &str) -> u32 {
    let told = cluster.tool("kafka-topics", &["--describe", "--topic", topic]);
    let leader = told.split("Leader: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    leader.and_then(|leader| leader.parse().ok()).unwrap_or(1)
}
