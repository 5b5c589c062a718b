//! Kinds of entities: their names on the command line, and their paths in the HTTP API.

use std::ffi::OsStr;

pub use chancery_events::kind::EntityKind;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::error::CliError;

fn with_article(word: &str) -> String {
    format!("{} {word}", if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" })
}

/// Names of entities of a kind, on the command line and in paths.
pub(super) trait KindNaming: Sized {
    /// Returns the path of an entity below the fleet. A disruption has the path of its node, whose row
    /// contains it.
    fn path_of(self, name: &str) -> Result<String, CliError>;
    /// Splits a name into the owner and the name that is unique there: PLAN/NAME, NODE/NAME.
    fn halves(self, name: &str) -> Result<(&str, &str), CliError>;
    /// Returns the name without `KIND/`, where only one kind is possible.
    fn name_in(self, text: &str) -> Result<&str, CliError>;
    /// Reads `KIND/NAME`, as in `replica/web-7f3k`.
    fn split(text: &str) -> Result<(Self, &str), CliError>;
}

impl KindNaming for EntityKind {
    fn path_of(self, name: &str) -> Result<String, CliError> {
        if name.is_empty() || name.ends_with('/') {
            let word = self.word();
            return Err(CliError::usage(format!("invalid {word} {name:?}: must not be empty")));
        }
        match (self, self.entry().owner) {
            (EntityKind::Disruption, _) => Ok(format!("/nodes/{}", segment(self.halves(name)?.0))),
            (EntityKind::Command, _) => Err(CliError::usage(
                "cannot show one command: commands are only listed\ntry: chancery get commands",
            )),
            (_, Some(owner)) => {
                let (of, name) = self.halves(name)?;
                Ok(format!("/{}/{}/{}/{}", owner.plural(), segment(of), self.plural(), segment(name)))
            }
            (_, None) => Ok(format!("/{}/{}", self.plural(), segment(name))),
        }
    }

    fn halves(self, name: &str) -> Result<(&str, &str), CliError> {
        name.split_once('/').ok_or_else(|| {
            let owner = self.entry().owner.unwrap_or(self).word().to_uppercase();
            let (word, plural) = (self.word(), self.plural());
            CliError::usage(format!(
                "invalid {word} {name:?}: must be {owner}/NAME\ntry: chancery get {plural}"
            ))
        })
    }

    fn name_in(self, text: &str) -> Result<&str, CliError> {
        // Some names contain a slash themselves: PLAN/NAME of a deployment.
        let slashes = usize::from(self.entry().owner.is_some());
        let Some((kind, name)) =
            text.split_once('/').filter(|(_, name)| name.matches('/').count() >= slashes)
        else {
            return Ok(text);
        };
        match named(kind) {
            Some(kind) if kind == self => Ok(name),
            // A name of a capability may contain any word before its slash.
            Some(_) if self == EntityKind::Capability => Ok(text),
            Some(other) => Err(CliError::usage(format!(
                "invalid {} {text:?}: must name {}, not {}",
                self.word(),
                with_article(self.word()),
                with_article(other.word())
            ))),
            // The server reports the error in the name.
            None => Ok(text),
        }
    }

    fn split(text: &str) -> Result<(EntityKind, &str), CliError> {
        let form =
            || CliError::usage(format!("invalid entity {text:?}: must be KIND/NAME, as in replica/web-7f3k"));
        let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(form)?;
        let unknown = || {
            let known: Vec<_> = EntityKind::ALL.iter().map(|kind| kind.plural()).collect();
            CliError::usage(format!("invalid kind {kind:?}: must be one of {}", known.join(", ")))
        };
        Ok((named(kind).ok_or_else(unknown)?, name))
    }
}

/// Returns the kind that a word names, in any case.
pub(super) fn named(word: &str) -> Option<EntityKind> {
    EntityKind::named(&word.to_ascii_lowercase())
}

/// Kind, with a name if both are one argument: `nodes`, `node/node-1`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntitySelector {
    /// Kind of the entity.
    pub kind: EntityKind,
    /// Name after the slash.
    pub name: Option<String>,
}

impl EntitySelector {
    /// Returns the name, from this argument or from the argument after it.
    pub(super) fn name(&self, after: Option<&String>) -> Result<Option<String>, CliError> {
        match (&self.name, after) {
            (Some(name), Some(after)) => {
                let of = format!("{}/{name}", self.kind.word());
                Err(CliError::usage(format!("invalid argument {after:?}: {of} already names an entity")))
            }
            (Some(name), None) => Ok(Some(name.clone())),
            (None, Some(after)) => Ok(Some(self.kind.name_in(after)?.to_owned())),
            (None, None) => Ok(None),
        }
    }

    /// Returns the entities that this argument and those after it name: `KIND NAME NAME`, or `KIND/NAME KIND/NAME`.
    pub(super) fn all(&self, after: &[String]) -> Result<Vec<(EntityKind, String)>, CliError> {
        if after.is_empty() {
            return Ok(vec![(self.kind, self.one(None)?)]);
        }
        let others = after.iter().map(|text| match self.name {
            None => Ok((self.kind, self.kind.name_in(text)?.to_owned())),
            Some(_) => EntityKind::split(text).map(|(kind, name)| (kind, name.to_owned())),
        });
        let first = self.name.iter().map(|name| Ok((self.kind, name.clone())));
        first.chain(others).collect()
    }

    /// Returns the name as [`EntitySelector::name()`] does; a missing name is an error.
    pub(super) fn one(&self, after: Option<&String>) -> Result<String, CliError> {
        self.name(after)?.ok_or_else(|| {
            let word = self.kind.word();
            CliError::usage(format!(
                "invalid argument {word:?}: must name one, as {word} NAME or {word}/NAME"
            ))
        })
    }
}

/// Reads [`EntitySelector`], and lists the kinds for completion.
#[derive(Clone, Debug)]
pub(super) struct EntitySelectorParser;

impl TypedValueParser for EntitySelectorParser {
    type Value = EntitySelector;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<EntitySelector, clap::Error> {
        let text = value.to_string_lossy();
        let (kind, name) = kind_and_name(&text);
        Ok(EntitySelector { kind: possible(command, arg, kind)?, name })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(words()))
    }
}

/// Splits an argument into what precedes a slash, and the name after it, if there is one.
pub(super) fn kind_and_name(text: &str) -> (&str, Option<String>) {
    match text.split_once('/') {
        Some((kind, name)) if !name.is_empty() => (kind, Some(name.to_owned())),
        Some(_) | None => (text, None),
    }
}

/// Kind, and names of fields below it: `plan.spec.payloads`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldPath {
    /// Kind before the first dot.
    pub kind: EntityKind,
    /// Names of fields, each of an object in the one before.
    pub fields: Vec<String>,
}

/// Reads [`FieldPath`], and lists the kinds for completion.
#[derive(Clone, Debug)]
pub(super) struct FieldPathParser;

impl TypedValueParser for FieldPathParser {
    type Value = FieldPath;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<FieldPath, clap::Error> {
        let text = value.to_string_lossy();
        let mut parts = text.split('.');
        let kind = possible(command, arg, parts.next().unwrap_or_default())?;
        Ok(FieldPath { kind, fields: parts.map(str::to_owned).collect() })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(words()))
    }
}

/// Returns the kind that a word names, or the error of an argument, with the kinds that are possible.
pub(super) fn possible(command: &Command, arg: Option<&Arg>, word: &str) -> Result<EntityKind, clap::Error> {
    let known = PossibleValuesParser::new(words()).parse_ref(command, arg, OsStr::new(word))?;
    Ok(named(&known).expect("a word that is possible"))
}

/// Names of kinds, as values of an argument.
pub(super) fn words() -> impl Iterator<Item = PossibleValue> {
    let word = |kind: &EntityKind| {
        let entry = kind.entry();
        PossibleValue::new(entry.plural).aliases([entry.word]).aliases(entry.aliases).help(entry.about)
    };
    EntityKind::ALL.iter().map(word)
}

/// Encodes a name as one segment of a path: the name of a capability may contain a slash.
fn segment(name: &str) -> impl std::fmt::Display {
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(name, KEPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_many_and_short_are_the_same_kind() {
        for kind in EntityKind::ALL {
            assert_eq!(named(kind.word()), Some(*kind));
            assert_eq!(named(&kind.plural().to_uppercase()), Some(*kind));
        }
        for (short, kind) in
            [("no", EntityKind::Node), ("op", EntityKind::Operation), ("dep", EntityKind::Deployment)]
        {
            assert_eq!(named(short), Some(kind));
        }
    }

    #[test]
    fn names_stay_one_segment() {
        assert_eq!(
            EntityKind::Capability.path_of("nvidia/v100").expect("a path"),
            "/capabilities/nvidia%2Fv100"
        );
        assert_eq!(EntityKind::Deployment.path_of("web/d-1").expect("a path"), "/plans/web/deployments/d-1");
        assert!(
            EntityKind::Deployment.path_of("web").is_err()
                && EntityKind::Disruption.path_of("node-1").is_err()
        );
        assert_eq!(EntityKind::Disruption.path_of("node-1/switch").expect("a path"), "/nodes/node-1");
        assert_eq!(EntityKind::split("dep/web/d-1").expect("a name"), (EntityKind::Deployment, "web/d-1"));
        assert!(EntityKind::split("pod/x").is_err() && EntityKind::split("node/").is_err());
    }

    #[test]
    fn a_kind_before_a_name_is_taken_or_refused_and_never_part_of_it() {
        for (kind, text, name) in [
            (EntityKind::Node, "node-1", Some("node-1")),
            (EntityKind::Node, "node/node-1", Some("node-1")),
            (EntityKind::Node, "no/node-1", Some("node-1")),
            (EntityKind::Node, "replica/node-1", None),
            (EntityKind::Deployment, "web/d-1", Some("web/d-1")),
            (EntityKind::Deployment, "deployment/d-1", Some("deployment/d-1")),
            (EntityKind::Deployment, "deployment/web/d-1", Some("web/d-1")),
            (EntityKind::Deployment, "node/web/d-1", None),
            (EntityKind::Disruption, "node-1/switch", Some("node-1/switch")),
            (EntityKind::Disruption, "disruption/node-1/switch", Some("node-1/switch")),
            (EntityKind::Capability, "node/web", Some("node/web")),
            (EntityKind::Capability, "cap/nvidia/v100", Some("nvidia/v100")),
        ] {
            assert_eq!(kind.name_in(text).ok(), name, "{kind:?} {text}");
        }
    }
}
