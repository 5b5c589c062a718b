//! The rooms: which crate may import which. The table is that of `docs/architecture.md`.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// A crate, the crates of the workspace that it may import, and, where it says so, the only others.
type Room = (&'static str, &'static [&'static str], Option<&'static [&'static str]>);

const ROOMS: &[Room] = &[
    (
        "chancery-events",
        &[],
        Some(&["chrono", "data-encoding", "schemars", "serde", "serde_json", "sha2", "thiserror", "uuid"]),
    ),
    (
        "chancery-machine",
        &["chancery-events"],
        Some(&["rustc-hash", "serde", "serde_json", "smallvec", "thiserror"]),
    ),
    ("chancery-journal", &["chancery-events"], None),
    ("chancery-projector", &["chancery-events", "chancery-machine", "chancery-journal"], None),
    ("chancery-executor", &["chancery-events"], None),
    ("chancery-decider", &["chancery-events", "chancery-machine", "chancery-journal"], None),
    (
        "chancery-api",
        &[
            "chancery-events",
            "chancery-journal",
            "chancery-projector",
            "chancery-executor",
            "chancery-decider",
        ],
        None,
    ),
    ("chancery-cli", &["chancery-events", "chancery-projector"], None),
    (
        "chancery",
        &[
            "chancery-events",
            "chancery-machine",
            "chancery-journal",
            "chancery-projector",
            "chancery-executor",
            "chancery-decider",
            "chancery-api",
            "chancery-cli",
        ],
        None,
    ),
    (
        "chancery-tests",
        &[
            "chancery",
            "chancery-cli",
            "chancery-decider",
            "chancery-events",
            "chancery-executor",
            "chancery-journal",
            "chancery-machine",
            "chancery-projector",
        ],
        None,
    ),
];

/// What `cargo metadata` reports of packages, without network.
pub(crate) fn packages(args: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo's JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

#[test]
fn each_crate_imports_only_what_its_room_allows() {
    let packages = packages(&["--no-deps"]);
    for (room, may, only) in ROOMS {
        let package =
            packages.iter().find(|p| p["name"] == *room).unwrap_or_else(|| panic!("no crate {room}"));
        let imports: BTreeSet<&str> = package["dependencies"]
            .as_array()
            .expect("dependencies")
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str())
            .collect();
        for import in imports {
            if import.starts_with("chancery") {
                assert!(may.contains(&import), "{room} may not import {import}");
            } else if let Some(only) = only {
                assert!(only.contains(&import), "{room} may not import {import}: it is pure");
            }
        }
    }
}

#[test]
fn a_client_is_built_without_a_store_a_journal_or_kafka() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "-p", "chancery-cli", "--edges", "normal", "--prefix", "none", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8(output.stdout).expect("text");
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains("chancery-projector"), "{tree}");
    for no in ["chancery-executor", "chancery-journal", "chancery-machine", "rdkafka", "sled", "tokio"] {
        assert!(!crates.contains(no), "a client needs no {no}:\n{tree}");
    }
}
