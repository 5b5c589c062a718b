//! Finds the location in a document of a JSON Pointer into the intent, as errors of a server have it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

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
const NOT_WRITTEN: &[&str] = &["rule"];

/// Structure of a document, with locations.
enum LocationTree {
    Block(Vec<(String, Spanned<LocationTree>)>),
    List(Vec<Spanned<LocationTree>>),
    Value,
}

impl LocationTree {
    fn part(&self, name: &str) -> Option<&Spanned<LocationTree>> {
        match self {
            LocationTree::Block(entries) => {
                let named = |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, part)| part);
                let others = OTHER_NAMES.iter().filter(|(known, _)| *known == name);
                named(name).or_else(|| others.flat_map(|(_, others)| *others).find_map(|name| named(name)))
            }
            LocationTree::List(items) => items.get(name.parse::<usize>().ok()?),
            LocationTree::Value => None,
        }
    }
}

/// Target of a pointer, or the last part of its path that the document has.
#[derive(Debug)]
pub(super) struct PointerTarget {
    pub(super) at: Location,
    /// Whether the whole path was found, and leads to a single value.
    pub(super) is_value: bool,
}

/// Finds the target of a pointer. `None` if the document cannot be read or has no part of the path.
pub(super) fn find(text: &str, pointer: &str) -> Option<PointerTarget> {
    let tree: Spanned<LocationTree> = serde_saphyr::from_str_with_options(text, super::options()).ok()?;
    let parts: Vec<_> =
        pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
    // The intent has fields outside its spec that the document has in its metadata or in its spec.
    let roots =
        if parts.first().is_some_and(|part| part == "spec") { &[""][..] } else { &["metadata", "spec"] };
    let mut best: Option<(usize, PointerTarget)> = None;
    for root in roots {
        let mut node = if root.is_empty() { Some(&tree) } else { tree.value.part(root) };
        let mut depth = 0;
        while let Some((here, name)) = node.zip(parts.get(depth)) {
            match here.value.part(name) {
                Some(part) => node = Some(part),
                None if NOT_WRITTEN.contains(&name.as_str()) => {}
                None => break,
            }
            depth += 1;
        }
        if let Some(node) = node.filter(|_| depth > best.as_ref().map_or(0, |(depth, _)| *depth)) {
            let is_value = depth == parts.len() && matches!(node.value, LocationTree::Value);
            best = Some((depth, PointerTarget { at: node.referenced, is_value }));
        }
    }
    best.map(|(_, found)| found)
}

impl<'de> Deserialize<'de> for LocationTree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<LocationTree, D::Error> {
        from.deserialize_any(LocationVisitor)
    }
}

struct LocationVisitor;

macro_rules! values {
    ($($name:ident($type:ty))*) => {$(
        fn $name<E>(self, _: $type) -> Result<LocationTree, E> {
            Ok(LocationTree::Value)
        }
    )*};
}

impl<'de> Visitor<'de> for LocationVisitor {
    type Value = LocationTree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    values! { visit_bool(bool) visit_i64(i64) visit_i128(i128) visit_u64(u64) visit_u128(u128) visit_f64(f64) visit_str(&str) }

    fn visit_unit<E>(self) -> Result<LocationTree, E> {
        Ok(LocationTree::Value)
    }

    fn visit_none<E>(self) -> Result<LocationTree, E> {
        Ok(LocationTree::Value)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<LocationTree, D::Error> {
        LocationTree::deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<LocationTree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(LocationTree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<LocationTree, A::Error> {
        let mut block = Vec::new();
        while let Some(key) = entries.next_key::<String>()? {
            block.push((key, entries.next_value()?));
        }
        Ok(LocationTree::Block(block))
    }
}
