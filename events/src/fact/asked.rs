//! Bodies of facts about terms, what was asked, and what a fleet is made of: clusters, capabilities, nodes, policies.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Outcome;
use crate::digest::Digest;
use crate::id::{Lineage, Position};
use crate::name::{Actor, CapabilityName, ClusterName, DisruptionName, NodeName, PolicyName};
use crate::record::Hash;
use crate::refusal::Code;
use crate::spec::{Activity, CapabilitySpec, ClusterSpec, DisruptionSpec, NodeSpec, NodeState, PolicySpec};
use crate::subject::Subject;
use crate::time::Time;

body! {
    /// Body of [`Fact::TermStarted`]. Term and writer stand in the record's header.
    TermStarted {
        /// Where this decider takes input, if anywhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    }
    /// Body of [`Fact::LineageStarted`]. The new lineage stands in the record's header.
    LineageStarted {
        /// The lineage so far.
        previous: Lineage,
        /// The last position under it that is part of this journal: nothing that is known of the journal contradicts it.
        at: Position,
        /// The highest position that is known to be missing, if any is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing_through: Option<Position>,
        /// Lineages that started in what is missing: nothing of them is held.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        abandoned: Vec<Lineage>,
    }
    /// Body of [`Fact::IntentAccepted`].
    IntentAccepted {
        /// Which repeats are the same intent.
        key: Digest,
        /// Whether a repeat asks for the same.
        digest: Digest,
        /// When it was asked, by its sender's clock, else when it was decided.
        at: Time,
        /// What came of it.
        outcome: Outcome,
        /// What it was about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Subject>,
        /// The subject's version now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
    }
    /// Body of [`Fact::IntentRefused`].
    IntentRefused {
        /// Which repeats are the same intent.
        key: Digest,
        /// Whether a repeat asks for the same.
        digest: Digest,
        /// When it was asked, by its sender's clock, else when it was decided.
        at: Time,
        /// Why, for programs.
        code: Code,
        /// Why, for people.
        detail: String,
        /// What it was about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Subject>,
        /// The subject's version now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
        /// Where in the body, as JSON Pointers with what is wrong there.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        errors: BTreeMap<String, String>,
    }
    /// Body of [`Fact::InboxRefused`]. It changes no entity: it is the answer to what stands there.
    InboxRefused {
        /// Which inbox, as in the header's watermark.
        topic: String,
        /// Where in it.
        offset: u64,
        /// The SHA-256 of the record's value, 64 hexadecimal digits; absent if it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Hash>,
        /// Why, for programs.
        code: Code,
        /// Why, for people.
        detail: String,
    }
    /// Body of [`Fact::InboxSkipped`]. It changes no entity. The topic is that of the header's watermark.
    InboxSkipped {
        /// The offset of the message.
        offset: u64,
    }
    /// Body of [`Fact::InboxAdvanced`]. It changes no entity.
    InboxAdvanced {
        /// Which inbox, as in the header's watermark.
        topic: String,
        /// The offset of the first input that is not answered yet.
        next: u64,
    }
    /// Body of [`Fact::TimeRecorded`]. It changes no entity: the time is the record's.
    TimeRecorded {}
    /// Body of [`Fact::EntityParked`].
    EntityParked {
        /// Which.
        subject: Subject,
        /// What went wrong.
        detail: String,
    }
    /// Body of [`Fact::ClusterApplied`].
    ClusterApplied {
        /// Which.
        name: ClusterName,
        /// What it is.
        spec: ClusterSpec,
    }
    /// Body of [`Fact::ClusterActivityChanged`].
    ClusterActivityChanged {
        /// Which.
        name: ClusterName,
        /// What it is.
        activity: Activity,
    }
    /// Body of [`Fact::ClusterDeleted`].
    ClusterDeleted {
        /// Which.
        name: ClusterName,
    }
    /// Body of [`Fact::CapabilityApplied`].
    CapabilityApplied {
        /// Which.
        name: CapabilityName,
        /// What it is.
        spec: CapabilitySpec,
    }
    /// Body of [`Fact::CapabilityActivityChanged`].
    CapabilityActivityChanged {
        /// Which.
        name: CapabilityName,
        /// What it is.
        activity: Activity,
    }
    /// Body of [`Fact::CapabilityDeleted`].
    CapabilityDeleted {
        /// Which.
        name: CapabilityName,
    }
    /// Body of [`Fact::NodeApplied`].
    NodeApplied {
        /// Which.
        name: NodeName,
        /// What it is.
        spec: NodeSpec,
    }
    /// Body of [`Fact::NodeMoved`].
    NodeMoved {
        /// Which.
        name: NodeName,
        /// Its state now.
        to: NodeState,
        /// Its cluster now.
        cluster: Option<ClusterName>,
    }
    /// Body of [`Fact::NodeDeleted`].
    NodeDeleted {
        /// Which.
        name: NodeName,
    }
    /// Body of [`Fact::DisruptionScheduled`].
    DisruptionScheduled {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
        /// What it is.
        spec: DisruptionSpec,
    }
    /// Body of [`Fact::DisruptionApproved`].
    DisruptionApproved {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
        /// Who approved it.
        by: Actor,
    }
    /// Body of [`Fact::DisruptionCompleted`].
    DisruptionCompleted {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
    }
    /// Body of [`Fact::DisruptionDeleted`].
    DisruptionDeleted {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
    }
    /// Body of [`Fact::PolicyApplied`].
    PolicyApplied {
        /// Which.
        name: PolicyName,
        /// What it is.
        spec: PolicySpec,
    }
    /// Body of [`Fact::PolicyDeleted`].
    PolicyDeleted {
        /// Which.
        name: PolicyName,
    }
}
