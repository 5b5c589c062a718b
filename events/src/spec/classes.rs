//! Classes of a plan's fields, and the only ways to read a plan by class.
//!
//! An *immediate* field takes effect with the edit, for every later decision about any replica of the plan. A *deployed* field
//! defines what runs; it takes effect with the next deployment. The list below is the only list: [`ImmediateFields`],
//! [`PlanVersion`], the digest of a version, the answer to an edit and the table in the documentation are
//! generated from it. A field of [`PlanSpec`] with no class or two classes does not compile.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::{
    AffinityRule, ApprovalPolicy, CapabilityMatcher, NodeSharing, Payload, PlacementPolicy, PlanSpec,
    PlanTimeouts, RestartPolicy, UnreadyRule, UpdateOrder, VolumeClaim,
};
use crate::name::{
    ClusterName, GroupName, KeyName, Namespace, ReplicaName, ServiceName, StorageClass, VolumeName, ZoneName,
};
use crate::resources::Resources;

super::words! {
    /// Class of a plan's field: when an edit takes effect.
    FieldClass {
        /// The edit takes effect immediately, for every later decision about any replica.
        Immediate = "immediate",
        /// The edit takes effect with the next deployment.
        Deployed = "deployed",
    }
}

/// Immediate fields of a plan, which rules about its replicas read. Always of the newest generation.
#[derive(Clone, Copy, Debug)]
pub struct ImmediateFields<'a>(&'a Arc<PlanSpec>);

/// Version of a plan: its deployed fields, which define what runs. Of the generation of a deployment.
#[derive(Clone, Copy, Debug)]
pub struct PlanVersion<'a>(&'a Arc<PlanSpec>);

macro_rules! classes {
    (
        immediate { $($immediate:ident: $rule:ty),* $(,)? }
        deployed { $($deployed:ident: $part:ty),* $(,)? }
    ) => {
        impl PlanSpec {
            /// Fields of a plan with their classes, in the order of the table in the documentation.
            pub const FIELDS: &'static [(&'static str, FieldClass)] = &[
                $((stringify!($immediate), FieldClass::Immediate),)*
                $((stringify!($deployed), FieldClass::Deployed),)*
            ];

            /// Returns the fields that differ, with their classes.
            pub fn changed(&self, other: &PlanSpec) -> Vec<(&'static str, FieldClass)> {
                // Names every field once: a field without a class, or with two classes, does not compile.
                let PlanSpec { $($immediate,)* $($deployed,)* } = self;
                let mut changed = Vec::new();
                $(if *$immediate != other.$immediate { changed.push((stringify!($immediate), FieldClass::Immediate)); })*
                $(if *$deployed != other.$deployed { changed.push((stringify!($deployed), FieldClass::Deployed)); })*
                changed
            }
        }

        impl<'a> ImmediateFields<'a> {
            $(#[doc = concat!("The field `", stringify!($immediate), "` of the plan.")]
            pub fn $immediate(self) -> &'a $rule { &self.0.$immediate })*
        }

        impl<'a> PlanVersion<'a> {
            $(#[doc = concat!("The field `", stringify!($deployed), "` of the plan.")]
            pub fn $deployed(self) -> &'a $part { &self.0.$deployed })*
        }

        impl Serialize for PlanVersion<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                #[derive(Serialize)]
                struct VersionParts<'a> { $($deployed: &'a $part,)* }
                VersionParts { $($deployed: &self.0.$deployed,)* }.serialize(serializer)
            }
        }
    };
}

classes! {
    immediate {
        cluster: Option<ClusterName>,
        zone: Option<ZoneName>,
        zones: Vec<ZoneName>,
        selectors: BTreeMap<KeyName, String>,
        matchers: Vec<CapabilityMatcher>,
        sharing: NodeSharing,
        placement: PlacementPolicy,
        affinity: Vec<AffinityRule>,
        restart: RestartPolicy,
        restart_delay: u64,
        update_order: UpdateOrder,
        max_unavailable: u32,
        approval: ApprovalPolicy,
        timeouts: PlanTimeouts,
        unready: UnreadyRule,
    }
    deployed {
        namespace: Namespace,
        service: ServiceName,
        labels: BTreeMap<KeyName, String>,
        payloads: Vec<Payload>,
    }
}

impl<'a> ImmediateFields<'a> {
    /// Returns the immediate fields of a plan with this newest spec.
    pub const fn of(newest: &'a Arc<PlanSpec>) -> ImmediateFields<'a> {
        ImmediateFields(newest)
    }

    /// Groups that the plan's replicas belong to.
    pub fn groups(self) -> Vec<GroupName> {
        self.affinity().iter().map(|affinity| affinity.group.clone()).collect()
    }

    /// Returns the spec, to compare later whether an immediate field has changed.
    pub const fn shared(self) -> &'a Arc<PlanSpec> {
        self.0
    }
}

impl<'a> PlanVersion<'a> {
    /// Returns the version of a deployment of this generation of a plan.
    pub const fn of(spec: &'a Arc<PlanSpec>) -> PlanVersion<'a> {
        PlanVersion(spec)
    }

    /// Returns the spec, to compare later whether the version has changed.
    pub const fn shared(self) -> &'a Arc<PlanSpec> {
        self.0
    }

    /// Returns the resources that one replica needs of a node.
    pub fn resources(self) -> Resources {
        self.0.resources()
    }

    /// Returns the claims of a replica, each with the name of its volume.
    pub fn claims(self, replica: &ReplicaName) -> impl Iterator<Item = (VolumeName, &'a VolumeClaim)> {
        self.0.claims(replica)
    }

    /// Whether the version claims any volume.
    pub fn has_volumes(self) -> bool {
        self.0.has_volumes()
    }

    /// Whether the version claims a volume that only one replica can have.
    pub fn claims_by_name(self) -> bool {
        self.0.claims_by_name()
    }

    /// Returns the bytes that one replica needs of a node's storage, by class.
    pub fn volumes(self) -> BTreeMap<StorageClass, u64> {
        self.0.volumes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn spec() -> PlanSpec {
        serde_json::from_str(
            r#"{"namespace":"prod","service":"web","payloads":[{"name":"app","resources":{"cpu":1,"memory":1}}]}"#,
        )
        .expect("a spec")
    }

    #[test]
    fn each_field_of_a_plan_is_in_exactly_one_class() {
        let json = serde_json::to_value(spec()).expect("JSON");
        let fields: BTreeSet<_> = json.as_object().expect("an object").keys().map(String::as_str).collect();
        let listed: Vec<_> = PlanSpec::FIELDS.iter().map(|(field, _)| *field).collect();
        assert_eq!(listed.len(), fields.len(), "each is listed once");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), fields);
    }

    #[test]
    fn what_an_edit_changes_is_named_with_its_class() {
        let before = spec();
        let after = PlanSpec {
            sharing: NodeSharing::Allowed,
            max_unavailable: 3,
            service: "shop".parse().expect("a name"),
            ..before.clone()
        };
        let expected = [
            ("sharing", FieldClass::Immediate),
            ("max_unavailable", FieldClass::Immediate),
            ("service", FieldClass::Deployed),
        ];
        assert_eq!(before.changed(&after), expected);
        assert_eq!(before.changed(&before), []);
    }

    #[test]
    fn the_digest_of_a_version_covers_its_fields_and_no_others() {
        let version = serde_json::to_value(PlanVersion::of(&Arc::new(spec()))).expect("JSON");
        let fields: BTreeSet<_> =
            version.as_object().expect("an object").keys().map(String::as_str).collect();
        let of_version = PlanSpec::FIELDS.iter().filter(|(_, class)| *class == FieldClass::Deployed);
        assert_eq!(fields, of_version.map(|(field, _)| *field).collect());
    }
}
