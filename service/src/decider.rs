//! The decider: the one writer of a fleet's commits. A pure core ([`core`]), driven with its journal ([`driver`]) by a
//! thin loop ([`run`]).

pub mod clock;
mod commands;
pub mod core;
pub mod driver;
mod handle;
mod hearing;
pub mod inbox;
mod mailbox;
mod objects;
mod run;
mod saying;
mod sessions;
#[cfg(test)]
mod tests;
mod way;

pub use chancery_machine::keys::Accepted;
pub use driver::Ended;
pub use handle::{Connection, Decider, Input, NoVerdict, Stopped, Verdict};
pub use mailbox::{Full, Letters, Mailbox, mailbox};
pub(crate) use run::random;
pub use run::{Following, Over, Publish, Start, start};
pub use way::{Room, Share, Way};
