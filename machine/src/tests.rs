//! Scenarios of the state machine, by entity. Each row or test is a rule; the names say what they show.

mod catalogue;
mod deployments;
mod intents;
mod nodes;
mod operations;
mod placement;
mod races;
mod reports;
mod scopes;
mod undo;
