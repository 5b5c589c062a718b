//! The words of Chancery: what may be said, and the bytes in which it is kept.
//!
//! No I/O, no async, no clock and no randomness. In reading order: numbers and ids, names and amounts, specs that
//! people write, then intents, observations and facts, the record that keeps them, the CloudEvents that show them, and
//! the letters of an inbox that bring them.

pub mod amount;
pub mod cloud;
pub mod digest;
pub mod event;
pub mod fact;
pub mod id;
pub mod intent;
pub mod kind;
pub mod letter;
pub mod lifecycle;
pub mod lineage;
pub mod name;
pub mod observation;
pub mod protocol;
pub mod record;
pub mod refusal;
pub mod size;
pub mod spec;
pub mod strict;
pub mod subject;
pub mod template;
pub mod time;

/// Whether it goes without saying.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
