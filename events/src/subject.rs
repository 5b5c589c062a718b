//! What an event is about: `node/node-1`, `deployment/nginx/deployment-1`, `operation/<uuid>`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{IncarnationId, OperationId, RequestId, SessionId};
use crate::name::{
    CapabilityName, ClusterName, DeploymentName, NodeName, PlanName, PolicyName, ReplicaName, VolumeName,
};

/// One entity of a fleet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Subject {
    /// The fleet itself.
    Fleet,
    /// A cluster.
    Cluster(ClusterName),
    /// A capability.
    Capability(CapabilityName),
    /// A node.
    Node(NodeName),
    /// A plan.
    Plan(PlanName),
    /// A deployment of a plan.
    Deployment(PlanName, DeploymentName),
    /// A replica.
    Replica(ReplicaName),
    /// An incarnation.
    Incarnation(IncarnationId),
    /// An operation.
    Operation(OperationId),
    /// A session.
    Session(SessionId),
    /// A policy.
    Policy(PolicyName),
    /// A volume.
    Volume(VolumeName),
    /// An approval request.
    Request(RequestId),
}

impl Subject {
    /// The word before the slash.
    pub const fn kind(&self) -> &'static str {
        match self {
            Subject::Fleet => "fleet",
            Subject::Cluster(_) => "cluster",
            Subject::Capability(_) => "capability",
            Subject::Node(_) => "node",
            Subject::Plan(_) => "plan",
            Subject::Deployment(..) => "deployment",
            Subject::Replica(_) => "replica",
            Subject::Incarnation(_) => "incarnation",
            Subject::Operation(_) => "operation",
            Subject::Session(_) => "session",
            Subject::Policy(_) => "policy",
            Subject::Volume(_) => "volume",
            Subject::Request(_) => "request",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Subject::Fleet => Ok(()),
            Subject::Cluster(name) => write!(f, "/{name}"),
            Subject::Capability(name) => write!(f, "/{name}"),
            Subject::Node(name) => write!(f, "/{name}"),
            Subject::Plan(name) => write!(f, "/{name}"),
            Subject::Deployment(plan, name) => write!(f, "/{plan}/{name}"),
            Subject::Replica(name) => write!(f, "/{name}"),
            Subject::Incarnation(id) => write!(f, "/{id}"),
            Subject::Operation(id) => write!(f, "/{id}"),
            Subject::Session(id) => write!(f, "/{id}"),
            Subject::Policy(name) => write!(f, "/{name}"),
            Subject::Volume(name) => write!(f, "/{name}"),
            Subject::Request(id) => write!(f, "/{id}"),
        }
    }
}

/// Text that names no entity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSubject {
    /// Not of the form `kind/name`.
    #[error("write the subject as kind/name, as in node/node-1; {0:?} is none of that form")]
    Form(String),
    /// The name breaks its rule.
    #[error("read the name of the {kind}: {reason}")]
    Name {
        /// The word before the slash.
        kind: &'static str,
        /// What is wrong with what follows.
        reason: String,
    },
}

impl FromStr for Subject {
    type Err = BadSubject;
    fn from_str(text: &str) -> Result<Subject, BadSubject> {
        fn name<T: FromStr<Err: fmt::Display>>(kind: &'static str, text: &str) -> Result<T, BadSubject> {
            text.parse().map_err(|e: T::Err| BadSubject::Name { kind, reason: e.to_string() })
        }
        let form = || BadSubject::Form(text.chars().take(100).collect());
        if text == "fleet" {
            return Ok(Subject::Fleet);
        }
        let (kind, rest) = text.split_once('/').ok_or_else(form)?;
        Ok(match kind {
            "cluster" => Subject::Cluster(name("cluster", rest)?),
            "capability" => Subject::Capability(name("capability", rest)?),
            "node" => Subject::Node(name("node", rest)?),
            "plan" => Subject::Plan(name("plan", rest)?),
            "deployment" => {
                let (plan, deployment) = rest.split_once('/').ok_or_else(form)?;
                Subject::Deployment(name("plan", plan)?, name("deployment", deployment)?)
            }
            "replica" => Subject::Replica(name("replica", rest)?),
            "incarnation" => Subject::Incarnation(name("incarnation", rest)?),
            "operation" => Subject::Operation(name("operation", rest)?),
            "session" => Subject::Session(name("session", rest)?),
            "policy" => Subject::Policy(name("policy", rest)?),
            "volume" => Subject::Volume(name("volume", rest)?),
            "request" => Subject::Request(name("request", rest)?),
            _ => return Err(form()),
        })
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Subject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Subject, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Subject {
    fn schema_name() -> Cow<'static, str> {
        "Subject".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "examples": ["node/node-1", "deployment/nginx/deployment-1"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Lineage, Position};

    #[test]
    fn text_and_value_are_one() {
        let id = OperationId::issue(Lineage::from_random(1), Position::new(9));
        for text in [
            "fleet",
            "node/node-1",
            "capability/nvidia/v100",
            "deployment/nginx/deployment-1",
            &format!("operation/{id}"),
        ] {
            assert_eq!(text.parse::<Subject>().expect(text).to_string(), text);
        }
        for bad in ["", "node", "node/", "node/A", "deployment/nginx", "pod/x", &format!("incarnation/{id}")]
        {
            assert!(bad.parse::<Subject>().is_err(), "{bad}");
        }
    }
}
