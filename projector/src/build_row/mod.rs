//! Rows, an `impl` of [`ReadModelRow`] for each kind: its filters, and how it follows from the state, as a
//! pure function. Data of several entities is in the [`RowCounts`], which are a function of the state, too.
//!
//! A message briefly explains the state of an entity. Only the reasons why an operation has no placement are
//! added by the reader: they are stored once, in the plan's row. They may concern any number of replicas,
//! whose rows contain [`WAITS`].

mod catalogue;
mod plan;
mod replica;

use std::collections::BTreeMap;

use chancery_events::fact::UnschedulableReason;
use chancery_events::text::counted;
use chancery_machine::fleet::FleetState;

use crate::counts::RowCounts;
pub(crate) use crate::kind::every;
use crate::kind::{ReadModelRow, RowKind};
use crate::reachability::{ReachabilitySource, reachability};

pub(crate) use plan::unschedulable;
pub(crate) use replica::{command, incarnation, operation, operation_message, replica, replica_count};

/// Message of a row without placement, before a reader adds the reasons.
pub const WAITS: &str = "waits for placement";

/// Returns [`WAITS`], with the reasons from the plan's row.
pub fn waits_because(reasons: &[UnschedulableReason]) -> String {
    if reasons.is_empty() {
        return WAITS.to_owned();
    }
    let each = |unfit: &UnschedulableReason| match unfit.count {
        0 => unfit.reason.clone(),
        count => format!("{} ({})", unfit.reason, counted(count, "node")),
    };
    let reasons: Vec<_> = reasons.iter().map(each).collect();
    format!("{WAITS}: {}", reasons.join("; "))
}

/// Builds a row, with the fields for version, times and position that every row has.
macro_rules! row {
    ($name:ident, $meta:expr, { $($field:ident: $value:expr),* $(,)? }) => {{
        let chancery_machine::meta::EntityMeta { version, created, changed } = $meta;
        $crate::rows::$name {
            $($field: $value,)*
            version,
            created_at: created.time,
            updated_at: changed.time,
            position: changed.position,
        }
    }};
}
pub(crate) use row;

/// Visitor of the rows of every kind.
pub(crate) trait RowVisitor {
    /// Reason why the visitor stopped.
    type Error;
    /// Visits one row.
    fn row<R: ReadModelRow>(&mut self, row: &R) -> Result<(), Self::Error>;
}

/// Returns every row of the state as readers see it, by kind and key, for comparisons.
pub fn shown(fleet: &FleetState) -> BTreeMap<(RowKind, String), serde_json::Value> {
    struct ShownRows<'a>(&'a FleetState, BTreeMap<(RowKind, String), serde_json::Value>);
    impl RowVisitor for ShownRows<'_> {
        type Error = std::convert::Infallible;
        fn row<R: ReadModelRow>(&mut self, row: &R) -> Result<(), Self::Error> {
            let mut row = row.clone();
            if let Some((through, reached)) = row.reached_through() {
                let cluster = match through {
                    ReachabilitySource::Cluster(cluster) => Some(cluster),
                    ReachabilitySource::Incarnation(id) => {
                        self.0.incarnations().get(&id).map(|i| i.cluster.clone())
                    }
                };
                if let Some(cluster) = cluster {
                    let has_session = self.0.clusters().get(&cluster).is_some_and(|c| c.session.is_some());
                    reached.set(reachability(has_session), &cluster);
                }
            }
            let shown = serde_json::to_value(&row).expect("rows can be encoded as JSON");
            self.1.insert((R::KIND, row.key().to_string()), shown);
            Ok(())
        }
    }
    let mut shown = ShownRows(fleet, BTreeMap::new());
    let Ok(()) = every(fleet, &RowCounts::of(fleet), &mut shown);
    shown.1
}
