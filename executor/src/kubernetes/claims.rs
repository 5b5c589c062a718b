//! Persistent volume claims of volumes.

use std::collections::BTreeMap;

use chancery_events::id::VolumeId;
use chancery_events::protocol::VolumeSpec;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;

use super::labels::{ObjectOwner, volume_name};
use super::objects::ClaimObject;

/// Claim as last seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ObservedClaim {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    /// Whether pods may use the claim: it is bound, or is bound when the first pod uses it.
    pub(super) is_ready: bool,
    /// Number of the change by which the claim was seen last.
    pub(super) seen_at: u64,
}

/// Annotation of a claim whose storage class binds it when the first pod uses it.
const LATE_BINDING: &str = "chancery.dev/binds-with-first-pod";

impl ObservedClaim {
    /// Returns what a claim shows; `None` if it lacks a name or a uid.
    pub(super) fn of(claim: &ClaimObject, seen_at: u64) -> Option<ObservedClaim> {
        let metadata = &claim.metadata;
        let is_bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let is_late = metadata.annotations.as_ref().is_some_and(|all| all.contains_key(LATE_BINDING));
        Some(ObservedClaim {
            name: metadata.name.clone()?,
            namespace: metadata.namespace.clone()?,
            uid: metadata.uid.clone()?,
            is_ready: is_bound || is_late,
            seen_at,
        })
    }
}

/// Time at which a storage class binds a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClaimBinding {
    Immediate,
    WithFirstPod,
}

/// Returns the claim of a volume in a namespace.
pub(super) fn claim(
    owner: &ObjectOwner,
    volume: VolumeId,
    spec: &VolumeSpec,
    binding: ClaimBinding,
) -> PersistentVolumeClaim {
    let size = BTreeMap::from([("storage".to_owned(), Quantity(spec.capacity.to_string()))]);
    let annotations = match binding {
        ClaimBinding::Immediate => None,
        ClaimBinding::WithFirstPod => Some(BTreeMap::from([(LATE_BINDING.to_owned(), "true".to_owned())])),
    };
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(volume_name(volume)),
            namespace: Some(spec.namespace.to_string()),
            labels: Some(owner.labels_of(volume.into())),
            annotations,
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: Some(spec.class.to_string()),
            resources: Some(VolumeResourceRequirements { requests: Some(size), limits: None }),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    }
}
