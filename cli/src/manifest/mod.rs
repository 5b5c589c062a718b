//! Manifests: files of YAML documents that describe desired entities, and their conversion to intents.
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
//! A document is read as a tree whose parts have locations, then as the form of its kind, and again for each
//! error, so that all errors are reported.
//! Unknown fields are refused: a misspelt limit must not mean "unlimited".

mod approval;
mod errors;
mod form;
pub(crate) mod of_row;
mod policy;
mod reader;
mod strategy;
pub mod suggest;
#[cfg(test)]
mod tests;
mod tree;
mod units;
pub mod write;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use chancery_events::intent::Intent;
use chancery_events::kind::{EntityKind, keys};
use chancery_events::name::KeyName;
use chancery_events::{each_kind, spec};
use schemars::{JsonSchema, Schema, schema_for};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::json;

use errors::YamlDocument;
pub use errors::{FileLocation, ManifestError, ManifestErrors};
use form::{DeploymentForm, NodeForm, PlanForm, SpecForm};
use policy::PolicyForm;
use tree::DocumentTree;

/// Version of the manifest forms.
pub const API_VERSION: &str = "chancery/v1";
/// Maximum size of a file, in bytes.
pub const LARGEST: usize = 16 << 20;

/// Kinds in the order in which they are applied: a referenced kind comes before the kinds that refer to it.
pub static KINDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut kinds: Vec<_> =
        EntityKind::ALL.iter().map(|kind| kind.entry()).filter(|entry| entry.manifest.is_some()).collect();
    kinds.sort_by_key(|entry| entry.manifest);
    kinds.into_iter().map(|entry| entry.name).collect()
});

/// Error of a document without a header, as rows of `get -o json` have none.
const NO_MANIFEST: &str = "invalid manifest: \"apiVersion\" and \"kind\" are missing (`chancery get KIND NAME -o yaml` prints \
                           manifests; -o json, and -o yaml of kinds without manifests, print rows)";

/// Document of a manifest file.
#[derive(Clone, PartialEq, Debug)]
pub struct ManifestDocument {
    /// Intent of the document.
    pub intent: Intent,
    /// Location of the document's start.
    pub place: FileLocation,
    document: YamlDocument,
}

impl ManifestDocument {
    /// Returns the location in the file of a JSON Pointer into the intent, and the value if it is a single
    /// one. For a part that the file does not have, it is the location of the nearest parent.
    pub fn locate(&self, pointer: &str) -> (FileLocation, Option<String>) {
        let tree = DocumentTree::read(&self.document.text).ok().flatten();
        match tree.as_ref().and_then(|tree| tree.find(pointer)) {
            Some((at, value)) => (self.document.place(at), value.map(str::to_owned)),
            None => (self.place.clone(), None),
        }
    }
}

/// Reads all documents of a file, in their order. Returns all errors of the file if there are any.
pub fn read(file: &str, text: &str) -> Result<Vec<ManifestDocument>, ManifestErrors> {
    let file: Arc<str> = file.into();
    if text.len() > LARGEST {
        let what = format!("invalid file of {} bytes: must have at most {LARGEST} bytes", text.len());
        return Err(ManifestError { place: FileLocation { file, line: 1, column: 1 }, what }.into());
    }
    let (mut manifests, mut faults) = (Vec::new(), Vec::new());
    for (lines_before, text) in documents(text) {
        let document = YamlDocument { file: Arc::clone(&file), lines_before, text: text.into() };
        match read_one(&document) {
            Ok(manifest) => manifests.extend(manifest),
            Err(found) => faults.extend(found.0),
        }
    }
    if faults.is_empty() { Ok(manifests) } else { Err(ManifestErrors(faults)) }
}

/// Sorts manifests into the order in which they are applied. Manifests of one kind keep their order.
pub fn sort(manifests: &mut [ManifestDocument]) {
    manifests.sort_by_key(|manifest| {
        let subject = manifest.intent.subject();
        subject.and_then(|subject| EntityKind::named(subject.kind())).map(|kind| kind.entry().manifest)
    });
}

/// Returns the documents, each with the number of lines before it.
///
/// A line that starts with `---` separates documents anywhere, even within quoted text (YAML 1.2.2, section
/// 9.1.2). Each document is read separately, so that an error in one does not hide errors of the others.
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
struct ManifestHeader {
    #[serde(rename = "apiVersion")]
    api_version: String,
    kind: String,
}

/// Form of a whole document.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ManifestForm<N, S> {
    /// Version of the form.
    #[serde(rename = "apiVersion")]
    #[schemars(with = "String")]
    _api_version: IgnoredAny,
    /// Kind of the entity.
    #[serde(rename = "kind")]
    #[schemars(with = "String")]
    _kind: IgnoredAny,
    /// Name of the entity, and labels of a node.
    metadata: Option<ManifestMetadata<N>>,
    /// Desired state of the entity.
    spec: S,
    /// State of the entity, as `get -o yaml` writes it. Ignored.
    #[serde(default, rename = "status")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    _status: IgnoredAny,
}

/// Metadata of a document: the entity's name and labels.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ManifestMetadata<N> {
    /// Name of the entity; required.
    name: Option<N>,
    /// Labels, for selectors of plans; nodes only.
    labels: Option<BTreeMap<KeyName, String>>,
}

fn read_one(document: &YamlDocument) -> Result<Option<ManifestDocument>, ManifestErrors> {
    let tree = DocumentTree::read(&document.text).map_err(|error| document.parser_error(&error))?;
    let Some(tree) = tree else { return Ok(None) };
    let reader = ManifestReader { document, tree };
    if reader.tree.lacks(&["apiVersion", "kind"]) {
        return Err(reader.fault("", NO_MANIFEST).into());
    }
    let header: ManifestHeader = reader.read()?;
    if header.api_version != API_VERSION {
        let what = format!("invalid apiVersion {:?}: must be {API_VERSION}", header.api_version);
        return Err(reader.fault("/apiVersion", what).into());
    }
    let intent = reader.intent(&header.kind).unwrap_or_else(|| {
        let what = format!("invalid kind {:?}{}", header.kind, suggest::instead(&header.kind, &KINDS));
        Err(reader.fault("/kind", what).into())
    })?;
    let place = document.place(reader.tree.root.referenced);
    Ok(Some(ManifestDocument { intent, place, document: document.clone() }))
}

macro_rules! manifests {
    ($($kind:ident $word:literal $plural:literal $aliases:tt $place:literal $about:literal {
        key $key:tt $(owner $owner:tt)? $(entity $entity:tt)? $(row $row:tt)? $(ends $ends:tt)?
        $(manifest $manifest:tt)?
    })*) => {
        manifests! { @kinds $($($kind $word $key $manifest)?)* }
    };
    (@kinds $($kind:ident $word:literal $key:tt $manifest:tt)*) => {
        impl ManifestReader<'_> {
            /// Returns the intent of the document; `None` if there is no such kind.
            fn intent(&self, kind: &str) -> Option<Result<Intent, ManifestErrors>> {
                match kind {
                    $(stringify!($kind) => Some(manifests!(@read self $word $key $manifest)),)*
                    _ => None,
                }
            }
        }

        /// Returns the schema of each kind of manifest, in the order of [`KINDS`].
        pub fn schemas() -> Vec<(&'static str, Schema)> {
            let mut all = vec![$(manifests!(@schema $kind $key $manifest)),*];
            all.sort_by_key(|(kind, _)| KINDS.iter().position(|known| known == kind));
            all
        }
    };
    (@read $reader:ident $word:literal (name: $name:ident) ($rank:literal $spec:ident)) => {
        $reader.plain::<keys::$name, spec::$spec>(concat!($word, ".apply.v1"))
    };
    (@read $reader:ident $word:literal $key:tt ($rank:literal: $form:ident)) => {
        $reader.form::<$form>()
    };
    (@schema $kind:ident (name: $name:ident) ($rank:literal $spec:ident)) => {
        schema::<keys::$name, spec::$spec>(stringify!($kind))
    };
    (@schema $kind:ident $key:tt ($rank:literal: $form:ident)) => {
        schema::<<$form as SpecForm>::Name, $form>(stringify!($kind))
    };
}

each_kind!(manifests);

/// Returns the kind with the schema of its manifest, for editors.
fn schema<N: JsonSchema, S: JsonSchema>(kind: &'static str) -> (&'static str, Schema) {
    let mut schema = schema_for!(ManifestForm<N, S>);
    schema.insert("title".into(), json!(format!("Chancery manifest: {kind}")));
    // Reading a form ignores these fields, but they distinguish the kinds in an editor.
    if let Some(properties) = schema.get_mut("properties").and_then(|p| p.as_object_mut()) {
        properties["apiVersion"]["const"] = API_VERSION.into();
        properties["kind"]["const"] = kind.into();
    }
    schema.insert("required".into(), json!(["apiVersion", "kind", "metadata", "spec"]));
    (kind, schema)
}

/// Reader of a document.
struct ManifestReader<'a> {
    document: &'a YamlDocument,
    tree: DocumentTree<'a>,
}

impl ManifestReader<'_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, ManifestErrors> {
        reader::read(&self.tree).map_err(|errors| {
            let mut faults: Vec<_> = errors.iter().map(|error| self.document.form_error(error)).collect();
            faults.sort_by_key(|fault| (fault.place.line, fault.place.column));
            ManifestErrors(faults)
        })
    }

    /// Returns an error at the part of the document with the path.
    fn fault(&self, path: &str, what: impl Into<String>) -> ManifestError {
        self.document.fault(self.tree.part(path), what)
    }

    /// Returns the intent of a document whose kind has the same spec in manifests and intents.
    fn plain<N, S>(&self, type_name: &str) -> Result<Intent, ManifestErrors>
    where
        N: DeserializeOwned + Serialize + PartialEq,
        S: DeserializeOwned + Serialize,
    {
        let form: ManifestForm<N, S> = self.read()?;
        let body = json!({ "name": self.name(form.metadata, None)?, "spec": form.spec });
        let read = Intent::read(type_name, &body.to_string()).expect("an intent applies each manifest");
        read.map_err(|error| self.fault("", error.to_string()).into())
    }

    /// Returns the intent of a document whose kind has a form of its own in manifests.
    fn form<S: SpecForm>(&self) -> Result<Intent, ManifestErrors> {
        let mut form: ManifestForm<S::Name, S> = self.read()?;
        let metadata = form.metadata.as_mut().filter(|_| S::HAS_LABELS);
        let labels = metadata.and_then(|metadata| metadata.labels.take());
        let inner = form.spec.inner_name();
        let name = self.name(form.metadata, inner)?;
        let intent = form.spec.intent(name, labels.unwrap_or_default());
        intent.map_err(|(what, path)| self.fault(&path, what).into())
    }

    /// Returns the name, from `metadata` or, in older manifests, from the spec.
    fn name<N: PartialEq>(
        &self,
        metadata: Option<ManifestMetadata<N>>,
        inner: Option<N>,
    ) -> Result<N, ManifestError> {
        let (name, labels) = metadata.map_or((None, None), |metadata| (metadata.name, metadata.labels));
        if labels.is_some_and(|labels| !labels.is_empty()) {
            return Err(self.fault("/metadata/labels", "invalid labels: only nodes have labels"));
        }
        match (name, inner) {
            (Some(outer), Some(inner)) if outer != inner => {
                Err(self.fault("/spec/name", "invalid name: must equal metadata.name or be omitted"))
            }
            (Some(name), _) | (None, Some(name)) => Ok(name),
            (None, None) => Err(self.fault("", "\"metadata.name\" is missing here")),
        }
    }
}
