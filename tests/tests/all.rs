//! Tests across crates and of the real program, in one binary: linking is what costs.

mod bad_input;
mod browser;
mod checks;
mod clocks;
mod compose;
mod directory;
mod executors;
mod fleets;
mod imports;
mod kafka;
mod kafka_clients;
mod kafka_events;
mod kafka_faults;
mod kafka_fleet;
mod kafka_history;
mod kafka_import;
mod kafka_journal;
mod kafka_standstill;
mod kafka_tls;
mod kills;
mod loss;
mod newcomers;
mod races;
mod simulation;
mod walkthrough;
mod watch;
