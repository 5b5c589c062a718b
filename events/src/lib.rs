//! Data types of Chancery: intents, observations and facts, and the bytes in which they are stored.
//!
//! No I/O, no async, no clock and no randomness. In reading order: numbers and ids, names and amounts, and
//! specs; then intents, observations and facts, the record that stores them, the CloudEvents that present
//! them, and the inbox messages that request them.

pub mod cloudevent;
pub mod console;
pub mod digest;
pub mod event;
pub mod expected_version;
pub mod extension;
pub mod fact;
pub mod id;
pub mod inbox_message;
pub mod intent;
pub mod kind;
pub mod level;
pub mod lifecycle;
pub mod lineage;
pub mod name;
pub mod name_texts;
pub mod observation;
pub mod protocol;
pub mod record;
pub mod refusal;
pub mod resources;
pub mod size;
pub mod spec;
pub mod strict;
pub mod subject;
pub mod template;
pub mod text;
pub mod time;

/// Whether the value is the default, which is omitted.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
