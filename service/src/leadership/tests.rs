//! Two servers over one log, of which one decides at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use anyhow::bail;
use chancery_api::{AllowedHosts, ApiShared, HttpLimits};
use chancery_decider::core::PART;
use chancery_decider::leader_router::{LeaderLocation, LeaderRouter};
use chancery_decider::{EventHub, UnchangedVerdict, Verdict, wall_clock};
use chancery_events::event::Event;
use chancery_events::extension::ExtensionAttributes;
use chancery_events::fact::Fact;
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::record::RecordDraft;
use chancery_events::time::Time;
use chancery_journal::memory::MemoryLog;
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{WriterIdentity, genesis};
use chancery_machine::context::LevelLimits;
use chancery_projector::{Projector, StoreTuning};
use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::projector_thread::{ProjectorQueue, ProjectorThread, publisher};

/// Server without its API.
struct TestServer {
    leads: watch::Sender<bool>,
    drain: watch::Sender<bool>,
    router: LeaderRouter,
    /// Every position that was published.
    published: Arc<Mutex<Vec<Position>>>,
    leader_loop: tokio::task::JoinHandle<Result<()>>,
    rows: JoinHandle<Result<()>>,
    #[cfg(feature = "kubernetes")]
    reader: chancery_projector::RowReader,
    _dir: tempfile::TempDir,
}

impl TestServer {
    fn start(log: &MemoryLog, address: &str, tasks: Option<Arc<dyn LeaderTasks>>) -> TestServer {
        let (turn, elected) = watch::channel(false);
        TestServer::with(log, address, tasks, turn, LeadershipSource::Elected(elected))
    }

    fn with(
        log: &MemoryLog,
        address: &str,
        tasks: Option<Arc<dyn LeaderTasks>>,
        turn: watch::Sender<bool>,
        turns: LeadershipSource,
    ) -> TestServer {
        TestServer::with_clock(log, address, tasks, turn, turns, WallClock::trusted())
    }

    fn with_clock(
        log: &MemoryLog,
        address: &str,
        tasks: Option<Arc<dyn LeaderTasks>>,
        turn: watch::Sender<bool>,
        turns: LeadershipSource,
        clock: WallClock,
    ) -> TestServer {
        let clock = Arc::new(clock);
        let dir = tempfile::tempdir().expect("a directory");
        let (sender, deliveries) = mpsc::unbounded_channel();
        let journal = log.open(Box::new(move |delivery| drop(sender.send(delivery)))).expect("a journal");
        let source = log.source();
        let tuning = StoreTuning { cache: 1 << 20, ..StoreTuning::default() };
        let mut projector =
            Projector::open(&dir.path().join("rows"), "default", log.source(), None, tuning).expect("rows");
        projector.catch_up().expect("caught up");
        let begins = projector.position();
        #[cfg(feature = "kubernetes")]
        let reader = projector.reader();
        let (records, states, queue) = ProjectorQueue::open();
        let snapshots = SnapshotStore::open(dir.path().join("snapshots")).expect("a directory");
        let mut rows =
            ProjectorThread { projector, source, snapshots, fleet: "default".into(), every: u64::MAX };
        let rows = std::thread::spawn(move || rows.follow(&queue));
        let (terms, decider) = watch::channel(None);
        let published = Arc::new(Mutex::new(Vec::new()));
        let mut publish =
            publisher(Arc::new(EventHub::new()), watch::channel(Position::ZERO).0, terms, records);
        let noted = Arc::clone(&published);
        let notify = Box::new(move |records: &[Arc<chancery_events::record::Record>]| {
            noted.lock().expect("no panic").extend(records.iter().map(|record| record.last()));
            publish(records);
        });
        let settings = DeciderSettings {
            fleet: "default".parse().expect("a name"),
            writer: WriterId::from_random(0),
            build: "test".into(),
            address: Some(address.into()),
            lease: Duration::from_secs(15),
            part: PART,
            replicas: 10,
            levels: LevelLimits::ALONE,
            inbox: None,
        };
        let (role, at_router) = watch::channel(LeaderRole::Standby);
        let troubles: Arc<FleetTroubles> = Arc::default();
        let following = JournalFollower {
            deliveries,
            publisher: notify,
            skipped: Box::new(|| ()),
            committed: Box::new(|_| ()),
            published: begins,
        };
        let office = LeaderLoop {
            settings,
            journal: Arc::new(journal),
            following,
            states,
            queue: 16,
            tasks,
            duty: role,
            clock: Arc::clone(&clock),
            troubles: Arc::clone(&troubles),
        };
        let (drain, drained) = watch::channel(false);
        let office = tokio::spawn(office.run(turns, drained));
        let router = LeaderRouter { leader_role: at_router, decider, own: address.into(), clock, troubles };
        TestServer {
            leads: turn,
            drain,
            router,
            published,
            leader_loop: office,
            rows,
            #[cfg(feature = "kubernetes")]
            reader,
            _dir: dir,
        }
    }

    fn set_leading(&self, is_ours: bool) {
        self.leads.send_replace(is_ours);
    }

    async fn decides(&self) -> DeciderHandle {
        tokio::time::timeout(Duration::from_secs(30), self.router.decides()).await.expect("it decides");
        self.router.here().expect("it decides")
    }

    async fn stands_by(&self) {
        let mut role = self.router.leader_role.clone();
        let stands = role.wait_for(|duty| matches!(duty, LeaderRole::Standby));
        tokio::time::timeout(Duration::from_secs(30), stands)
            .await
            .expect("it becomes standby")
            .expect("the server runs");
    }

    /// Ends in order. The published records must be a part of the log, each once and in order.
    async fn end(self, log: &MemoryLog) {
        self.drain.send_replace(true);
        self.leader_loop.await.expect("no panic").expect("no error");
        self.rows.join().expect("no panic").expect("no error");
        let all: Vec<_> =
            log.source().records(Position::FIRST).expect("read").map(|r| r.expect("read").last()).collect();
        let published = self.published.lock().expect("no panic").clone();
        let is_whole = all.windows(published.len().max(1)).any(|part| *part == published);
        assert!(is_whole, "{published:?} of {all:?}");
    }
}

fn asked(key: &str) -> IntentRequest {
    let data = json!({"name": key, "spec": {"type": "T", "score": 1}}).to_string();
    let intent = Intent::read("capability.apply.v1", &data).expect("known").expect("good");
    let (id, source, actor) = (key.parse(), "test".parse(), "ann".parse());
    IntentRequest {
        id: id.expect("an id"),
        source: source.expect("a source"),
        actor: actor.expect("a name"),
        time: None,
        expect: None,
        claim: None,
        traceparent: None,
        extensions: ExtensionAttributes::default(),
        intent,
    }
}

async fn ask(decider: &DeciderHandle, key: &str) -> Verdict {
    decider.ask(asked(key), UnchangedVerdict::default(), 1).await.expect("a verdict")
}

#[tokio::test]
async fn a_handover_includes_all_decisions() {
    let log = MemoryLog::new("default");
    let (one, two) = (TestServer::start(&log, "one", None), TestServer::start(&log, "two", None));
    assert!(matches!(one.router.find(), LeaderLocation::Unknown));
    one.set_leading(true);
    let first = ask(&one.decides().await, "a").await;
    tokio::time::timeout(Duration::from_secs(30), two.router.decider.clone().wait_for(Option::is_some))
        .await
        .expect("it receives the term")
        .expect("the server runs");
    assert!(matches!(two.router.find(), LeaderLocation::Remote(there) if &*there == "one"));
    one.set_leading(false);
    one.stands_by().await;
    two.set_leading(true);
    let decider = two.decides().await;
    assert_eq!(ask(&decider, "a").await, first, "the same key gets the same verdict");
    ask(&decider, "b").await;
    // Leadership moves back.
    two.set_leading(false);
    two.stands_by().await;
    one.set_leading(true);
    let decider = one.decides().await;
    assert_eq!(ask(&decider, "a").await, first);
    assert!(ask(&decider, "c").await.position > first.position);
    one.end(&log).await;
    two.end(&log).await;
}

#[tokio::test]
async fn of_two_servers_that_claim_leadership_the_first_becomes_standby() {
    let log = MemoryLog::new("default");
    let (one, two) = (TestServer::start(&log, "one", None), TestServer::start(&log, "two", None));
    one.set_leading(true);
    let sleeper = one.decides().await;
    ask(&sleeper, "a").await;
    two.set_leading(true);
    ask(&two.decides().await, "b").await;
    one.stands_by().await;
    assert!(
        sleeper.ask(asked("c"), UnchangedVerdict::default(), 1).await.is_err(),
        "a fenced decider accepts no intent"
    );
    one.set_leading(false);
    // The server may have taken over once more before it was notified; then the other one does, too.
    let decider = loop {
        let decider = two.decides().await;
        if decider.ask(asked("d"), UnchangedVerdict::default(), 1).await.is_ok() {
            break decider;
        }
    };
    ask(&decider, "e").await;
    one.end(&log).await;
    two.end(&log).await;
}

#[tokio::test]
async fn where_no_other_server_can_lead_one_that_is_fenced_ends() {
    let log = MemoryLog::new("default");
    let one = TestServer::with(&log, "one", None, watch::channel(true).0, LeadershipSource::Ours);
    ask(&one.decides().await, "a").await;
    let two = TestServer::start(&log, "two", None);
    two.set_leading(true);
    two.decides().await;
    let why = one.leader_loop.await.expect("no panic").expect_err("it ends");
    assert!(why.is::<DeciderEnd>(), "{why:?}");
    two.end(&log).await;
}

/// Fails a number of times, and then returns its result.
struct FailingTasks {
    left: AtomicU32,
    is_gone: bool,
}

impl LeaderTasks for FailingTasks {
    fn take_up(&self, _: Option<&InboxWatermark>) -> Result<Option<InboxStart>> {
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            bail!("the brokers are away");
        }
        if self.is_gone {
            return Err(InboxMismatch::Removed { topic: "inbox".into(), start: 2, next: 1 }.into());
        }
        Ok(None)
    }

    fn begin(
        &self,
        _: &DeciderHandle,
        _: WriterId,
        _: Option<InboxStart>,
        _: Arc<dyn JournalReader>,
    ) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn what_passes_is_tried_again_and_what_is_lost_ends_the_server() {
    let log = MemoryLog::new("default");
    let troubles = |is_gone| -> Option<Arc<dyn LeaderTasks>> {
        Some(Arc::new(FailingTasks { left: AtomicU32::new(2), is_gone }))
    };
    let one = TestServer::start(&log, "one", troubles(false));
    one.set_leading(true);
    ask(&one.decides().await, "a").await;
    one.end(&log).await;
    let two = TestServer::start(&log, "two", troubles(true));
    two.set_leading(true);
    let why = two.leader_loop.await.expect("no panic").expect_err("it ends");
    assert!(why.is::<InboxMismatch>(), "{why:?}");
}

#[tokio::test]
async fn a_server_whose_clock_is_not_trusted_does_not_decide_and_one_whose_clock_is_does() {
    let log = MemoryLog::new("default");
    let first = TestServer::start(&log, "first", None);
    first.set_leading(true);
    first.decides().await;
    first.end(&log).await;
    let head = log.source().head();
    let (turn, elected) = watch::channel(true);
    let untrusted = WallClock::new(Duration::ZERO, false, || false);
    let wrong =
        TestServer::with_clock(&log, "wrong", None, turn, LeadershipSource::Elected(elected), untrusted);
    let ended =
        tokio::time::timeout(Duration::from_secs(30), wrong.leader_loop).await.expect("it does not decide");
    let error = ended.expect("no panic").expect_err("it ends with its reason");
    assert!(error.is::<ClockAhead>() && error.to_string().contains("--accept-clock"), "{error:#}");
    let last = log.source().head().map(|head| head.time);
    assert!(wrong.router.clock_trouble(last).await.is_some(), "/readyz reports the clock");
    let later = Some(wall_clock::now() + Duration::from_hours(1));
    assert!(wrong.router.clock_trouble(later).await.is_none(), "another server has recorded the time since");
    assert_eq!(log.source().head(), head, "nothing is recorded");
    let synchronised = WallClock::new(Duration::ZERO, false, || true);
    let (turn, elected) = watch::channel(true);
    let right =
        TestServer::with_clock(&log, "right", None, turn, LeadershipSource::Elected(elected), synchronised);
    ask(&right.decides().await, "a").await;
    right.end(&log).await;
}

#[tokio::test]
async fn a_clock_that_jumps_between_its_check_and_the_first_record_is_not_followed() {
    let log = MemoryLog::new("default");
    let (sender, deliveries) = mpsc::unbounded_channel();
    let journal = log.open(Box::new(move |delivery| drop(sender.send(delivery)))).expect("a journal");
    let settings = DeciderSettings {
        fleet: "default".parse().expect("a name"),
        writer: WriterId::from_random(0),
        build: "test".into(),
        address: None,
        lease: Duration::from_secs(15),
        part: PART,
        replicas: 10,
        levels: LevelLimits::ALONE,
        inbox: None,
    };
    let following = JournalFollower {
        deliveries,
        publisher: Box::new(|_| ()),
        skipped: Box::new(|| ()),
        committed: Box::new(|_| ()),
        published: Position::ZERO,
    };
    let clock = Arc::new(WallClock::new(Duration::from_hours(24), false, || false));
    // An hour more than the message shows in days: the two clocks of a sample are read one after the other.
    let wall = wall_clock::now().before(Duration::from_hours(400 * 24 + 1));
    let begin = DeciderStart {
        settings,
        fleet: FleetState::new(Lineage::from_random(1)),
        head: None,
        journal: Arc::new(journal),
        following,
        queue: 16,
        clock: Arc::clone(&clock),
        judged: JudgedClock { wall, at: std::time::Instant::now() },
    };
    let (decider, ended) = start(begin).expect("it starts");
    ask(&decider, "a").await;
    let last = log.source().head().expect("a record").time;
    assert!(last.since(wall) < Duration::from_hours(1), "the journal is at {last}, and started at {wall}");
    assert!(
        clock.trouble().is_some_and(|text| text.contains("has jumped 400 days")),
        "{:?}",
        clock.trouble()
    );
    decider.send(DeciderInput::Drain).await.expect("it takes inputs");
    ended.await.expect("it ends");
}

#[tokio::test]
async fn a_fleet_does_not_start_where_another_one_has_started() {
    let log = MemoryLog::new("default");
    let one = TestServer::start(&log, "one", None);
    // Another fleet's server was faster.
    let by = WriterIdentity { fleet: "other".into(), build: "test".into(), writer: WriterId::from_random(1) };
    let fact = Fact::read("term.started.v1", "{}").expect("a known type").expect("data");
    let mut draft = RecordDraft::new();
    draft.push(&Event::Fact { cause: Position::FIRST, fact }.line()).expect("space");
    let parts = genesis(&by, Time::from_micros(1), Lineage::from_random(7));
    let other = log.open(Box::new(drop)).expect("a journal");
    other.append(draft.seal(parts).expect("a record")).expect("space");
    let why = one.leader_loop.await.expect("no panic").expect_err("it ends");
    assert!(why.to_string().contains("records of another fleet"), "{why:?}");
}

#[test]
fn deciders_that_end_soon_are_followed_by_longer_pauses() {
    let mut pause = TakeoverDelay::default();
    let lengths = [(); 6].map(|()| {
        pause = pause.after(Instant::now());
        pause.length.as_millis()
    });
    assert_eq!(lengths, [1000, 2000, 4000, 8000, 8000, 8000]);
    assert!(pause.over > Instant::now() + Duration::from_secs(7));
    let settled = Instant::now().checked_sub(CALM).expect("the machine has run for longer");
    assert_eq!(pause.after(settled).length, PAUSE);
}

/// Returns whether the executor makes a request within the time.
#[cfg(feature = "kubernetes")]
async fn is_asked(api: &tokio::net::TcpListener, within: Duration) -> bool {
    // The connection is closed without an answer.
    tokio::time::timeout(within, api.accept()).await.is_ok_and(|accepted| accepted.is_ok())
}

#[cfg(feature = "kubernetes")]
#[tokio::test]
async fn an_executor_of_pods_makes_requests_only_while_its_server_leads() {
    use chancery_executor::directory::CopyPolicy;
    use chancery_executor::process::{CgroupSetting, OutputLimits, QemuSettings};

    use crate::config::EmbeddedClusters;
    use crate::executors::{EmbeddedLogs, ExecutorHost, KubernetesAccess, ProcessLimits, RuntimeAccess};

    let api = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let credentials = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", api.local_addr().expect("a port"))}}],
        "users": [{"name": "test", "user": {}}],
    });
    std::fs::write(&kubeconfig, credentials.to_string()).expect("written");
    let log = MemoryLog::new("default");
    let server = TestServer::start(&log, "one", None);
    let host = ExecutorHost {
        fleet: "default".parse().expect("a name"),
        common: Arc::new(ApiShared::new(HttpLimits::default(), AllowedHosts::default())),
        leader_router: server.router.clone(),
        reader: server.reader.clone(),
        logs: EmbeddedLogs::new(directory.path().join("executors"), EmbeddedClusters::All),
        means: ProcessLimits {
            output: OutputLimits::default(),
            cgroup: CgroupSetting::Off,
            files: None,
            copies: CopyPolicy::Refuse,
            qemu: QemuSettings::default(),
        },
        connections: chancery_decider::ChannelNumbers::default(),
    };
    let access = KubernetesAccess {
        namespace: "control".parse().expect("a name"),
        kubeconfig: Some(kubeconfig),
        context: None,
    };
    let (_clusters, changes) = watch::channel(Position::ZERO);
    let (held, let_go) = watch::channel(false);
    let cluster = "pods".parse().expect("a name");
    let running = tokio::spawn(host.host(cluster, RuntimeAccess::Kubernetes(access), changes, let_go));
    let (quiet, limit) = (Duration::from_secs(5), Duration::from_mins(1));
    assert!(!is_asked(&api, Duration::from_secs(1)).await, "a standby makes a request");
    server.set_leading(true);
    server.decides().await;
    assert!(is_asked(&api, limit).await, "a leader makes no request");
    assert!(is_asked(&api, limit).await, "it is not repeated");
    server.set_leading(false);
    server.stands_by().await;
    // A request may be in flight.
    let _ = is_asked(&api, Duration::ZERO).await;
    assert!(!is_asked(&api, quiet).await, "a standby continues to make requests");
    server.set_leading(true);
    server.decides().await;
    assert!(is_asked(&api, limit).await, "a leader makes no request again");
    drop(held);
    tokio::time::timeout(limit, running).await.expect("it ends").expect("no panic");
    server.end(&log).await;
}
