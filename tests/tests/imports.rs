//! The rooms: which crate may import which. The table is that of `docs/architecture.md`.

use std::collections::BTreeSet;
use std::process::Command;

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
    (
        "chancery",
        &[
            "chancery-events",
            "chancery-machine",
            "chancery-journal",
            "chancery-projector",
            "chancery-executor",
        ],
        None,
    ),
    (
        "chancery-tests",
        &[
            "chancery",
            "chancery-events",
            "chancery-executor",
            "chancery-journal",
            "chancery-machine",
            "chancery-projector",
        ],
        None,
    ),
];

#[test]
fn each_crate_imports_only_what_its_room_allows() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo's JSON");
    let packages = metadata["packages"].as_array().expect("packages");
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
