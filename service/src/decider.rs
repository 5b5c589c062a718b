//! The decider: the one writer of a fleet's commits. A pure core ([`core`]) inside a thin loop ([`run`]).

pub mod clock;
pub mod core;
mod handle;
mod run;
mod sessions;
#[cfg(test)]
mod tests;

pub use chancery_machine::keys::Accepted;
pub use handle::{Connection, Decider, Input, NoVerdict, Stopped, Verdict};
pub use run::{Ended, Publish, Start, start};
