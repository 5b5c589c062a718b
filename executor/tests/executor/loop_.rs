//! Executor loop, with a decider that the test plays.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chancery_events::fact::{CommandEffect, OrphanResolution};
use chancery_events::id::{ConnectionToken, Lineage, Position, SessionId, Term};
use chancery_events::observation::{ObjectReport, ObservedState};
use chancery_events::protocol::{
    Command, DeciderEnvelope, DeciderMessage, ExecutorMessage, JournalHead, ReportPart,
};
use chancery_events::record::RecordHash;
use chancery_events::spec::ClusterRuntime;
use chancery_executor::directory::CopyPolicy;
use chancery_executor::simulated::{FaultRules, SimulatedOrchestrator, SimulatedWorld};
use chancery_executor::{DeciderChannel, ExecutorConfig, ExecutorStatus, ExecutorStop};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::world::{PATIENCE, command, id, sleeper};

/// Decider's end of a channel.
struct TestDecider {
    received: mpsc::Receiver<Vec<u8>>,
    sent: mpsc::Sender<Vec<u8>>,
    connection_token: u64,
    head: JournalHead,
}

fn head(position: u64, hash: u8) -> JournalHead {
    JournalHead {
        position: Position::new(position),
        hash: RecordHash::from_bytes([hash; 32]),
        term: Term::FIRST,
    }
}

impl TestDecider {
    async fn receive(&mut self) -> ExecutorMessage {
        let message = tokio::time::timeout(PATIENCE, self.received.recv()).await.expect("a message is sent");
        serde_json::from_slice(&message.expect("the channel is open")).unwrap()
    }

    /// Returns the next message that is no heartbeat.
    async fn receive_news(&mut self) -> ExecutorMessage {
        loop {
            match self.receive().await {
                ExecutorMessage::Heartbeat { sequence: heartbeat, .. } => {
                    let envelope = self.envelope();
                    self.send(DeciderMessage::HeartbeatAck { envelope, sequence: heartbeat }).await;
                }
                news => return news,
            }
        }
    }

    async fn send(&mut self, message: DeciderMessage) {
        let _ = self.sent.send(serde_json::to_vec(&message).unwrap()).await;
    }

    fn envelope(&self) -> DeciderEnvelope {
        let session = SessionId::issue(Lineage::from_random(42), Position::FIRST);
        DeciderEnvelope {
            session,
            connection: ConnectionToken::from_random(self.connection_token),
            head: self.head,
        }
    }

    async fn welcome(&mut self, lease: Duration, commands: Vec<Command>) {
        let envelope = self.envelope();
        let (lineage, fleet) = (Lineage::from_random(42), "main".parse().unwrap());
        self.send(DeciderMessage::Welcome { envelope, lineage, fleet, lease, commands, next_after: None })
            .await;
    }
}

/// Executor on simulated nodes, whose channels lead to the test.
struct TestExecutor {
    channels: mpsc::Receiver<TestDecider>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<(), ExecutorStop>>,
}

fn config() -> ExecutorConfig {
    ExecutorConfig {
        executor: "e1".parse().unwrap(),
        cluster: "c1".parse().unwrap(),
        runtime: ClusterRuntime::Simulated,
        at_once: 4,
        status: ExecutorStatus::new(),
    }
}

fn start(root: &std::path::Path, world: &Arc<Mutex<SimulatedWorld>>) -> TestExecutor {
    let root = root.to_owned();
    let (offer, executor_channels) = mpsc::channel(1);
    let (stop, stopped) = oneshot::channel::<()>();
    let simulated = SimulatedOrchestrator::new(world.clone());
    let mut token = 0;
    let connect = move || {
        let offer = offer.clone();
        token += 1;
        async move {
            let (to_decider, received) = mpsc::channel(4);
            let (sent, from_decider) = mpsc::channel(4);
            let decider = TestDecider { received, sent, connection_token: token, head: head(100, 1) };
            offer.send(decider).await.map_err(std::io::Error::other)?;
            Ok(DeciderChannel { to_decider, from_decider })
        }
    };
    let shutdown = async move {
        let _ = stopped.await;
    };
    let running = tokio::spawn(async move {
        let store = chancery_executor::open_directory(root, CopyPolicy::Refuse).await?;
        chancery_executor::run(config(), store, async { Ok(simulated) }, connect, shutdown).await
    });
    TestExecutor { channels: executor_channels, stop: Some(stop), running }
}

impl TestExecutor {
    async fn channel(&mut self) -> TestDecider {
        tokio::time::timeout(PATIENCE, self.channels.recv()).await.expect("it connects").unwrap()
    }

    async fn stop(mut self) -> Result<(), ExecutorStop> {
        drop(self.stop.take());
        self.running.await.unwrap()
    }
}

const LEASE: Duration = Duration::from_millis(300);

pub(crate) async fn a_session_starts_level_and_reports() {
    let (root, world) = (tempfile::tempdir().unwrap(), SimulatedWorld::shared(FaultRules::default()));
    // One object of an earlier executor epoch, missing from the inventory, and one of another lineage.
    world.lock().unwrap().carry_out(&command(id(7), 1, CommandEffect::Ensure, &sleeper(1)));
    let foreign = chancery_events::id::IncarnationId::issue(Lineage::from_random(43), Position::new(7));
    world.lock().unwrap().carry_out(&command(foreign, 1, CommandEffect::Ensure, &sleeper(1)));
    let mut executor = start(root.path(), &world);
    let mut decider = executor.channel().await;
    assert!(matches!(decider.receive().await, ExecutorMessage::Hello { seen: None, .. }));
    decider.welcome(LEASE, vec![command(id(8), 1, CommandEffect::Ensure, &sleeper(1))]).await;
    let ExecutorMessage::FullReport { reports, part: ReportPart::Last, .. } = decider.receive_news().await
    else {
        panic!("a full report")
    };
    assert_eq!(reports.iter().map(|r| r.object).collect::<Vec<_>>(), [id(7).into(), foreign.into()]);
    let ExecutorMessage::Report { sequence: 1, report, .. } = decider.receive_news().await else {
        panic!("a report")
    };
    assert_eq!((report.object, matches!(report.observed, ObservedState::Ready { .. })), (id(8).into(), true));
    let envelope = decider.envelope();
    for object in [foreign.into(), id(7).into()] {
        let (envelope, judgement) = (envelope.clone(), OrphanResolution::Remove);
        decider
            .send(DeciderMessage::OrphanResolved { envelope, object, resolution: judgement, revision: 5 })
            .await;
    }
    let ExecutorMessage::Report { sequence: 2, report, .. } = decider.receive_news().await else {
        panic!("a report")
    };
    assert_eq!((report.object, report.revision, report.observed), (id(7).into(), 5, ObservedState::Gone));
    assert_eq!(world.lock().unwrap().running(foreign), 1, "an object of another lineage is not changed");
    // Leases are renewed many times, so the executor continues to act.
    for _ in 0..6 {
        let ExecutorMessage::Heartbeat { sequence: heartbeat, .. } = decider.receive().await else {
            panic!("a heartbeat")
        };
        let envelope = decider.envelope();
        decider.send(DeciderMessage::HeartbeatAck { envelope, sequence: heartbeat }).await;
    }
    let (envelope, command) = (decider.envelope(), command(id(8), 2, CommandEffect::Stop, &sleeper(1)));
    decider.send(DeciderMessage::Command { envelope, command }).await;
    let ExecutorMessage::Report { sequence: 3, report, .. } = decider.receive_news().await else {
        panic!("a report")
    };
    assert!(matches!(report.observed, ObservedState::Ended { .. }));
    let leaves = tokio::spawn(executor.stop());
    assert!(matches!(decider.receive_news().await, ExecutorMessage::Goodbye { .. }));
    leaves.await.unwrap().unwrap();
}

pub(crate) async fn a_lost_channel_is_opened_again() {
    let (root, world) = (tempfile::tempdir().unwrap(), SimulatedWorld::shared(FaultRules::default()));
    let mut executor = start(root.path(), &world);
    let mut decider = executor.channel().await;
    decider.receive().await;
    decider.welcome(LEASE, vec![command(id(8), 1, CommandEffect::Ensure, &sleeper(1))]).await;
    decider.receive_news().await;
    // The report is sent, and never accepted.
    assert!(matches!(decider.receive_news().await, ExecutorMessage::Report { sequence: 1, .. }));
    drop(decider);
    let mut decider = executor.channel().await;
    let ExecutorMessage::Hello { seen: Some((_, seen)), .. } = decider.receive().await else {
        panic!("a hello")
    };
    assert_eq!(seen, head(100, 1));
    decider.welcome(LEASE, vec![command(id(8), 1, CommandEffect::Ensure, &sleeper(1))]).await;
    let ExecutorMessage::FullReport { reports, .. } = decider.receive_news().await else {
        panic!("a full report")
    };
    assert!(
        matches!(&reports[..], [report] if matches!(report.observed, ObservedState::Ready { .. })),
        "{reports:?}"
    );
    assert!(
        matches!(decider.receive_news().await, ExecutorMessage::Report { sequence: 1, .. }),
        "the outcome is repeated"
    );
    assert_eq!(world.lock().unwrap().starts(), 1, "running objects are adopted");
    // The executor leaves a silent decider when the lease expires.
    let mut decider = executor.channel().await;
    assert!(matches!(decider.receive().await, ExecutorMessage::Hello { .. }));
}

pub(crate) async fn what_cannot_be_listed_is_not_reported_gone_and_the_session_continues() {
    let (root, world) = (tempfile::tempdir().unwrap(), SimulatedWorld::shared(FaultRules::default()));
    world.lock().unwrap().carry_out(&command(id(7), 1, CommandEffect::Ensure, &sleeper(1)));
    world.lock().unwrap().set_out_of_reach(true);
    let mut executor = start(root.path(), &world);
    let mut decider = executor.channel().await;
    assert!(matches!(decider.receive().await, ExecutorMessage::Hello { .. }));
    decider.welcome(LEASE, vec![]).await;
    let beats = async |decider: &mut TestDecider| {
        // Longer than the lease.
        for _ in 0..6 {
            let ExecutorMessage::Heartbeat { sequence: heartbeat, .. } = decider.receive().await else {
                panic!("a heartbeat")
            };
            let envelope = decider.envelope();
            decider.send(DeciderMessage::HeartbeatAck { envelope, sequence: heartbeat }).await;
        }
    };
    beats(&mut decider).await;
    world.lock().unwrap().set_out_of_reach(false);
    let ready = |reports: &[ObjectReport]| matches!(reports, [report] if matches!(report.observed, ObservedState::Ready { .. }));
    let ExecutorMessage::FullReport { reports, .. } = decider.receive_news().await else {
        panic!("a full report")
    };
    assert!(ready(&reports), "{reports:?}");
    // The watch is lost, and a command is put off until the world responds.
    world.lock().unwrap().set_out_of_reach(true);
    let (envelope, stop) = (decider.envelope(), command(id(7), 2, CommandEffect::Stop, &sleeper(1)));
    decider.send(DeciderMessage::Command { envelope, command: stop }).await;
    beats(&mut decider).await;
    assert_eq!(world.lock().unwrap().running(id(7)), 1, "no object is ended");
    world.lock().unwrap().set_out_of_reach(false);
    loop {
        match decider.receive_news().await {
            // The list may come first.
            ExecutorMessage::FullReport { reports, .. } if ready(&reports) => {}
            ExecutorMessage::FullReport { reports, .. } => {
                assert!(matches!(&reports[..], [report] if report.revision == 2), "{reports:?}");
                break;
            }
            ExecutorMessage::Report { report, .. } => {
                assert!(
                    report.revision == 2 && matches!(report.observed, ObservedState::Ended { .. }),
                    "{report:?}"
                );
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    executor.stop().await.unwrap();
}

pub(crate) async fn one_executor_a_store() {
    let (root, world) = (tempfile::tempdir().unwrap(), SimulatedWorld::shared(FaultRules::default()));
    let mut first = start(root.path(), &world);
    first.channel().await;
    let second = chancery_executor::open_directory(root.path().to_owned(), CopyPolicy::Refuse).await;
    assert!(matches!(second, Err(ExecutorStop::StoreTaken)));
    first.stop().await.unwrap();
    let mut third = start(root.path(), &world);
    third.channel().await;
}

pub(crate) async fn a_diverged_journal_stops_it_and_the_head_is_kept() {
    let (root, world) = (tempfile::tempdir().unwrap(), SimulatedWorld::shared(FaultRules::default()));
    let mut executor = start(root.path(), &world);
    let mut decider = executor.channel().await;
    decider.receive().await;
    decider.welcome(LEASE, vec![]).await;
    decider.receive_news().await;
    decider.head = head(120, 2);
    let (envelope, command) = (decider.envelope(), command(id(8), 1, CommandEffect::Ensure, &sleeper(1)));
    decider.send(DeciderMessage::Command { envelope, command }).await;
    assert!(
        matches!(decider.receive_news().await, ExecutorMessage::Report { .. }),
        "the head was used, so it is on disk"
    );
    decider.head = head(120, 3);
    let envelope = decider.envelope();
    decider.send(DeciderMessage::ReportsAccepted { envelope, sequence: 1 }).await;
    assert!(matches!(executor.running.await.unwrap(), Err(ExecutorStop::Diverged(120))));
    let mut executor = start(root.path(), &world);
    let mut decider = executor.channel().await;
    let ExecutorMessage::Hello { seen: Some((_, seen)), .. } = decider.receive().await else {
        panic!("a hello")
    };
    assert_eq!(seen, head(120, 2));
    // The journal of this decider ends before what was seen.
    decider.welcome(LEASE, vec![]).await;
    assert!(matches!(executor.running.await.unwrap(), Err(ExecutorStop::StaleDecider(_))));
}
