//! Chancery, the service: what wires the pure parts together and shows them to the world.

pub mod decider;
