//! Level of the fleet: what its decider may record, and which servers are known to understand it.
//!
//! | intent | refused if |
//! |---|---|
//! | any | its level is higher than that of the fleet; such an intent is not recorded, as older builds cannot read it |
//! | `fleet.raise` | the level is lower than that of the fleet; the build of the leader does not know the level; another server that has led the fleet had a build that does not know the level, and is not excluded |

use std::sync::Arc;

use chancery_events::fact::{FleetLevelRaised, TermStarted};
use chancery_events::id::Position;
use chancery_events::intent::{FleetRaise, Intent};
use chancery_events::level::FleetLevel;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::context::DecisionContext;
use crate::fleet::{FleetState, FoldResult, StateContradiction};
use crate::meta::FactPosition;
use crate::refuse::DecidedFacts;

/// Maximum number of servers whose levels are kept: those that led last.
const SERVERS: usize = 16;

/// Level of a fleet, and levels that servers know.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LevelState {
    /// Level of the fleet.
    pub level: FleetLevel,
    /// Servers that have led the fleet, in the order of their last terms.
    pub servers: Vec<KnownServer>,
}

/// Server that has led the fleet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KnownServer {
    /// Address at which the server accepted requests.
    pub address: Arc<str>,
    /// Highest level that its build knew in its last term.
    pub level: FleetLevel,
    /// Position at which its last term started.
    pub position: Position,
}

/// Refuses an intent of a higher level than that of the fleet. The refusal must not be recorded.
pub fn refuse_higher(fleet: &FleetState, intent: &Intent) -> Result<(), Refusal> {
    let (needed, level) = (intent.level(), fleet.level());
    if needed <= level {
        return Ok(());
    }
    let name = intent.type_name();
    let detail = format!(
        "{name} needs level {needed}, and the fleet has level {level}\n\
         try: chancery raise fleet, once all servers have a build that knows level {needed}"
    );
    Err(Refusal::new(RefusalCode::Unsupported, detail))
}

pub(crate) fn raise(fleet: &FleetState, ask: &FleetRaise, ctx: &DecisionContext) -> DecidedFacts {
    let (from, to, highest) = (fleet.level(), ask.to, ctx.levels.highest);
    if to == from {
        return Ok(vec![]);
    }
    if to < from {
        let detail = format!("the fleet has level {from}, and a level is never lowered");
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail).at("/to", "must not be lower"));
    }
    if to > highest {
        let detail = format!("the build of the leader knows levels up to {highest}");
        return Err(Refusal::new(RefusalCode::Unsupported, detail).at("/to", "must be known to the leader"));
    }
    let is_behind = |server: &&KnownServer| {
        server.level < to
            && fleet.decider() != Some(&server.address)
            && !ask.without.iter().any(|address| **address == *server.address)
    };
    let behind: Vec<_> = fleet.levels().servers.iter().filter(is_behind).collect();
    if ctx.levels.has_standbys && !behind.is_empty() {
        let of = |server: &&KnownServer| {
            let KnownServer { address, level, position } = server;
            format!("{address} (level {level}, leader from position {position})")
        };
        let all = behind.iter().map(of).collect::<Vec<_>>().join(", ");
        let detail = format!(
            "servers had a build that does not know level {to}: {all}\n\
             hint: let each lead once with a newer build, or exclude those that are gone: --without ADDRESS"
        );
        return Err(Refusal::new(RefusalCode::Unsupported, detail));
    }
    Ok(vec![FleetLevelRaised { from, to }.into()])
}

pub(crate) fn term_started(state: &mut LevelState, fact: &TermStarted, at: FactPosition) {
    let Some(address) = fact.address.as_deref() else { return };
    state.servers.retain(|server| *server.address != *address);
    if state.servers.len() == SERVERS {
        state.servers.remove(0);
    }
    state.servers.push(KnownServer { address: address.into(), level: fact.level, position: at.position });
}

pub(crate) fn raised(state: &mut LevelState, fact: &FleetLevelRaised) -> FoldResult {
    if fact.from != state.level || fact.to <= fact.from {
        let problem =
            format!("it has level {}, and is raised from {} to {}", state.level, fact.from, fact.to);
        return Err(StateContradiction { subject: Subject::Fleet, problem });
    }
    state.level = fact.to;
    Ok(())
}
