//! Manifests: files of YAML documents in which people say what there should be, and the intents that these become.
//!
//! ```yaml
//! apiVersion: chancery/v1
//! kind: Node                  # Cluster, Capability, Node, Plan, Policy, Deployment
//! metadata:
//!   name: node-1
//!   labels: {disk: fast}      # nodes only
//! spec:
//!   domain: a
//!   resources: {cpu: 4, memory: 8}
//! ```
//! A document is read twice, first for its kind and then as the form of that kind, so that every error has its place;
//! and again for each error, so that all are told.
//! Unknown fields are refused: a misspelt limit must not mean "unlimited".

mod approval;
mod edge;
mod fault;
mod faulty;
mod form;
mod place;
mod policy;
#[cfg(test)]
mod reference;
mod schema;
mod strategy;
pub mod suggest;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::intent::{
    CapabilityApply, ClusterApply, DeploymentCreate, Intent, NodeApply, PlanApply, PolicyApply,
};
use chancery_events::name::{
    CapabilityName, ClusterName, DeploymentName, Key, NodeName, PlanName, PolicyName,
};
use chancery_events::spec::{CapabilitySpec, ClusterSpec};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_saphyr::{Location, Options, Spanned};

pub use fault::{Fault, Faults, Place};
pub use schema::schemas;

use fault::Document;
use form::{DeploymentForm, NodeForm, PlanForm};
use policy::PolicyForm;

/// The version of the forms.
pub const API_VERSION: &str = "chancery/v1";
/// A file may be so large, in bytes.
pub const LARGEST: usize = 16 << 20;
/// Collections may stand in each other so deep.
const DEEPEST: usize = 32;
/// A document may refer to anchors so often; what they stand for is counted as well.
const ALIASES: usize = 1000;

/// The kinds, in the order in which they are applied: what is named comes before what names it.
pub const KINDS: &[&str] = &["Cluster", "Capability", "Node", "Plan", "Policy", "Deployment"];

/// One document.
#[derive(Clone, PartialEq, Debug)]
pub struct Manifest {
    /// What it asks for.
    pub intent: Intent,
    /// Where it begins.
    pub place: Place,
    document: Document,
}

impl Manifest {
    /// Where in the file a part of the intent stands that a JSON Pointer leads to, and its value if it is a single
    /// one. What the file does not have is where it should be.
    pub fn locate(&self, pointer: &str) -> (Place, Option<&str>) {
        match place::find(&self.document.text, pointer) {
            Some(found) => {
                let value = if found.is_value { self.document.value(found.at) } else { None };
                (self.document.place(found.at), value)
            }
            None => (self.place.clone(), None),
        }
    }
}

/// Reads all documents of a file, in their order. With faults, nothing is read, and all are told.
pub fn read(file: &str, text: &str) -> Result<Vec<Manifest>, Faults> {
    let file: Arc<str> = file.into();
    if text.len() > LARGEST {
        let what = format!("the file has {} bytes; a file may have {LARGEST}: divide it", text.len());
        return Err(Fault { place: Place { file, line: 1, column: 1 }, what }.into());
    }
    let (mut manifests, mut faults) = (Vec::new(), Vec::new());
    for (lines_before, text) in documents(text) {
        let document = Document { file: Arc::clone(&file), lines_before, text: text.into() };
        match read_one(&document) {
            Ok(manifest) => manifests.extend(manifest),
            Err(found) => faults.extend(found.0),
        }
    }
    if faults.is_empty() { Ok(manifests) } else { Err(Faults(faults)) }
}

/// Puts manifests into the order in which they are applied; those of a kind stay as they stand.
pub fn sort(manifests: &mut [Manifest]) {
    manifests.sort_by_key(|manifest| match manifest.intent {
        Intent::ClusterApply(_) => 0,
        Intent::CapabilityApply(_) => 1,
        Intent::NodeApply(_) => 2,
        Intent::PlanApply(_) => 3,
        Intent::PolicyApply(_) => 4,
        _ => 5,
    });
}

/// The documents, each with the number of lines before it.
///
/// A line that begins with `---` divides documents wherever it stands, even within quoted text (YAML 1.2.2,
/// section 9.1.2). Each is read by itself, so that a fault in one does not hide those of the others.
fn documents(text: &str) -> Vec<(u64, &str)> {
    let mut starts = vec![(0, 0)];
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---");
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n'])) && offset > 0
        {
            starts.push((number as u64, offset));
        }
        offset += line.len();
    }
    let ends = starts.iter().skip(1).map(|(_, offset)| *offset).chain([text.len()]);
    starts.iter().zip(ends).map(|((lines, start), end)| (*lines, &text[*start..end])).collect()
}

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "apiVersion")]
    api_version: Spanned<String>,
    kind: Spanned<String>,
}

/// Everything of one document.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Form<N, S> {
    /// The version of the form.
    #[serde(rename = "apiVersion")]
    #[schemars(with = "String")]
    _api_version: IgnoredAny,
    /// What it is.
    #[serde(rename = "kind")]
    #[schemars(with = "String")]
    _kind: IgnoredAny,
    /// What it is called.
    metadata: Option<Metadata<N>>,
    /// What it should be.
    spec: S,
}

/// What it is called.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Metadata<N> {
    /// Its name.
    #[schemars(with = "Option<N>")]
    name: Option<Spanned<N>>,
    /// Labels, for selectors of plans; nodes only.
    #[schemars(with = "Option<BTreeMap<Key, String>>")]
    labels: Option<Spanned<BTreeMap<Key, String>>>,
}

fn read_one(document: &Document) -> Result<Option<Manifest>, Faults> {
    let start = serde_saphyr::from_str_with_options::<Option<Spanned<IgnoredAny>>>(&document.text, options())
        .map_err(|error| document.read_error(&error, Location::UNKNOWN))?;
    let Some(Spanned { referenced: start, .. }) = start else { return Ok(None) };
    let header: Header = parse(document, start)?;
    if header.api_version.value != API_VERSION {
        let what = format!("this build reads apiVersion {API_VERSION}, not {:?}", header.api_version.value);
        return Err(document.fault(header.api_version.referenced, what).into());
    }
    let form = Reader { document, start };
    let intent = match header.kind.value.as_str() {
        "Cluster" => form.cluster()?,
        "Capability" => form.capability()?,
        "Node" => form.node()?,
        "Plan" => form.plan()?,
        "Policy" => form.policy()?,
        "Deployment" => form.deployment()?,
        other => {
            let what = format!("unknown kind {other:?}{}", suggest::instead(other, KINDS));
            return Err(document.fault(header.kind.referenced, what).into());
        }
    };
    Ok(Some(Manifest { intent, place: document.place(start), document: document.clone() }))
}

fn options() -> Options {
    serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: DEEPEST,
            flow_nesting_limit: DEEPEST,
            max_aliases: ALIASES,
            max_anchors: ALIASES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100 * ALIASES,
            max_replay_stack_depth: DEEPEST,
        },
    }
}

fn parse<T: DeserializeOwned>(document: &Document, start: Location) -> Result<T, Faults> {
    faulty::read(&document.text, options).map_err(|errors| {
        let mut faults: Vec<_> = errors.iter().map(|error| document.read_error(error, start)).collect();
        faults.sort_by_key(|fault| (fault.place.line, fault.place.column));
        Faults(faults)
    })
}

/// A document whose kind is known.
struct Reader<'a> {
    document: &'a Document,
    start: Location,
}

impl Reader<'_> {
    fn read<N: DeserializeOwned, S: DeserializeOwned>(&self) -> Result<Form<N, S>, Faults> {
        parse(self.document, self.start)
    }

    fn cluster(&self) -> Result<Intent, Faults> {
        let form = self.read::<ClusterName, ClusterSpec>()?;
        Ok(ClusterApply { name: self.name(form.metadata, None)?, spec: form.spec }.into())
    }

    fn capability(&self) -> Result<Intent, Faults> {
        let form = self.read::<CapabilityName, CapabilitySpec>()?;
        Ok(CapabilityApply { name: self.name(form.metadata, None)?, spec: form.spec }.into())
    }

    fn node(&self) -> Result<Intent, Faults> {
        let mut form = self.read::<NodeName, NodeForm>()?;
        let labels = form.metadata.as_mut().and_then(|metadata| metadata.labels.take());
        let cluster = form.spec.cluster.clone();
        Ok(NodeApply {
            name: self.name(form.metadata, None)?,
            spec: form.spec.spec(labels.map(|l| l.value).unwrap_or_default()),
            cluster,
        }
        .into())
    }

    fn plan(&self) -> Result<Intent, Faults> {
        let mut form = self.read::<PlanName, PlanForm>()?;
        let name = self.name(form.metadata, form.spec.name.take())?;
        Ok(PlanApply { name, spec: form.spec.into() }.into())
    }

    fn policy(&self) -> Result<Intent, Faults> {
        let form = self.read::<PolicyName, PolicyForm>()?;
        let name = self.name(form.metadata, None)?;
        let spec = form.spec.spec();
        let spec = spec.map_err(|(what, at)| self.document.fault(at.unwrap_or(self.start), what))?;
        Ok(PolicyApply { name, spec }.into())
    }

    fn deployment(&self) -> Result<Intent, Faults> {
        let mut form = self.read::<DeploymentName, DeploymentForm>()?;
        let name = self.name(form.metadata, form.spec.name.take())?;
        let plan = form.spec.plan.clone();
        let turn = form.spec.turn;
        let spec = form.spec.spec().map_err(|(what, at)| self.document.fault(at, what))?;
        Ok(DeploymentCreate { plan, name, spec, turn }.into())
    }

    /// The name, from `metadata` or, as older bodies have it, from the spec.
    fn name<N: PartialEq>(
        &self,
        metadata: Option<Metadata<N>>,
        inner: Option<Spanned<N>>,
    ) -> Result<N, Fault> {
        let (name, labels) = metadata.map_or((None, None), |metadata| (metadata.name, metadata.labels));
        if let Some(labels) = labels.filter(|labels| !labels.value.is_empty()) {
            return Err(self.document.fault(labels.referenced, "only nodes have labels: remove them"));
        }
        match (name, inner) {
            (Some(outer), Some(inner)) if outer.value != inner.value => Err(self
                .document
                .fault(inner.referenced, "the name here and that of metadata differ: write one")),
            (Some(name), _) | (None, Some(name)) => Ok(name.value),
            (None, None) => Err(self.document.fault(self.start, "\"metadata.name\" is missing here")),
        }
    }
}
