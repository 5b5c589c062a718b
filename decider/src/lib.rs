//! Decider: the single writer of a fleet's commits. A thin loop ([`run`]) drives a pure core ([`core`]) with
//! its journal ([`driver`]). The event [`hub`] follows its commits; the [`desk`] finds the leader.

pub mod clock;
mod commands;
pub mod core;
pub mod driver;
pub mod dry_run;
mod handle;
pub mod hub;
pub mod inbox;
mod input_lag;
mod input_permits;
pub mod leader_router;
mod objects;
mod outbox;
mod run;
mod sessions;
#[cfg(test)]
mod tests;
mod traces;
pub mod troubles;
pub mod wall_clock;

pub use chancery_machine::keys::AcceptedIntent;
pub use driver::DeciderEnd;
pub use handle::{
    ChannelNumber, ChannelNumbers, DeciderHandle, DeciderInput, DeciderReading, DeciderStopped, IntentTrace,
    UnchangedVerdict, Verdict, VerdictError,
};
pub use hub::EventHub;
pub use input_permits::{InboxPermit, InputPermit, InputSender};
pub use outbox::{ExecutorOutbox, OutboxFull, OutboxReceiver, outbox};
pub use run::{DeciderExit, DeciderStart, JournalFollower, PublishFn, random, start};
