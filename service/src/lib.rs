//! The Chancery service, which connects the parts.
//!
//! In reading order: leadership, executors in this process, fleets, and the server that contains them. The
//! user interface follows: configuration, the command line, and the demonstration.

pub mod data_dir;
pub mod executors;
pub mod fleet;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod leadership;
mod loss;
pub mod memory;
pub mod modes;
pub mod open_files;
#[cfg(feature = "otel")]
pub mod otel;
pub mod projector_thread;
pub mod remote;
pub mod server;

pub mod cli;
pub mod config;

pub mod demo;
pub mod doctor;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod payload;
pub mod replay;
mod temporary_rows;
pub mod upgrade;
pub mod verify;

#[cfg(test)]
mod tests;
