//! Scenarios of the state machine, by entity. Each row or test is a rule; the names say what they show.

mod again;
mod attack;
mod catalogue;
mod deployments;
mod disruptions;
mod intents;
mod nodes;
mod operations;
mod placement;
mod policies;
mod races;
mod replacing;
mod reports;
mod scopes;
mod strategies;
mod undo;
mod volumes;
mod walk;
