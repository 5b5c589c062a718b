//! Bodies of intents by type, read so that an error tells its place.

use chancery_events::intent::{
    CapabilityApply, CapabilityDelete, CapabilitySetActivity, ClusterApply, ClusterDelete,
    ClusterSetActivity, DeploymentCancel, DeploymentCreate, DeploymentPause, DeploymentPromote,
    DeploymentResume, DeploymentWithdraw, DisruptionApprove, DisruptionComplete, DisruptionDelete,
    DisruptionSchedule, InboxSkip, Intent, NodeApply, NodeDelete, NodeSetState, OperationApprove,
    OperationReject, PlanApply, PlanDelete, PlanRebalance, PlanRollback, PlanSetActivity, PolicyApply,
    PolicyDelete, ReplicaCreate, ReplicaDelete, ReplicaRelocate, ReplicaRestart, ReplicaStart, ReplicaStop,
    RequestApprove, RequestReject, VolumeDelete,
};
use serde::de::DeserializeOwned;

use super::json::{self, Splice};
use super::problem::{INTERNAL, Problem};

/// Text that a type can be read from.
pub(super) trait Text {
    /// Reads it.
    fn read<T: DeserializeOwned>(&self) -> Result<T, Problem>;
}

impl Text for Splice {
    fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        Splice::read(self)
    }
}

/// A part of a text, and where it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) whole: &'a str,
    pub(super) part: &'a str,
}

impl Text for Part<'_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        // A part is a slice of the whole: where it begins is a difference of addresses.
        let at = (self.part.as_ptr() as usize).wrapping_sub(self.whole.as_ptr() as usize);
        let before = self.whole.get(..at).unwrap_or_default();
        let lines = before.matches('\n').count();
        let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1);
        json::read_at(self.part, |(line, at)| (line + lines, if line == 1 { at + column } else { at }))
    }
}

macro_rules! bodies {
    ($($type:literal $body:ident)*) => {
        /// Reads the body of an intent of this type.
        pub(super) fn intent(type_name: &str, text: &impl Text) -> Result<Intent, Problem> {
            match type_name {
                $($type => text.read::<$body>().map(Intent::from),)*
                other => Err(Problem::new(INTERNAL, format!("nothing reads intents of type {other}"))),
            }
        }
    };
}

bodies! {
    "cluster.apply.v1" ClusterApply
    "cluster.set_activity.v1" ClusterSetActivity
    "cluster.delete.v1" ClusterDelete
    "capability.apply.v1" CapabilityApply
    "capability.set_activity.v1" CapabilitySetActivity
    "capability.delete.v1" CapabilityDelete
    "node.apply.v1" NodeApply
    "node.set_state.v1" NodeSetState
    "node.delete.v1" NodeDelete
    "disruption.schedule.v1" DisruptionSchedule
    "disruption.approve.v1" DisruptionApprove
    "disruption.complete.v1" DisruptionComplete
    "disruption.delete.v1" DisruptionDelete
    "policy.apply.v1" PolicyApply
    "policy.delete.v1" PolicyDelete
    "plan.apply.v1" PlanApply
    "plan.set_activity.v1" PlanSetActivity
    "plan.rollback.v1" PlanRollback
    "plan.rebalance.v1" PlanRebalance
    "plan.delete.v1" PlanDelete
    "deployment.create.v1" DeploymentCreate
    "deployment.cancel.v1" DeploymentCancel
    "deployment.pause.v1" DeploymentPause
    "deployment.resume.v1" DeploymentResume
    "deployment.promote.v1" DeploymentPromote
    "deployment.withdraw.v1" DeploymentWithdraw
    "replica.create.v1" ReplicaCreate
    "replica.relocate.v1" ReplicaRelocate
    "replica.restart.v1" ReplicaRestart
    "replica.start.v1" ReplicaStart
    "replica.stop.v1" ReplicaStop
    "replica.delete.v1" ReplicaDelete
    "volume.delete.v1" VolumeDelete
    "operation.approve.v1" OperationApprove
    "inbox.skip.v1" InboxSkip
    "request.approve.v1" RequestApprove
    "request.reject.v1" RequestReject
    "operation.reject.v1" OperationReject
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_read_as_itself() {
        for type_name in Intent::TYPES {
            let empty = Part { whole: "{}", part: "{}" };
            let problem = intent(type_name, &empty).expect_err("an empty body lacks something");
            assert_eq!(problem.kind.code, "invalid", "{type_name}: {}", problem.detail);
            let line = std::fs::read_to_string(format!(
                "{}/../schemas/samples/{type_name}.json",
                env!("CARGO_MANIFEST_DIR")
            ))
            .expect("a sample");
            let line = chancery_events::event::Line::read(line.trim().as_bytes()).expect("a line");
            let part = Part { whole: line.data.get(), part: line.data.get() };
            assert_eq!(intent(type_name, &part).expect("a body").type_name(), *type_name);
        }
    }
}
