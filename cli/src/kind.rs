//! The kinds of things that can be asked for, what people call them, and where they are.

use std::ffi::OsStr;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Command, ValueEnum};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::error::CliError;

/// A kind of entity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// Sets of nodes behind one orchestrator.
    #[value(name = "clusters", aliases = ["cluster", "cl"])]
    Cluster,
    /// What nodes may have, with a score.
    #[value(name = "capabilities", aliases = ["capability", "cap", "caps"])]
    Capability,
    /// Places with capacity.
    #[value(name = "nodes", aliases = ["node", "no"])]
    Node,
    /// Planned interferences with nodes; named NODE/NAME.
    #[value(name = "disruptions", aliases = ["disruption", "dis"])]
    Disruption,
    /// Rules about approvals.
    #[value(name = "policies", aliases = ["policy", "pol"])]
    Policy,
    /// What to run and where it may run.
    #[value(name = "plans", aliases = ["plan", "pl"])]
    Plan,
    /// Versions of plans' payloads, and counts; named PLAN/NAME.
    #[value(name = "deployments", aliases = ["deployment", "dep"])]
    Deployment,
    /// Members of plans' services.
    #[value(name = "replicas", aliases = ["replica", "rep"])]
    Replica,
    /// Placed runs of replicas.
    #[value(name = "incarnations", aliases = ["incarnation", "inc"])]
    Incarnation,
    /// Approved changes of replicas.
    #[value(name = "operations", aliases = ["operation", "op"])]
    Operation,
    /// Changes that wait for approval as a whole.
    #[value(name = "requests", aliases = ["request", "req"])]
    Request,
    /// Storage that outlives the runs that use it.
    #[value(name = "volumes", aliases = ["volume", "vol"])]
    Volume,
    /// Executors' leases on clusters.
    #[value(name = "sessions", aliases = ["session", "ses"])]
    Session,
    /// Commands without an outcome; listed only.
    #[value(name = "commands", aliases = ["command", "cmd"])]
    Command,
}

impl Kind {
    /// The word for one of them, as in subjects.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Cluster => "cluster",
            Kind::Capability => "capability",
            Kind::Node => "node",
            Kind::Disruption => "disruption",
            Kind::Policy => "policy",
            Kind::Plan => "plan",
            Kind::Deployment => "deployment",
            Kind::Replica => "replica",
            Kind::Incarnation => "incarnation",
            Kind::Operation => "operation",
            Kind::Request => "request",
            Kind::Volume => "volume",
            Kind::Session => "session",
            Kind::Command => "command",
        }
    }

    /// The word for many, as in paths.
    pub const fn plural(self) -> &'static str {
        match self {
            Kind::Cluster => "clusters",
            Kind::Capability => "capabilities",
            Kind::Node => "nodes",
            Kind::Disruption => "disruptions",
            Kind::Policy => "policies",
            Kind::Plan => "plans",
            Kind::Deployment => "deployments",
            Kind::Replica => "replicas",
            Kind::Incarnation => "incarnations",
            Kind::Operation => "operations",
            Kind::Request => "requests",
            Kind::Volume => "volumes",
            Kind::Session => "sessions",
            Kind::Command => "commands",
        }
    }

    /// The path of one of them, below the fleet; of a disruption, that of its node, which holds it.
    pub(super) fn path(self, name: &str) -> Result<String, CliError> {
        match self {
            Kind::Deployment => {
                let (plan, name) = self.halves(name)?;
                Ok(format!("/plans/{}/deployments/{}", segment(plan), segment(name)))
            }
            Kind::Disruption => Ok(format!("/nodes/{}", segment(self.halves(name)?.0))),
            Kind::Command => Err(CliError::usage("commands are listed only: chancery get commands")),
            _ => Ok(format!("/{}/{}", self.plural(), segment(name))),
        }
    }

    /// The owner that a name begins with, and the name that is unique there: PLAN/NAME, NODE/NAME.
    pub(super) fn halves(self, name: &str) -> Result<(&str, &str), CliError> {
        let owner = if self == Kind::Disruption { Kind::Node } else { Kind::Plan };
        name.split_once('/').ok_or_else(|| {
            let (word, plural, of) = (self.word(), self.plural(), owner.word());
            CliError::usage(format!(
                "write a {word} as {}/NAME, not {name:?}; to list those of a {of}: chancery get {plural} -l {of}={name}",
                of.to_uppercase()
            ))
        })
    }

    /// The name alone of what may be written as `KIND/NAME` where only one kind makes sense.
    pub(super) fn name_in(self, text: &str) -> Result<&str, CliError> {
        // The names of some hold a slash themselves: PLAN/NAME of a deployment.
        let slashes = usize::from(matches!(self, Kind::Deployment | Kind::Disruption));
        let Some((kind, name)) =
            text.split_once('/').filter(|(_, name)| name.matches('/').count() >= slashes)
        else {
            return Ok(text);
        };
        match Kind::from_str(kind, true) {
            Ok(kind) if kind == self => Ok(name),
            // The names of these hold slashes, whatever is before them.
            Ok(_) if self == Kind::Capability => Ok(text),
            Ok(other) => Err(CliError::usage(format!(
                "write the name of a {}, not of a {}: {text:?}",
                self.word(),
                other.word()
            ))),
            // The server says what is wrong with the name.
            Err(_) => Ok(text),
        }
    }

    /// Reads `KIND/NAME`, as in `replica/web-7f3k`.
    pub(super) fn split(text: &str) -> Result<(Kind, &str), CliError> {
        let form = || CliError::usage(format!("write KIND/NAME as in replica/web-7f3k, not {text:?}"));
        let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(form)?;
        Ok((Kind::from_str(kind, true).map_err(|_| form())?, name))
    }
}

/// A kind, and what of it where they are written as one: `nodes`, `node/node-1`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct What {
    /// The kind.
    pub kind: Kind,
    /// What follows the slash.
    pub name: Option<String>,
}

impl What {
    /// With the name in the argument after it, if that is where it was written.
    pub(super) fn name(&self, after: Option<&String>) -> Result<Option<String>, CliError> {
        match (&self.name, after) {
            (Some(name), Some(after)) => {
                let of = format!("{}/{name}", self.kind.word());
                Err(CliError::usage(format!("{of} names one already: leave out {after:?}")))
            }
            (Some(name), None) => Ok(Some(name.clone())),
            (None, Some(after)) => Ok(Some(self.kind.name_in(after)?.to_owned())),
            (None, None) => Ok(None),
        }
    }

    /// The same, where a name must be given.
    pub(super) fn one(&self, after: Option<&String>) -> Result<String, CliError> {
        self.name(after)?.ok_or_else(|| {
            let word = self.kind.word();
            CliError::usage(format!("say which {word}: {word} NAME, or {word}/NAME"))
        })
    }
}

/// Reads [`What`], and says which kinds there are.
#[derive(Clone, Debug)]
pub(super) struct WhatParser;

impl TypedValueParser for WhatParser {
    type Value = What;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<What, clap::Error> {
        let text = value.to_string_lossy();
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) if !name.is_empty() => (kind, Some(name.to_owned())),
            Some(_) | None => (&*text, None),
        };
        let kind = EnumValueParser::<Kind>::new().parse_ref(command, arg, OsStr::new(kind))?;
        Ok(What { kind, name })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Kind::value_variants().iter().filter_map(Kind::to_possible_value)))
    }
}

/// A name as one segment of a path: a capability's may hold a slash.
fn segment(name: &str) -> impl std::fmt::Display {
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(name, KEPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_many_and_short_are_the_same_kind() {
        for kind in Kind::value_variants() {
            assert_eq!(Kind::from_str(kind.word(), true), Ok(*kind));
            assert_eq!(Kind::from_str(kind.plural(), true), Ok(*kind));
        }
        for (short, kind) in [("no", Kind::Node), ("op", Kind::Operation), ("dep", Kind::Deployment)] {
            assert_eq!(Kind::from_str(short, true), Ok(kind));
        }
    }

    #[test]
    fn names_stay_one_segment() {
        assert_eq!(Kind::Capability.path("nvidia/v100").expect("a path"), "/capabilities/nvidia%2Fv100");
        assert_eq!(Kind::Deployment.path("web/d-1").expect("a path"), "/plans/web/deployments/d-1");
        assert!(Kind::Deployment.path("web").is_err() && Kind::Disruption.path("node-1").is_err());
        assert_eq!(Kind::Disruption.path("node-1/switch").expect("a path"), "/nodes/node-1");
        assert_eq!(Kind::split("dep/web/d-1").expect("a name"), (Kind::Deployment, "web/d-1"));
        assert!(Kind::split("pod/x").is_err() && Kind::split("node/").is_err());
    }

    #[test]
    fn a_kind_before_a_name_is_taken_or_refused_and_never_part_of_it() {
        for (kind, text, name) in [
            (Kind::Node, "node-1", Some("node-1")),
            (Kind::Node, "node/node-1", Some("node-1")),
            (Kind::Node, "no/node-1", Some("node-1")),
            (Kind::Node, "replica/node-1", None),
            (Kind::Deployment, "web/d-1", Some("web/d-1")),
            (Kind::Deployment, "deployment/d-1", Some("deployment/d-1")),
            (Kind::Deployment, "deployment/web/d-1", Some("web/d-1")),
            (Kind::Deployment, "node/web/d-1", None),
            (Kind::Disruption, "node-1/switch", Some("node-1/switch")),
            (Kind::Disruption, "disruption/node-1/switch", Some("node-1/switch")),
            (Kind::Capability, "node/web", Some("node/web")),
            (Kind::Capability, "cap/nvidia/v100", Some("nvidia/v100")),
        ] {
            assert_eq!(kind.name_in(text).ok(), name, "{kind:?} {text}");
        }
    }
}
