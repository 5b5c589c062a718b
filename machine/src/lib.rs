//! Pure state machine of Chancery: decides what may happen next, and why not something else.
//!
//! Functions are synchronous and map values to values: no clock, no randomness, no I/O, no hash order. The
//! decider calls [`decide::decide`], [`decide::observe`] and [`advance::advance`], which only conclude facts.
//! Every process that has a state folds these facts by [`decide::evolve`].
//!
//! Reading order: the input ([`context`]), the entities ([`state`]), the fleet that contains them, and the
//! four functions. A module for each entity follows, with its table of states.

pub mod advance;
mod catalogue;
pub mod context;
pub mod decide;
pub mod deployment;
mod disruption;
pub mod fleet;
pub mod grace;
pub mod incarnation;
pub mod index;
pub mod keys;
mod marks;
pub mod meta;
mod node;
pub mod operation;
pub mod places;
mod plan;
mod policy;
mod rebalance;
mod refuse;
pub mod replica;
pub mod request;
pub mod scheduler;
pub mod session;
mod shelf;
pub mod state;
pub mod table;
mod volume;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
