//! Pure state machine of Chancery: decides what may happen next, and why not something else.
//!
//! Functions are synchronous and map values to values: no clock, no randomness, no I/O, no hash order. The
//! decider calls [`decide::decide`], [`decide::observe`] and [`advance::advance`], which only conclude facts.
//! Every process that has a state folds these facts by [`decide::evolve`].
//!
//! Reading order: the input ([`context`]), the entities ([`state`]), the fleet that contains them, and the
//! four functions. A module for each entity follows, with its table of states.

pub mod advance;
pub mod capacity_index;
mod catalogue;
pub mod context;
pub mod decide;
pub mod deployment;
mod disruption;
pub mod fleet;
mod free_capacity;
pub mod grace;
pub mod incarnation;
pub mod index;
mod index_keys;
pub mod keys;
pub mod level;
pub mod meta;
mod node;
pub mod operation;
mod plan;
mod policy;
mod rebalance;
mod refuse;
pub mod replica;
pub mod request;
pub mod scheduler;
pub mod session;
pub mod snapshot;
pub mod state;
pub mod table;
mod volume;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
