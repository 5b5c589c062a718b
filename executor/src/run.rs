//! Loop around the session: channels, clock, disk and orchestrator. The loop decides nothing.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::{ExecutorStoreId, ObjectId};
use chancery_events::name::{ClusterName, ExecutorName};
use chancery_events::observation::ObjectReport;
use chancery_events::protocol::{DeciderMessage, ExecutorEpoch, ExecutorMessage};
use chancery_events::spec::ClusterRuntime;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};

use crate::command_spans::CommandSpans;
use crate::directory::CopyPolicy;
use crate::locked_directory::LockedDirectory;
use crate::or_never;
use crate::orchestrator::{InventoryError, Orchestrator, WorkProgress};
use crate::session::{
    ExecutorStop, HighestHead, ObjectWork, SessionAction, SessionCore, SessionIdentity, SessionInput,
};
use crate::status::ExecutorStatus;

/// Maximum number of changes per read from the orchestrator.
const CHANGES: usize = 256;
/// Maximum number of queued messages. Further changes stay with the orchestrator, which keeps the newest.
const OUTBOX: usize = 512;
/// Time limit of a goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Identity of an executor's objects and of its epochs, stored where the runtime keeps the objects.
///
/// An object that is missing from a store is gone only if it was started there. Opening a store starts an epoch and
/// ends the earlier one, or fails.
pub trait EpochStore: Send + Sync + 'static {
    /// Id of the store, drawn once.
    fn id(&self) -> ExecutorStoreId;

    /// Epoch that opening the store has started.
    fn epoch(&self) -> ExecutorEpoch;

    /// Stores a head before work starts that depends on it. A store may omit a head that differs from the stored one
    /// in its position alone. A failure ends the executor.
    fn remember(self: Arc<Self>, seen: HighestHead) -> impl Future<Output = Result<(), ExecutorStop>> + Send;

    /// Waits until another executor has taken over; permanently if the store excludes other executors.
    fn taken_over(&self) -> impl Future<Output = ExecutorStop> + Send {
        std::future::pending()
    }
}

/// Configuration of an executor.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// Name of the executor.
    pub executor: ExecutorName,
    /// Cluster of the executor.
    pub cluster: ClusterName,
    /// Runtime that the executor drives.
    pub runtime: ClusterRuntime,
    /// Maximum number of concurrent work starts; 32 is fine.
    pub at_once: usize,
    /// Status that the executor updates.
    pub status: Arc<ExecutorStatus>,
}

/// Opens the store of an executor in a directory, with `lock`, `store.json` and `head.json`. One executor per
/// directory.
pub async fn open_directory(
    root: PathBuf,
    copies: CopyPolicy,
) -> Result<(Arc<LockedDirectory>, Option<HighestHead>), ExecutorStop> {
    let opened = spawn_blocking(move || LockedDirectory::open(&root, copies)).await;
    let (store, seen) = opened.expect("opening an executor store does not panic")?;
    Ok((Arc::new(store), seen))
}

/// Channel to the decider: JSON texts of [`ExecutorMessage`] and
/// [`DeciderMessage`](chancery_events::protocol::DeciderMessage). A closed half is a lost channel.
#[derive(Debug)]
pub struct DeciderChannel {
    /// Sender of one [`ExecutorMessage`] per message.
    pub to_decider: mpsc::Sender<Vec<u8>>,
    /// Receiver of one [`DeciderMessage`](chancery_events::protocol::DeciderMessage) per message.
    pub from_decider: mpsc::Receiver<Vec<u8>>,
}

/// Runs an executor until `shutdown`, or until it must stop acting. Whatever the orchestrator runs continues
/// to run.
///
/// `store` is what opening the executor store returned: the store, and the highest head that an executor over it has
/// seen. The orchestrator is opened after the store: another executor may have been working in it.
/// `connect` is called for each channel; an error is retried after a pause that grows up to 5 s.
pub async fn run<O, S, C, F>(
    config: ExecutorConfig,
    (store, seen): (Arc<S>, Option<HighestHead>),
    open: impl Future<Output = std::io::Result<O>>,
    connect: C,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ExecutorStop>
where
    O: Orchestrator,
    S: EpochStore,
    C: FnMut() -> F,
    F: Future<Output = std::io::Result<DeciderChannel>>,
{
    let ExecutorConfig { executor, cluster, runtime, at_once, status } = config;
    let mut shutdown = std::pin::pin!(shutdown);
    let opened = tokio::select! {
        opened = open => opened,
        () = &mut shutdown => return Ok(()),
    };
    let orchestrator = Arc::new(opened?);
    let identity = SessionIdentity { executor, cluster, runtime, store: store.id(), epoch: store.epoch() };
    let mut running = ExecutorLoop {
        core: SessionCore::new(identity, seen, at_once),
        orchestrator,
        connect,
        connecting: None,
        channel: None,
        outbox: VecDeque::new(),
        listing: None,
        works: JoinSet::new(),
        on: HashMap::new(),
        spans: CommandSpans::default(),
        status,
        store: store.clone(),
    };
    let mut taken_over = std::pin::pin!(store.taken_over());
    loop {
        let input = tokio::select! {
            biased;
            () = &mut shutdown => SessionInput::Leave,
            stop = &mut taken_over => return Err(stop),
            input = running.next() => input,
        };
        if running.act(input).await?.is_break() {
            running.send_goodbye().await;
            return Ok(());
        }
    }
}

type PendingInventory = Pin<Box<dyn Future<Output = Result<Vec<ObjectReport>, InventoryError>> + Send>>;

struct ExecutorLoop<O, S, C, F> {
    core: SessionCore,
    orchestrator: Arc<O>,
    connect: C,
    connecting: Option<Pin<Box<F>>>,
    channel: Option<DeciderChannel>,
    outbox: VecDeque<ExecutorMessage>,
    listing: Option<PendingInventory>,
    /// Tasks of running work; each returns the work if it was put off.
    works: JoinSet<Option<ObjectWork>>,
    /// Object of each task in `works`, so that a panicking task still releases its object.
    on: HashMap<tokio::task::Id, ObjectId>,
    spans: CommandSpans,
    status: Arc<ExecutorStatus>,
    /// Executor store, dropped last: a lock in it excludes other executors until this one writes nothing.
    store: Arc<S>,
}

enum LoopEvent {
    Input(SessionInput),
    Linked(std::io::Result<DeciderChannel>),
    Listed(Result<Vec<ObjectReport>, InventoryError>),
    Done(tokio::task::Id, Option<ObjectWork>),
    Sent,
    Unread(serde_json::Error),
    Lost,
}

impl<O, S, C, F> ExecutorLoop<O, S, C, F>
where
    O: Orchestrator,
    S: EpochStore,
    C: FnMut() -> F,
    F: Future<Output = std::io::Result<DeciderChannel>>,
{
    /// Waits for the next input. Safe to cancel.
    async fn next(&mut self) -> SessionInput {
        loop {
            let woken = self.woken().await;
            match woken {
                LoopEvent::Input(input) => return input,
                LoopEvent::Lost => {
                    self.hang_up();
                    return SessionInput::Disconnected;
                }
                LoopEvent::Linked(Ok(channel)) => {
                    (self.connecting, self.channel) = (None, Some(channel));
                    return SessionInput::Connected;
                }
                LoopEvent::Linked(Err(error)) => {
                    tracing::warn!(%error, "cannot reach decider, retrying");
                    self.status.lost();
                    (self.connecting, self.channel) = (None, None);
                    return SessionInput::Disconnected;
                }
                LoopEvent::Listed(listed) => {
                    self.listing = None;
                    return listed.map_or_else(SessionInput::NotListed, SessionInput::Listed);
                }
                LoopEvent::Done(task, put_off) => {
                    if let Some(object) = self.on.remove(&task) {
                        return put_off.map_or(SessionInput::Done(object), SessionInput::PutOff);
                    }
                }
                LoopEvent::Unread(error) => {
                    tracing::error!(%error, "cannot read message of decider");
                }
                LoopEvent::Sent => {}
            }
        }
    }

    async fn woken(&mut self) -> LoopEvent {
        let due = self.core.due().map(|due| due.saturating_sub(now()));
        let takes_changes = self.core.takes_changes() && self.outbox.len() < OUTBOX;
        let (to, from) =
            self.channel.as_mut().map(|channel| (&channel.to_decider, &mut channel.from_decider)).unzip();
        tokio::select! {
            biased;
            // Time comes first, so that a flood of messages cannot starve the heartbeat.
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => LoopEvent::Input(SessionInput::Tick),
            Some(done) = self.works.join_next_with_id() => match done {
                Ok((id, put_off)) => LoopEvent::Done(id, put_off),
                Err(error) => {
                    tracing::error!(%error, "work on object failed");
                    LoopEvent::Done(error.id(), None)
                }
            },
            connected = or_never(self.connecting.as_mut()) => LoopEvent::Linked(connected),
            permit = or_never(to.map(mpsc::Sender::reserve)), if !self.outbox.is_empty() => match (permit, self.outbox.pop_front()) {
                (Ok(permit), Some(message)) => {
                    permit.send(encode(&message));
                    LoopEvent::Sent
                }
                (Ok(_), None) => LoopEvent::Sent,
                (Err(_), _) => LoopEvent::Lost,
            },
            message = or_never(from.map(mpsc::Receiver::recv)) => match message.as_deref().map(serde_json::from_slice) {
                Some(Ok(message)) => LoopEvent::Input(SessionInput::Message(message)),
                Some(Err(error)) => LoopEvent::Unread(error),
                None => LoopEvent::Lost,
            },
            listed = or_never(self.listing.as_mut()) => LoopEvent::Listed(listed),
            changes = self.orchestrator.changes(CHANGES), if takes_changes => {
                LoopEvent::Input(changes.map_or_else(SessionInput::WatchLost, SessionInput::Changed))
            }
        }
    }

    fn hang_up(&mut self) {
        if self.channel.is_some() {
            self.status.lost();
        }
        self.channel = None;
        self.listing = None;
        self.outbox.clear();
        self.spans.clear();
    }

    /// Takes an input. Breaks once the executor leaves.
    async fn act(&mut self, input: SessionInput) -> Result<ControlFlow<()>, ExecutorStop> {
        if let SessionInput::Message(DeciderMessage::Command { command, .. }) = &input {
            self.spans.received(command);
        }
        for output in self.core.handle(now(), input) {
            match output {
                SessionAction::Connect => {
                    self.status.connecting();
                    self.connecting = Some(Box::pin((self.connect)()));
                }
                SessionAction::HangUp => self.hang_up(),
                // The lease does not wait for a long full report to be sent.
                SessionAction::Send(message @ ExecutorMessage::Heartbeat { .. }) => {
                    self.outbox.push_front(message);
                }
                SessionAction::Send(message) => {
                    if let ExecutorMessage::Report { report, .. } = &message {
                        self.spans.reported(report);
                    }
                    self.outbox.push_back(message);
                }
                SessionAction::List => {
                    let orchestrator = self.orchestrator.clone();
                    self.listing = Some(Box::pin(async move { orchestrator.list().await }));
                }
                SessionAction::Persist(seen) => {
                    self.store.clone().remember(seen).await?;
                }
                SessionAction::Begin(work) => self.begin(work),
                SessionAction::Stop(stop) => return Err(stop),
                SessionAction::Leave => return Ok(ControlFlow::Break(())),
            }
        }
        self.status.session(self.core.is_attached(), self.core.lease_end());
        self.status.work_running(self.works.len());
        Ok(ControlFlow::Continue(()))
    }

    fn begin(&mut self, work: ObjectWork) {
        let object = work.object();
        self.status.work_started();
        let orchestrator = self.orchestrator.clone();
        let call = match &work {
            ObjectWork::CarryOut(command) => self.spans.called(command),
            ObjectWork::Remove { .. } | ObjectWork::Purge(_) => None,
        };
        let task = self.works.spawn(async move {
            let _call = call;
            let progress = match &work {
                ObjectWork::CarryOut(command) => orchestrator.carry_out(command.clone()).await,
                ObjectWork::Remove { object, revision } => orchestrator.remove(*object, *revision).await,
                ObjectWork::Purge(object) => orchestrator.forget(*object).await,
            };
            (progress == WorkProgress::PutOff).then_some(work)
        });
        self.on.insert(task.id(), object);
    }

    /// Waits for running work, sends waiting messages, and closes the channel after the decider.
    async fn send_goodbye(&mut self) {
        // Outcomes of work that hangs are not reported; all that is known by then is.
        let ended = async { while self.works.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GOODBYE / 2, ended).await;
        let _ = tokio::time::timeout(GOODBYE / 2, async {
            if let Some(executor_channel) = &mut self.channel {
                for message in self.outbox.drain(..) {
                    if executor_channel.to_decider.send(encode(&message)).await.is_err() {
                        return;
                    }
                }
                // The decider hangs up when it has received the goodbye.
                while executor_channel.from_decider.recv().await.is_some() {}
            }
        })
        .await;
        self.hang_up();
    }
}

/// Returns the time since boot, sleep included: a lease does not wait for the machine to wake.
pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

fn encode(message: &ExecutorMessage) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is always JSON")
}
