//! Decider: the single writer of a fleet's commits. A thin loop ([`run`]) drives a pure core ([`core`]) with
//! its journal ([`driver`]). The event [`hub`] follows its commits; the [`desk`] finds the leader.

pub mod clock;
mod commands;
pub mod core;
pub mod desk;
pub mod driver;
mod handle;
mod hearing;
pub mod hub;
pub mod inbox;
mod mailbox;
mod objects;
mod run;
mod sessions;
#[cfg(test)]
mod tests;
pub mod troubles;
pub mod wall_clock;
mod way;

pub use chancery_machine::keys::AcceptedIntent;
pub use driver::DeciderEnd;
pub use handle::{
    ChannelNumber, ChannelNumbers, DeciderHandle, DeciderInput, DeciderStopped, Verdict, VerdictError,
};
pub use hub::EventHub;
pub use mailbox::{ExecutorOutbox, OutboxFull, OutboxReceiver, mailbox};
pub use run::{DeciderExit, DeciderStart, JournalFollower, PublishFn, random, start};
pub use way::{InboxPermit, InputPermit, InputSender};
