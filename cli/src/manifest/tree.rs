//! Tree of a YAML document: blocks, lists and values, each with its location.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{DuplicateKeyPolicy, Error, Location, Options, Spanned};

/// Maximum depth of nested collections.
const DEEPEST: usize = 32;
/// Maximum number of aliases in a document, and of anchors. The events that they replay are limited too.
const ALIASES: usize = 1000;
/// Maximum length of a value that an error repeats, in bytes.
const LONGEST: usize = 80;

/// Names in a document of an intent's fields, where they differ; documented names first.
const OTHER_NAMES: &[(&str, &[&str])] = &[
    ("class", &["storageClass"]),
    ("coordinates", &["payload_coordinates"]),
    ("count", &["instance_count"]),
    ("cpu", &["cores"]),
    ("domain", &["updateDomain", "update_domain"]),
    ("matchers", &["matchingComputeCapabilities"]),
    ("mount", &["mountPath"]),
    ("name", &["payloadName", "deployment_id"]),
    ("names", &["capabilityNames"]),
    ("payloads", &["applications"]),
    ("plan", &["deployment_plan_name"]),
    ("service", &["serviceName"]),
    ("type", &["capabilityType"]),
    ("volumes", &["persistentVolumes"]),
];

/// Fields of an intent that a document omits, while it has their own fields.
const NOT_WRITTEN: &[&str] = &["rule", "timing"];

/// Document as a tree, with the text that it was read from.
pub(super) struct DocumentTree<'t> {
    pub(super) text: &'t str,
    pub(super) root: LocatedNode,
}

/// Node with its location.
pub(super) type LocatedNode = Spanned<DocumentNode>;

/// Block, list or value of a document.
pub(super) struct DocumentNode {
    pub(super) value: NodeValue,
    /// Whether readers skip the node, because it has an error.
    pub(super) is_left_out: Cell<bool>,
    /// Whether a part of the node is left out.
    pub(super) is_incomplete: Cell<bool>,
}

/// Value of a node. Plain values have their type by YAML; their text is in the document.
pub(super) enum NodeValue {
    Block(Vec<BlockEntry>),
    List(Vec<LocatedNode>),
    Text(String),
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Null,
}

/// Entry of a block.
pub(super) struct BlockEntry {
    pub(super) key: LocatedNode,
    /// Whether an earlier entry of the block has the same key.
    pub(super) is_repeated: bool,
    pub(super) node: LocatedNode,
}

impl<'t> DocumentTree<'t> {
    /// Reads a document; `None` if it is empty.
    pub(super) fn read(text: &'t str) -> Result<Option<DocumentTree<'t>>, Error> {
        let root: LocatedNode = serde_saphyr::from_str_with_options(text, options())?;
        let is_empty = matches!(root.value.value, NodeValue::Null);
        Ok((!is_empty).then_some(DocumentTree { text, root }))
    }

    /// Returns the text of a value as the document has it, without quotes; `None` for blocks, lists and null.
    pub(super) fn text_of<'n>(&self, node: &'n LocatedNode) -> Option<&'n str>
    where
        't: 'n,
    {
        match &node.value.value {
            NodeValue::Block(_) | NodeValue::List(_) | NodeValue::Null => None,
            NodeValue::Text(text) => Some(text),
            _ => {
                let span = node.defined.span();
                let from = usize::try_from(span.byte_offset()?).ok()?;
                let len = usize::try_from(span.byte_len()?).ok()?;
                self.text.get(from..from.checked_add(len)?)
            }
        }
    }

    /// Returns the text of a value, if an error can repeat it.
    pub(super) fn short_text_of<'n>(&self, node: &'n LocatedNode) -> Option<&'n str>
    where
        't: 'n,
    {
        let text = self.text_of(node)?.trim();
        (!text.is_empty() && text.len() <= LONGEST && !text.contains('\n')).then_some(text)
    }

    /// Whether the document is a block with none of these entries.
    pub(super) fn lacks(&self, names: &[&str]) -> bool {
        matches!(self.root.value.value, NodeValue::Block(_))
            && names.iter().all(|name| self.root.value.part(name).is_none())
    }

    /// Finds a part of the document by its path, or else the nearest part that contains it.
    pub(super) fn part(&self, path: &str) -> Location {
        follow(&self.root, &parts(path)).1.referenced
    }

    /// Finds a part of the document by a JSON Pointer into its intent, and returns its location and its text if it is a
    /// value. For a part that the document does not have, it is the nearest part that contains it; `None` if that is the
    /// whole document.
    pub(super) fn find(&self, pointer: &str) -> Option<(Location, Option<&str>)> {
        let parts = parts(pointer);
        // The intent has fields outside its spec that the document has in its metadata or in its spec.
        let is_in_spec = parts.first().is_some_and(|part| part == "spec");
        let metadata_and_spec =
            ["metadata", "spec"].map(|part| self.root.value.part(part)).into_iter().flatten();
        let found = if is_in_spec {
            follow(&self.root, &parts)
        } else {
            let all = metadata_and_spec.map(|root| follow(root, &parts));
            all.reduce(|best, next| if next.0 > best.0 { next } else { best })?
        };
        let (depth, node) = found;
        let text = if depth == parts.len() { self.short_text_of(node) } else { None };
        (depth > 0).then_some((node.referenced, text))
    }
}

/// Follows a path as far as the document has it, and returns the number of parts that were found and the last node.
fn follow<'n>(mut node: &'n LocatedNode, path: &[String]) -> (usize, &'n LocatedNode) {
    for (depth, name) in path.iter().enumerate() {
        match node.value.part(name) {
            Some(part) => node = part,
            None if NOT_WRITTEN.contains(&name.as_str()) => {}
            None => return (depth, node),
        }
    }
    (path.len(), node)
}

fn parts(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
}

fn options() -> Options {
    serde_saphyr::options! {
        with_snippet: false,
        // Text such as a version `1e999` is a number too large for its type.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        // Entries with the same key are found by the reader, so that a document reports its other errors as well.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
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

impl DocumentNode {
    fn is_text(&self, text: &str) -> bool {
        matches!(&self.value, NodeValue::Text(own) if own == text)
    }

    fn part(&self, name: &str) -> Option<&LocatedNode> {
        match &self.value {
            NodeValue::Block(entries) => {
                let named = |name: &str| {
                    let is_named = |entry: &&BlockEntry| entry.key.value.is_text(name);
                    entries.iter().find(is_named).map(|entry| &entry.node)
                };
                let others = OTHER_NAMES.iter().filter(|(known, _)| *known == name);
                named(name).or_else(|| others.flat_map(|(_, others)| *others).find_map(|name| named(name)))
            }
            NodeValue::List(items) => items.get(name.parse::<usize>().ok()?),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for DocumentNode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DocumentNode, D::Error> {
        let value = from.deserialize_any(NodeVisitor)?;
        Ok(DocumentNode { value, is_left_out: Cell::new(false), is_incomplete: Cell::new(false) })
    }
}

struct NodeVisitor;

macro_rules! values {
    ($($name:ident($value:ident: $type:ty) = $read:expr;)*) => {$(
        fn $name<E>(self, $value: $type) -> Result<NodeValue, E> {
            Ok($read)
        }
    )*};
}

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = NodeValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a block, a list or a value")
    }

    values! {
        visit_bool(value: bool) = NodeValue::Bool(value);
        visit_u64(value: u64) = NodeValue::Unsigned(value);
        visit_i64(value: i64) = NodeValue::Signed(value);
        visit_f64(value: f64) = NodeValue::Float(value);
        visit_str(value: &str) = NodeValue::Text(value.to_owned());
        visit_string(value: String) = NodeValue::Text(value);
    }

    fn visit_unit<E>(self) -> Result<NodeValue, E> {
        Ok(NodeValue::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NodeValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(NodeValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<NodeValue, A::Error> {
        let (mut block, mut known) = (Vec::new(), HashSet::new());
        while let Some(key) = entries.next_key::<LocatedNode>()? {
            // Keys that are no text are compared by value.
            let text = match &key.value.value {
                NodeValue::Text(text) => Some(text.clone()),
                NodeValue::Bool(value) => Some(value.to_string()),
                NodeValue::Unsigned(number) => Some(number.to_string()),
                NodeValue::Signed(number) => Some(number.to_string()),
                NodeValue::Float(number) => Some(number.to_string()),
                NodeValue::Block(_) | NodeValue::List(_) | NodeValue::Null => None,
            };
            let is_repeated = text.is_some_and(|text| !known.insert(text));
            block.push(BlockEntry { key, is_repeated, node: entries.next_value()? });
        }
        Ok(NodeValue::Block(block))
    }
}
