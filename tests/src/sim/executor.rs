//! An executor of a simulated world: the session that users run, with the links, works and changes that its loop
//! would hold. It does one thing at a time, when the world says so.

use std::time::Duration;

use chancery_events::id::{Instance, ScopeId, SessionId, Term};
use chancery_events::observation::Report;
use chancery_events::protocol::Life;
use chancery_events::spec::Runtime;
use chancery_executor::board::Board;
use chancery_executor::plan::Told;
use chancery_executor::session::{Core, Identity, Seen, Work};

/// Work that an executor may overlap.
const AT_ONCE: usize = 3;

/// The folder of an executor: what outlives each of its lives.
pub struct Folder {
    /// Which scope it is.
    pub scope: ScopeId,
    /// How many lives were begun over it.
    pub lives: u64,
    /// The highest head in it.
    pub seen: Option<Seen>,
}

/// A machine with a folder.
pub struct Machine {
    /// The executor's name, when it runs.
    pub name: String,
    /// The folder that its executor is started over.
    pub folder: Folder,
    /// The executor, if it runs.
    pub process: Option<Process>,
    /// Until when nobody starts it again.
    pub down: Duration,
    /// How fast its clock goes: so many millionths too fast or slow.
    pub drift: i64,
    /// What its executor says that it drives.
    pub runtime: Runtime,
}

/// What an executor waits for with its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linked {
    /// None is wanted.
    No,
    /// One is being made.
    Coming,
    /// One is held.
    By(u64),
}

/// How far a list has come.
#[derive(Debug)]
pub enum Listing {
    /// None is asked for.
    No,
    /// It is asked for.
    Asked,
    /// It is on its way.
    Taken(Vec<Report>),
}

/// An executor that runs.
pub struct Process {
    /// Its session.
    pub core: Core,
    /// Its link.
    pub link: Linked,
    /// Its list.
    pub listing: Listing,
    /// Work that was begun and not done.
    pub works: Vec<Work>,
    /// Work that was done, and not told to the session yet.
    pub done: Vec<chancery_events::id::ObjectId>,
    /// What the orchestrator has to tell.
    pub board: Board,
    /// Until when it stands still.
    pub paused: Option<Duration>,
    /// The session under which it works, and the term that last spoke to it.
    pub under: Option<(SessionId, Term)>,
}

impl Folder {
    /// An empty one.
    pub fn new(scope: ScopeId) -> Folder {
        Folder { scope, lives: 0, seen: None }
    }
}

impl Machine {
    /// A machine whose executor has not started yet.
    pub fn new(name: String, drift: i64, runtime: Runtime, folder: Folder) -> Machine {
        Machine { name, folder, process: None, down: Duration::ZERO, drift, runtime }
    }

    /// What its clock says.
    pub fn clock(&self, now: Duration) -> Duration {
        let micros = i128::try_from(now.as_micros()).unwrap_or(i128::MAX / 2_000_000);
        let micros = micros + micros * i128::from(self.drift) / 1_000_000;
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// When its clock says `clock`, in the world's time.
    pub fn world_time(&self, clock: Duration) -> Duration {
        let micros = i128::try_from(clock.as_micros()).unwrap_or(i128::MAX / 2_000_000);
        let micros = micros * 1_000_000 / (1_000_000 + i128::from(self.drift));
        // Both ways are rounded: a timer never fires early.
        Duration::from_micros(u64::try_from(micros).unwrap_or(0) + 2)
    }

    /// Starts its executor; `instance` is random.
    pub fn start(&mut self, cluster: &str, instance: Instance) {
        self.folder.lives += 1;
        let identity = Identity {
            executor: self.name.parse().expect("an executor's name"),
            cluster: cluster.parse().expect("a cluster's name"),
            runtime: self.runtime,
            scope: self.folder.scope,
            life: Life { number: self.folder.lives, instance },
        };
        self.process = Some(Process {
            core: Core::new(identity, self.folder.seen, AT_ONCE),
            link: Linked::No,
            listing: Listing::No,
            works: Vec::new(),
            done: Vec::new(),
            board: Board::default(),
            paused: None,
            under: None,
        });
    }
}

impl Process {
    /// Shows what the orchestrator told.
    pub fn show(&self, told: Told) {
        match told {
            Told::Change(report) => self.board.show(report),
            Told::ListOnly(report) => self.board.show_in_lists(report),
        }
    }
}
