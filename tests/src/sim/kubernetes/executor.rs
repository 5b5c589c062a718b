//! Executor of pods in a world: the real store and orchestrator, on a runtime whose clock the world moves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chancery_events::observation::ObjectReport;
use chancery_executor::kubernetes::{KubernetesConfig, KubernetesOrchestrator, KubernetesStore};
use chancery_executor::session::{ExecutorStop, HighestHead, ObjectWork};
use chancery_executor::{EpochStore as _, InventoryError, Orchestrator as _, WatchLost, WorkProgress};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use super::api::{SimulatedApi, client};
use crate::sim::server::FLEET;

/// Turns of the tasks of an executor in one run: more than a request needs to be sent.
const TURNS: usize = 12;
/// Maximum number of reports that are read together.
const CHANGES: usize = 4;

/// Outcome of a task of an executor.
pub enum PodEvent {
    /// The store was opened, and all objects are known.
    Opened(Box<OpenedStore>),
    /// A list has ended.
    Listed(Result<Vec<ObjectReport>, InventoryError>),
    /// The wait for changes has ended.
    Changed(Result<Vec<ObjectReport>, WatchLost>),
    /// Work has started, or was put off.
    Done(ObjectWork, WorkProgress),
    /// The executor cannot continue.
    Stopped(ExecutorStop),
}

/// Store of an executor, and what drives its pods.
pub struct OpenedStore {
    store: Arc<KubernetesStore>,
    orchestrator: Arc<KubernetesOrchestrator>,
    /// Highest head in the store.
    pub seen: Option<HighestHead>,
}

impl OpenedStore {
    /// Returns the number of the epoch.
    pub fn epoch(&self) -> u64 {
        self.store.epoch().number
    }
}

type EventQueue = Arc<Mutex<Vec<PodEvent>>>;

/// Executor of pods: see the module.
pub struct PodExecutor {
    // Dropped first: its tasks end.
    runtime: Runtime,
    events: EventQueue,
    opened: Option<OpenedStore>,
    /// World's time that the executor has reached.
    clock: Duration,
    listing: Option<AbortHandle>,
    watching: Option<AbortHandle>,
    /// Head that must be stored before the next work starts.
    pub head: Option<HighestHead>,
    /// Whether something has happened since the executor last rested.
    pub is_stirred: bool,
}

fn push(events: &EventQueue, event: PodEvent) {
    events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
}

impl PodExecutor {
    /// Starts an executor of a cluster.
    pub fn start(api: &Arc<Mutex<SimulatedApi>>, cluster: usize, now: Duration) -> PodExecutor {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without I/O");
        let config = KubernetesConfig {
            kubeconfig: None,
            context: None,
            namespace: "system".parse().expect("a namespace"),
            fleet: FLEET.parse().expect("a fleet's name"),
            cluster: format!("c{cluster}").parse().expect("a cluster's name"),
        };
        let events = EventQueue::default();
        let client = {
            let _entered = runtime.enter();
            client(api)
        };
        let opened = Arc::clone(&events);
        runtime.spawn(async move {
            let event = match config.open_store(client.clone()).await {
                Ok((store, seen)) => {
                    let orchestrator = KubernetesOrchestrator::open(client, &config.namespace, &store).await;
                    PodEvent::Opened(Box::new(OpenedStore {
                        store,
                        orchestrator: Arc::new(orchestrator),
                        seen,
                    }))
                }
                Err(stop) => PodEvent::Stopped(stop),
            };
            push(&opened, event);
        });
        PodExecutor {
            runtime,
            events,
            opened: None,
            clock: now,
            listing: None,
            watching: None,
            head: None,
            is_stirred: true,
        }
    }

    /// Notes that the store was opened.
    pub fn open(&mut self, opened: OpenedStore) {
        let (store, events) = (Arc::clone(&opened.store), Arc::clone(&self.events));
        self.runtime.spawn(async move { push(&events, PodEvent::Stopped(store.taken_over().await)) });
        self.opened = Some(opened);
    }

    /// Runs the tasks of the executor, whose clock is moved to `now`, and returns their outcomes.
    pub fn run(&mut self, now: Duration) -> Vec<PodEvent> {
        let by = now.saturating_sub(self.clock);
        self.clock = self.clock.max(now);
        self.runtime.block_on(async {
            if !by.is_zero() {
                tokio::time::advance(by).await;
            }
            for _ in 0..TURNS {
                // A task that yields is always ready, so the clock does not move.
                tokio::task::yield_now().await;
            }
        });
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let events = std::mem::take(&mut *events);
        for event in &events {
            match event {
                PodEvent::Listed(_) => self.listing = None,
                PodEvent::Changed(_) => self.watching = None,
                PodEvent::Opened(_) | PodEvent::Done(..) | PodEvent::Stopped(_) => {}
            }
        }
        events
    }

    /// Lists all objects.
    pub fn list(&mut self) {
        let Some(OpenedStore { orchestrator, .. }) = &self.opened else { return };
        let (orchestrator, events) = (Arc::clone(orchestrator), Arc::clone(&self.events));
        let task = async move { push(&events, PodEvent::Listed(orchestrator.list().await)) };
        self.listing = Some(self.runtime.spawn(task).abort_handle());
        self.is_stirred = true;
    }

    /// Waits for changes, unless it does.
    pub fn watch(&mut self) {
        let Some(OpenedStore { orchestrator, .. }) = self.opened.as_ref().filter(|_| self.watching.is_none())
        else {
            return;
        };
        let (orchestrator, events) = (Arc::clone(orchestrator), Arc::clone(&self.events));
        let task = async move { push(&events, PodEvent::Changed(orchestrator.changes(CHANGES).await)) };
        self.watching = Some(self.runtime.spawn(task).abort_handle());
        self.is_stirred = true;
    }

    /// Gives up a list, and the wait for changes.
    pub fn hang_up(&mut self) {
        for task in [self.listing.take(), self.watching.take()].into_iter().flatten() {
            task.abort();
        }
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.retain(|event| !matches!(event, PodEvent::Listed(_)));
    }

    /// Starts work, once the head that it needs was stored.
    pub fn work(&mut self, work: ObjectWork) {
        let head = self.head.take();
        let Some(OpenedStore { store, orchestrator, .. }) = &self.opened else { return };
        let (store, orchestrator) = (Arc::clone(store), Arc::clone(orchestrator));
        let events = Arc::clone(&self.events);
        self.runtime.spawn(async move {
            if let Some(head) = head
                && let Err(stop) = store.remember(head).await
            {
                return push(&events, PodEvent::Stopped(stop));
            }
            let progress = match &work {
                ObjectWork::CarryOut(command) => orchestrator.carry_out(command.clone()).await,
                ObjectWork::Remove { object, revision } => orchestrator.remove(*object, *revision).await,
                ObjectWork::Purge(object) => orchestrator.forget(*object).await,
            };
            push(&events, PodEvent::Done(work, progress));
        });
        self.is_stirred = true;
    }
}
