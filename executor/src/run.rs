//! Loop around the session: channels, clock, disk and orchestrator. The loop decides nothing.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::ObjectId;
use chancery_events::name::{ClusterName, ExecutorName};
use chancery_events::observation::Report;
use chancery_events::protocol::ToDecider;
use chancery_events::spec::Runtime;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};

use crate::directory::CopyPolicy;
use crate::or_never;
use crate::orchestrator::{InventoryError, Orchestrator, WorkProgress};
use crate::scope::{Scope, ScopeError};
use crate::session::{Core, Identity, Input, Output, Stop, Work};

/// Maximum number of changes per read from the orchestrator.
const CHANGES: usize = 256;
/// Maximum number of queued messages. Further changes stay with the orchestrator, which keeps the newest.
const OUTBOX: usize = 512;
/// Time limit of a goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Configuration of an executor.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the executor.
    pub executor: ExecutorName,
    /// Cluster of the executor.
    pub cluster: ClusterName,
    /// Runtime that the executor drives.
    pub runtime: Runtime,
    /// Directory of `lock`, `scope.json` and `head.json`. One executor per root.
    pub root: PathBuf,
    /// Maximum number of concurrent work starts; 32 is fine.
    pub at_once: usize,
    /// Action if the root is a copy.
    pub copies: CopyPolicy,
}

/// Channel to the decider: JSON texts of [`ToDecider`] and
/// [`FromDecider`](chancery_events::protocol::FromDecider). A closed half is a lost channel.
#[derive(Debug)]
pub struct Link {
    /// Sender of one [`ToDecider`] per message.
    pub to_decider: mpsc::Sender<Vec<u8>>,
    /// Receiver of one [`FromDecider`](chancery_events::protocol::FromDecider) per message.
    pub from_decider: mpsc::Receiver<Vec<u8>>,
}

/// Runs an executor until `shutdown`, or until it must stop acting. Whatever the orchestrator runs continues
/// to run.
///
/// The orchestrator is opened after the executor store is locked: another executor may be working in it.
/// `connect` is called for each channel; an error is retried after a pause that grows up to 5 s.
pub async fn run<O, C, F>(
    config: Config,
    open: impl Future<Output = std::io::Result<O>>,
    connect: C,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Stop>
where
    O: Orchestrator,
    C: FnMut() -> F,
    F: Future<Output = std::io::Result<Link>>,
{
    let Config { executor, cluster, runtime, root, at_once, copies } = config;
    let opened = spawn_blocking(move || Scope::open(&root, copies)).await;
    let opened = opened.expect("opening a scope does not panic");
    let (scope, seen) = opened.map_err(|error| match error {
        ScopeError::Taken => Stop::ScopeTaken,
        ScopeError::Copied(copy) => Stop::Copied(copy),
        ScopeError::Storage(source) => Stop::Storage(source),
    })?;
    let orchestrator = Arc::new(open.await.map_err(Stop::Storage)?);
    let (id, life) = (scope.id(), scope.life());
    let core = Core::new(Identity { executor, cluster, runtime, scope: id, life }, seen, at_once);
    let mut running = Loop {
        core,
        orchestrator,
        connect,
        connecting: None,
        link: None,
        outbox: VecDeque::new(),
        listing: None,
        works: JoinSet::new(),
        on: HashMap::new(),
        scope: Arc::new(scope),
    };
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let input = tokio::select! {
            biased;
            () = &mut shutdown => Input::Leave,
            input = running.next() => input,
        };
        if running.act(input).await? == Next::Leave {
            running.say_goodbye().await;
            return Ok(());
        }
    }
}

type PendingInventory = Pin<Box<dyn Future<Output = Result<Vec<Report>, InventoryError>> + Send>>;

struct Loop<O, C, F> {
    core: Core,
    orchestrator: Arc<O>,
    connect: C,
    connecting: Option<Pin<Box<F>>>,
    link: Option<Link>,
    outbox: VecDeque<ToDecider>,
    listing: Option<PendingInventory>,
    /// Tasks of running work; each returns the work if it was put off.
    works: JoinSet<Option<Work>>,
    /// Object of each task in `works`, so that a panicking task still releases its object.
    on: HashMap<tokio::task::Id, ObjectId>,
    /// Executor store, dropped last: its lock excludes other executors until this one writes nothing.
    scope: Arc<Scope>,
}

enum Woken {
    Input(Input),
    Linked(std::io::Result<Link>),
    Listed(Result<Vec<Report>, InventoryError>),
    Done(tokio::task::Id, Option<Work>),
    Sent,
    Unread(serde_json::Error),
    Lost,
}

#[derive(PartialEq)]
enum Next {
    GoOn,
    Leave,
}

impl<O, C, F> Loop<O, C, F>
where
    O: Orchestrator,
    C: FnMut() -> F,
    F: Future<Output = std::io::Result<Link>>,
{
    /// Waits for the next input. Safe to cancel.
    async fn next(&mut self) -> Input {
        loop {
            let woken = self.woken().await;
            match woken {
                Woken::Input(input) => return input,
                Woken::Lost => {
                    self.hang_up();
                    return Input::Disconnected;
                }
                Woken::Linked(connected) => {
                    self.connecting = None;
                    self.link = connected
                        .inspect_err(
                            |error| tracing::warn!(%error, "no decider is reached; it is tried again"),
                        )
                        .ok();
                    return if self.link.is_some() { Input::Connected } else { Input::Disconnected };
                }
                Woken::Listed(listed) => {
                    self.listing = None;
                    return listed.map_or_else(Input::NotListed, Input::Listed);
                }
                Woken::Done(task, put_off) => {
                    if let Some(object) = self.on.remove(&task) {
                        return put_off.map_or(Input::Done(object), Input::PutOff);
                    }
                }
                Woken::Unread(error) => tracing::error!(%error, "a message of the decider cannot be read"),
                Woken::Sent => {}
            }
        }
    }

    async fn woken(&mut self) -> Woken {
        let due = self.core.due().map(|due| due.saturating_sub(now()));
        let takes_changes = self.core.takes_changes() && self.outbox.len() < OUTBOX;
        let (to, from) = match &mut self.link {
            Some(link) => (Some(&link.to_decider), Some(&mut link.from_decider)),
            None => (None, None),
        };
        tokio::select! {
            biased;
            // Time comes first, so that a flood of messages cannot starve the heartbeat.
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => Woken::Input(Input::Tick),
            Some(done) = self.works.join_next_with_id() => match done {
                Ok((id, put_off)) => Woken::Done(id, put_off),
                Err(error) => {
                    tracing::error!(%error, "work on an object broke off");
                    Woken::Done(error.id(), None)
                }
            },
            connected = or_never(self.connecting.as_mut()) => Woken::Linked(connected),
            permit = or_never(to.map(mpsc::Sender::reserve)), if !self.outbox.is_empty() => match (permit, self.outbox.pop_front()) {
                (Ok(permit), Some(message)) => {
                    permit.send(encode(&message));
                    Woken::Sent
                }
                (Ok(_), None) => Woken::Sent,
                (Err(_), _) => Woken::Lost,
            },
            message = or_never(from.map(mpsc::Receiver::recv)) => match message.as_deref().map(serde_json::from_slice) {
                Some(Ok(message)) => Woken::Input(Input::Heard(message)),
                Some(Err(error)) => Woken::Unread(error),
                None => Woken::Lost,
            },
            listed = or_never(self.listing.as_mut()) => Woken::Listed(listed),
            changes = self.orchestrator.changes(CHANGES), if takes_changes => {
                Woken::Input(changes.map_or_else(Input::WatchLost, Input::Changed))
            }
        }
    }

    fn hang_up(&mut self) {
        self.link = None;
        self.listing = None;
        self.outbox.clear();
    }

    async fn act(&mut self, input: Input) -> Result<Next, Stop> {
        for output in self.core.handle(now(), input) {
            match output {
                Output::Connect => self.connecting = Some(Box::pin((self.connect)())),
                Output::HangUp => self.hang_up(),
                // The lease does not wait for a long full report to be sent.
                Output::Say(message @ ToDecider::Heartbeat { .. }) => self.outbox.push_front(message),
                Output::Say(message) => self.outbox.push_back(message),
                Output::List => {
                    let orchestrator = self.orchestrator.clone();
                    self.listing = Some(Box::pin(async move { orchestrator.list().await }));
                }
                Output::Persist(seen) => {
                    // The task keeps the lock until the head is written, even if the loop is dropped.
                    let scope = self.scope.clone();
                    let kept = spawn_blocking(move || scope.remember(&seen)).await;
                    kept.expect("keeping a head does not panic").map_err(Stop::Storage)?;
                }
                Output::Begin(work) => self.begin(work),
                Output::Stop(stop) => return Err(stop),
                Output::Leave => return Ok(Next::Leave),
            }
        }
        Ok(Next::GoOn)
    }

    fn begin(&mut self, work: Work) {
        let object = work.object();
        let orchestrator = self.orchestrator.clone();
        let task = self.works.spawn(async move {
            let progress = match &work {
                Work::CarryOut(command) => orchestrator.carry_out(command.clone()).await,
                Work::Remove { object, revision } => orchestrator.remove(*object, *revision).await,
                Work::Forget(object) => orchestrator.forget(*object).await,
            };
            (progress == WorkProgress::PutOff).then_some(work)
        });
        self.on.insert(task.id(), object);
    }

    /// Waits for running work, sends waiting messages, and closes the channel after the decider.
    async fn say_goodbye(&mut self) {
        // Outcomes of work that hangs are not reported; all that is known by then is.
        let ended = async { while self.works.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GOODBYE / 2, ended).await;
        let _ = tokio::time::timeout(GOODBYE / 2, async {
            if let Some(link) = &mut self.link {
                for message in self.outbox.drain(..) {
                    if link.to_decider.send(encode(&message)).await.is_err() {
                        return;
                    }
                }
                // The decider hangs up when it has received the goodbye.
                while link.from_decider.recv().await.is_some() {}
            }
        })
        .await;
        self.hang_up();
    }
}

/// Returns the time since boot, sleep included: a lease does not wait for the machine to wake.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

fn encode(message: &ToDecider) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is always JSON")
}
