//! Faults of the campaign `takeovers`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::messages::{JOURNAL, MessageProducers, leave_transaction_open, put_foreign, put_good};
use crate::clock::ServerClock;
use crate::fault_campaigns::evidence::records;
use crate::fault_campaigns::load::ProducerLoad;
use crate::kafka::KafkaCluster;
use crate::kafka::proxy::ProxyFaults;
use crate::sim::RandomSource;
use crate::{ServerProcess, StandbyServers, decides, program, until};

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
pub(super) enum TakeoverFault {
    /// Kills the leader (`kill -9`). Another server takes over.
    KillLeader,
    /// Kills the leader, while fetches arrive seconds late. No inbox message is skipped.
    SlowFetches,
    /// Pauses the leader past its session. Another server takes over; later writes of the paused server do
    /// not count.
    PauseLeader,
    /// Leaves a foreign transaction open on the journal and inbox topics. Work continues when the brokers end
    /// it.
    OpenTransaction,
    /// Kills the journal's leading broker (`kill -9`). Another broker leads.
    KillLeadingBroker,
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
    JumpClock,
    /// Kills an import of another journal into the topics. The leader continues.
    KillImport,
    /// Elects a broker without some acknowledged records. Every server ends; a mirror is imported again.
    ElectUnclean,
    /// Sends an inbox message with a codec that no client knows. It blocks the inbox until it is skipped.
    BreakMessage,
    /// Kills the leader, and limits each broker to a megabyte per second. Another server takes over, and
    /// reads the inbox messages that arrived meanwhile.
    SlowNetwork,
    /// Pauses the broker with the only replicas of the inbox and events topics. `/readyz` reports that; the
    /// leader continues.
    PauseInboxBroker,
}

/// Targets of a fault.
pub(super) struct FaultTargets<'a> {
    /// Index of the leader in `standbys`.
    pub(super) decider: usize,
    pub(super) standbys: &'a mut StandbyServers,
    pub(super) cluster: &'a KafkaCluster,
    pub(super) load: &'a ProducerLoad,
    pub(super) messages: &'a MessageProducers,
    /// Clock of each server.
    pub(super) clocks: &'a [ServerClock],
    pub(super) random: &'a mut RandomSource,
    /// Last position whose event was deleted from the events topic.
    pub(super) deleted: &'a mut Option<u64>,
}

impl TakeoverFault {
    /// All faults in order of injection.
    pub(super) const ALL: [TakeoverFault; 23] = [
        TakeoverFault::KillLeader,
        TakeoverFault::SlowFetches,
        TakeoverFault::PauseLeader,
        TakeoverFault::OpenTransaction,
        TakeoverFault::KillLeadingBroker,
        TakeoverFault::CutConnections,
        TakeoverFault::EmptyEvents,
        TakeoverFault::PauseBroker,
        TakeoverFault::WipeBroker,
        TakeoverFault::KillController,
        TakeoverFault::StallResponses,
        TakeoverFault::KillTwoBrokers,
        TakeoverFault::ReorderResponses,
        TakeoverFault::AddPartitions,
        TakeoverFault::Compact,
        TakeoverFault::KillBrokers,
        TakeoverFault::CloseEvents,
        TakeoverFault::JumpClock,
        TakeoverFault::KillImport,
        TakeoverFault::ElectUnclean,
        TakeoverFault::BreakMessage,
        TakeoverFault::SlowNetwork,
        TakeoverFault::PauseInboxBroker,
    ];

    pub(super) const fn word(self) -> &'static str {
        match self {
            TakeoverFault::KillLeader => "kill of the leader",
            TakeoverFault::SlowFetches => "slow fetches after a kill of the leader",
            TakeoverFault::PauseLeader => "pause of the leader past its session",
            TakeoverFault::OpenTransaction => "foreign transaction left open",
            TakeoverFault::KillLeadingBroker => "kill of the leading broker",
            TakeoverFault::CutConnections => "cut of all connections",
            TakeoverFault::EmptyEvents => "events topic emptied",
            TakeoverFault::PauseBroker => "pause of a broker",
            TakeoverFault::WipeBroker => "wiped disk of a broker",
            TakeoverFault::KillController => "kill of the controller",
            TakeoverFault::StallResponses => "stall of all responses",
            TakeoverFault::KillTwoBrokers => "fewer brokers in sync than required",
            TakeoverFault::ReorderResponses => "responses in another order",
            TakeoverFault::AddPartitions => "more partitions",
            TakeoverFault::Compact => "compaction turned on",
            TakeoverFault::KillBrokers => "kill of every broker",
            TakeoverFault::CloseEvents => "events topic not writable",
            TakeoverFault::JumpClock => "jump of the leader's clock",
            TakeoverFault::KillImport => "kill of an import",
            TakeoverFault::ElectUnclean => "unclean election",
            TakeoverFault::BreakMessage => "inbox message of an unknown codec",
            TakeoverFault::SlowNetwork => "slow network after a kill of the leader",
            TakeoverFault::PauseInboxBroker => "pause of the broker of inbox and events topic",
        }
    }

    /// Injects the fault and restores everything. Returns the time until another server took over, if
    /// required.
    pub(super) fn inject(self, targets: &mut FaultTargets<'_>) -> Result<Option<Duration>> {
        let cluster = targets.cluster;
        let took = match self {
            TakeoverFault::KillLeader => targets.kill_leader(),
            TakeoverFault::PauseLeader => targets.pause_leader()?,
            TakeoverFault::SlowFetches => {
                let slow_fetches = Duration::from_millis(targets.random.between(2500, 4000));
                cluster.set_faults(ProxyFaults { slow_fetches, ..ProxyFaults::default() });
                let took = targets.kill_leader();
                cluster.set_faults(ProxyFaults::default());
                took
            }
            TakeoverFault::SlowNetwork => {
                cluster.set_faults(ProxyFaults { bytes_per_second: SLOW, ..ProxyFaults::default() });
                let took = targets.read_backlog()?;
                cluster.set_faults(ProxyFaults::default());
                took
            }
            TakeoverFault::ReorderResponses => {
                let disorder = Duration::from_millis(targets.random.between(200, 800));
                cluster.set_faults(ProxyFaults { disorder, ..ProxyFaults::default() });
                let took = targets.stop_leader()?;
                std::thread::sleep(Duration::from_secs(2));
                cluster.set_faults(ProxyFaults::default());
                took
            }
            TakeoverFault::EmptyEvents => {
                targets.empty_events()?;
                targets.stop_leader()?
            }
            TakeoverFault::JumpClock => {
                // Small jumps only: decisions with a date use the leader's clock.
                let seconds = targets.random.between(1, 60) as i64;
                let forth = targets.random.chance(500);
                targets.clocks[targets.decider].set(if forth { seconds } else { -seconds });
                targets.sleep(100, 1500);
                targets.kill_leader()
            }
            TakeoverFault::OpenTransaction => {
                leave_transaction_open(cluster.bootstrap(), Duration::from_secs(2))?;
                return Ok(None);
            }
            TakeoverFault::KillImport => {
                targets.kill_import()?;
                return Ok(None);
            }
            TakeoverFault::ElectUnclean => {
                targets.elect_unclean()?;
                return Ok(None);
            }
            TakeoverFault::AddPartitions => {
                targets.add_partitions();
                return Ok(None);
            }
            TakeoverFault::Compact => {
                targets.compact();
                return Ok(None);
            }
            TakeoverFault::CloseEvents => {
                targets.close_events()?;
                return Ok(None);
            }
            TakeoverFault::BreakMessage => {
                targets.break_message()?;
                return Ok(None);
            }
            TakeoverFault::PauseInboxBroker => {
                targets.pause_inbox_broker()?;
                return Ok(None);
            }
            TakeoverFault::CutConnections
            | TakeoverFault::StallResponses
            | TakeoverFault::KillLeadingBroker
            | TakeoverFault::PauseBroker
            | TakeoverFault::WipeBroker
            | TakeoverFault::KillController
            | TakeoverFault::KillTwoBrokers
            | TakeoverFault::KillBrokers => {
                self.inject_into_brokers(targets);
                return Ok(None);
            }
        };
        Ok(Some(took))
    }

    /// Injects a fault of brokers or their connections.
    fn inject_into_brokers(self, targets: &mut FaultTargets<'_>) {
        let cluster = targets.cluster;
        let pass = |faults: ProxyFaults, targets: &mut FaultTargets<'_>| {
            cluster.set_faults(faults);
            targets.sleep(1000, 7000);
            cluster.set_faults(ProxyFaults::default());
        };
        let broker = 1 + targets.random.below(3) as u32;
        match self {
            TakeoverFault::CutConnections => {
                pass(ProxyFaults { cuts: true, ..ProxyFaults::default() }, targets);
            }
            TakeoverFault::StallResponses => {
                pass(ProxyFaults { stalls: true, ..ProxyFaults::default() }, targets);
            }
            TakeoverFault::KillLeadingBroker => {
                let leader = leader(cluster, JOURNAL);
                cluster.kill(leader);
                std::thread::sleep(Duration::from_secs(3));
                cluster.restart(leader);
            }
            TakeoverFault::PauseBroker => {
                cluster.pause(broker);
                targets.sleep(2000, 5000);
                cluster.resume(broker);
            }
            TakeoverFault::WipeBroker => {
                cluster.kill(broker);
                cluster.wipe(broker);
                cluster.restart(broker);
                in_sync(cluster);
            }
            TakeoverFault::KillController => {
                cluster.kill(100);
                targets.sleep(500, 3000);
                cluster.restart(100);
            }
            TakeoverFault::KillTwoBrokers => {
                cluster.kill(1);
                cluster.kill(2);
                targets.sleep(1000, 4000);
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

impl FaultTargets<'_> {
    pub(super) fn sleep(&mut self, low: u64, high: u64) {
        std::thread::sleep(Duration::from_millis(self.random.between(low, high)));
    }

    /// Directs the clients to another server.
    fn move_clients(&self) {
        self.load.moved(&self.standbys.servers[(self.decider + 1) % 3].url());
    }

    /// Waits until another server is leader.
    fn await_another_leader(&self) {
        until("another server is leader", || self.standbys.decides().filter(|now| *now != self.decider));
    }

    fn kill_leader(&mut self) -> Duration {
        let began = Instant::now();
        self.standbys.servers[self.decider].kill();
        self.move_clients();
        self.await_another_leader();
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
        let mut random = RandomSource::new(self.random.bits());
        let noise: String = (0..BACKLOG_BYTES).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
        let backlog: Vec<_> = (0..BACKLOG).map(|number| format!("{number} {noise}")).collect();
        put_foreign(brokers, &backlog)?;
        let behind = self.random.bits();
        put_good(brokers, &format!("slow-{behind}"), behind)?;
        self.await_another_leader();
        let took = began.elapsed();
        let path = format!("/v1/fleets/default/capabilities/by-slow-{behind}");
        let survivor = &self.standbys.servers[(self.decider + 1) % 3];
        until("the inbox is read over a slow network", || {
            (survivor.client().get(&path).status == 200).then_some(())
        });
        self.standbys.servers[self.decider].start_again();
        Ok(took)
    }

    fn stop_leader(&mut self) -> Result<Duration> {
        let began = Instant::now();
        let server = &mut self.standbys.servers[self.decider];
        let code = server.stop();
        ensure!(code == Some(0), "the server stops with {code:?}:\n{}", server.log());
        self.move_clients();
        self.await_another_leader();
        let took = began.elapsed();
        self.standbys.servers[self.decider].start_again();
        Ok(took)
    }

    fn pause_leader(&mut self) -> Result<Duration> {
        let (began, decider) = (Instant::now(), self.decider);
        self.standbys.servers[decider].signal(Signal::STOP);
        self.move_clients();
        std::thread::sleep(SESSION);
        // Only the others are asked: the paused server does not answer.
        let servers = &self.standbys.servers;
        until("another server is leader", || {
            (0..3).filter(|at| *at != decider).find(|at| decides(&servers[*at], "default") == Some(true))
        });
        let took = began.elapsed();
        self.sleep(0, 2000);
        self.standbys.servers[decider].signal(Signal::CONT);
        until("the paused server has noticed", || {
            (decides(&self.standbys.servers[decider], "default") == Some(false)).then_some(())
        });
        let server = &mut self.standbys.servers[decider];
        ensure!(server.ended().is_none(), "the paused server ended:\n{}", server.log());
        Ok(took)
    }

    /// Checks that an intent is acknowledged during a fault.
    pub(super) fn check_leader_continues(&mut self) {
        let key = format!("meanwhile-{}", self.random.bits());
        let data = json!({"name": "meanwhile", "spec": {"type": "T", "score": self.random.below(1000)}});
        let server = &self.standbys.servers[self.decider];
        until("an intent is acknowledged meanwhile", || {
            (server.client().intent(&key, "capability.apply", &data).status / 100 == 2).then_some(())
        });
    }

    /// Starts an import of another fleet's journal and kills it, three times.
    fn kill_import(&mut self) -> Result<()> {
        let mut other = ServerProcess::start();
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
        self.check_leader_continues();
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
pub(super) fn in_sync(cluster: &KafkaCluster) {
    until("every partition is on all brokers", || {
        cluster
            .tool("kafka-topics", &["--describe", "--under-replicated-partitions"])
            .is_empty()
            .then_some(())
    });
}

/// Id of the broker that leads partition 0 of the topic.
pub(super) fn leader(cluster: &KafkaCluster, topic: &str) -> u32 {
    let description = cluster.tool("kafka-topics", &["--describe", "--topic", topic]);
    let leader = description.split("Leader: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    leader.and_then(|leader| leader.parse().ok()).unwrap_or(1)
}
