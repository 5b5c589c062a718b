//! Scenarios of the state machine, by entity. Each row or test is a rule; the names say what they show.

mod aborting;
mod again;
mod catalogue;
mod deployments;
mod disruptions;
mod edits;
mod intents;
mod kept;
mod liveness;
mod moves;
mod nodes;
mod operations;
mod placement;
mod policies;
mod promises;
mod races;
mod replacing;
mod reports;
mod scopes;
mod setting;
mod strategies;
mod undo;
mod volumes;
mod waiting;
mod walk;
