//! The pure state machine of Chancery: what may happen next, and why not something else.
//!
//! Sync functions from values to values: no clock, no randomness, no I/O, no order that a hash decides. The decider
//! calls [`decide::decide`], [`decide::observe`] and [`advance::advance`], which only conclude facts, and everybody
//! who holds a state folds them by [`decide::evolve`].
//!
//! In reading order: what comes in ([`context`]), the shapes ([`state`]) and the fleet that holds them, the four
//! functions, then a room for each entity with its table of states.

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
