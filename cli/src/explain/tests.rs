//! Output byte by byte, and a description for every field of every kind.

use std::collections::BTreeSet;

use clap::Parser as _;

use super::*;
use crate::error::CliExit;
use crate::tests::fake::{FakeCli, context};

/// Runs a command line without a server.
fn output(line: &str) -> Result<String, CliError> {
    let cli = FakeCli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{error}"));
    let context = context("http://127.0.0.1:1".to_owned(), cli.globals.output);
    let mut out = Vec::new();
    crate::run(&cli.command, &context, &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

#[test]
fn a_kind_is_explained_by_its_manifest_and_its_row() {
    let wanted = "\
KIND:   capability (capabilities, cap, caps)
        Features that nodes may have, with a score

MANIFEST (chancery apply -f)
  apiVersion <string> -required-
    Version of the form.
    enum: chancery/v1
  kind <string> -required-
    Kind of the entity.
    enum: Capability
  metadata <object> -required-
    Name of the entity, and labels of a node.
  spec <object> -required-
    Desired state of the entity.
  status <object>
    State of the entity, as `get -o yaml` writes it. Ignored.

ROW (chancery get capabilities -o json)
  activity <string> -required-
    Whether matchers count the capability.
    enum: active, inactive
  created_at <string> -required-
    Time at which the entity was created.
  name <string> -required-
    Name of the capability.
  position <integer> -required-
    Position of the fact that last changed the entity.
  score <integer> -required-
    Score of the capability; higher is better within a type.
  type <string> -required-
    Type of the capability.
  updated_at <string> -required-
    Time at which the entity last changed.
  version <integer> -required-
    Number of facts about the entity so far.
";
    assert_eq!(output("chancery explain capabilities").expect("text"), wanted);
}

#[test]
fn a_field_is_explained_in_each_document_that_has_it() {
    for (path, wanted) in
        [("deployment.spec.strategy.blue_green", GRACEFUL), ("plan.spec.unready.action", ACTION)]
    {
        assert_eq!(output(&format!("chancery explain {path}")).expect("text"), wanted);
    }
}

const GRACEFUL: &str = "\
KIND:   deployment (deployments, dep)
FIELD:  spec.strategy.blue_green

MANIFEST (chancery apply -f)
  blue_green <object>
    Blue-green update: a whole new set alongside the old one; once all are
    ready, the old ones are deleted.
  FIELDS
    on_timeout <string>
      Action after the timeout (default: `rollback`). `rollback` deletes the new
      replicas, `cut_over` the old ones.
      enum: rollback, cut_over
    timeout <string> -required-
      Maximum time until all new replicas are ready.
";

const ACTION: &str = "\
KIND:   plan (plans, pl)
FIELD:  spec.unready.action

MANIFEST (chancery apply -f)
  action <string>
    Action to take. `show`: the incarnation is shown as unready. `restart`: the
    incarnation is stopped, and started again by the `restart` rule.
    default: show
    enum:
      show
        The incarnation is shown as unready, with the time since when it is
        unready. The default.
      restart
        The incarnation is ended, and the replica is started again by the plan's
        `restart` rule.

ROW (chancery get plans -o json)
  action <string>
    Action on the incarnation; `show` if absent.
    default: show
    enum:
      show
        The incarnation is shown as unready, with the time since when it is
        unready. The default.
      restart
        The incarnation is ended, and the replica is started again by the plan's
        `restart` rule.
";

#[test]
fn an_unknown_field_is_a_usage_error_that_lists_the_known_ones() {
    for (path, wanted) in [
        (
            "deployment.spec.strategy.rollng",
            "invalid field \"rollng\" of deployment.spec.strategy: must be one of blue_green, canary, rolling\n\
             try: chancery explain deployment.spec.strategy.rolling",
        ),
        ("node.spec.zone.x", "invalid field \"x\": node.spec.zone has no fields"),
        (
            "capability.",
            "invalid field \"\" of capability: must be one of activity, apiVersion, created_at, kind, metadata, name, \
             position, score, spec, status, type, updated_at, version",
        ),
    ] {
        let error = output(&format!("chancery explain {path}")).expect_err(path);
        assert_eq!((error.exit, error.message.as_str()), (CliExit::Usage, wanted));
    }
    let error = FakeCli::try_parse_from(["chancery", "explain", "pod.spec"]).expect_err("no such kind");
    assert_eq!(error.exit_code(), CliExit::Usage as i32);
}

const TREE: &str = "\
KIND:   node (nodes, no)
FIELD:  spec.storage

MANIFEST (chancery apply -f)
  storage <list of object>
    Storage of the node, at most one entry for each class.
  FIELDS
    capacity <number or string> -required-
    class <string> -required-
";

#[test]
fn a_tree_a_schema_and_the_kinds_can_be_shown() {
    let tree = output("chancery explain node.spec.storage --recursive").expect("text");
    assert_eq!(tree, TREE);
    let schema = output("chancery explain node.storage -o json").expect("text");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    assert_eq!(schema["row"]["items"]["$ref"], "#/$defs/StorageRow");
    assert!(schema["row"]["$defs"]["StorageRow"].is_object() && schema["manifest"].is_null());
    let kinds = output("chancery explain").expect("text");
    for kind in EntityKind::ALL {
        assert!(kinds.lines().any(|line| line.split_whitespace().next() == Some(kind.word())), "{kinds}");
    }
}

/// Names of all properties in a schema, without its structure.
fn names(schema: &Value, to: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            to.extend(schema["properties"].as_object().into_iter().flat_map(Map::keys).cloned());
            members.values().for_each(|value| names(value, to));
        }
        Value::Array(items) => items.iter().for_each(|value| names(value, to)),
        _ => {}
    }
}

#[test]
fn every_field_can_be_explained_and_has_a_description() {
    for kind in EntityKind::ALL {
        let documents = documents(*kind);
        for document in &documents {
            let (mut wanted, mut seen) = (BTreeSet::new(), BTreeSet::new());
            names(&document.schema, &mut wanted);
            let mut open = vec![(Vec::new(), &document.schema)];
            while let Some((parent, node)) = open.pop() {
                for field in document.fields(node) {
                    let fields: Vec<String> = parent.iter().cloned().chain([field.name.to_owned()]).collect();
                    let path = FieldPath { kind: *kind, fields };
                    let at = format!("{} of the {} of a {kind}", path.fields.join("."), document.word);
                    let found = find(&path, &documents).expect(&at);
                    let here: Vec<_> =
                        found.iter().filter(|(found, _)| found.word == document.word).collect();
                    assert_eq!(here.len(), 1, "{at}");
                    assert!(!field.about.is_empty(), "{at} has no description");
                    assert!(!document.type_of(field.node).is_empty(), "{at} has no type");
                    assert!(text(&ExplainArgs::default(), &path, &found).contains(field.name), "{at}");
                    seen.insert(field.name.to_owned());
                    open.push((path.fields, field.node));
                }
            }
            assert_eq!(seen, wanted, "{} of a {kind}", document.word);
        }
    }
}
