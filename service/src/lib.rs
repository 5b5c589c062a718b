//! Chancery, the service: what wires the pure parts together and shows them to the world.

pub mod decider;
pub mod http;
pub mod cli;
pub mod config;
pub mod manifest;
