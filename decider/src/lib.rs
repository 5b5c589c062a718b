//! Decider: the single writer of a fleet's commits. A thin loop ([`run`]) drives a pure core ([`core`]) with
//! its journal ([`driver`]). The [`hub`] of events follows its commits; the [`desk`] finds the leader.

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

pub use chancery_machine::keys::Accepted;
pub use driver::Ended;
pub use handle::{Connection, Connections, Decider, Input, NoVerdict, Stopped, Verdict};
pub use hub::Hub;
pub use mailbox::{Full, Letters, Mailbox, mailbox};
pub use run::{Following, Over, Publish, Start, random, start};
pub use way::{Room, Share, Way};
