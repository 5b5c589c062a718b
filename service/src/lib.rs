//! Chancery, the service: what wires the pure parts together and shows them to the world.
//!
//! In reading order: the decider and its loop, executors in this process, the API, the server that holds them
//! together; then what people type and write: configuration, manifests, the command line, and the demonstration.

pub mod decider;
pub mod duty;
pub mod executors;
pub mod fleet;
pub mod folder;
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
mod loss;
pub mod modes;
pub mod open_files;
pub mod remote;
pub mod rows;
pub mod server;
pub mod troubles;

pub mod cli;
pub mod config;
pub mod manifest;
pub mod note;

pub mod demo;
pub mod doctor;
pub mod payload;
pub mod verify;
pub mod wall_clock;
