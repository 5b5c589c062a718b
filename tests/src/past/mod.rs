//! The past as readers of the real program see it.
//!
//! Reading order: answers with their positions, causes of events, dry runs.

pub mod answers;
pub mod causes;
pub mod dry_runs;

/// Returns the path below the fleet `default`.
pub fn in_fleet(path: &str) -> String {
    format!("/v1/fleets/default/{path}")
}
