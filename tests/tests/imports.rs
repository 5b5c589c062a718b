//! The rooms: which crate may import which. The table is that of `docs/architecture.md`.

use std::collections::BTreeSet;
use std::path::Path;
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

/// Output of `cargo tree` for a client, without dependencies of tests.
fn client_tree(target: &str) -> String {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "-p", "chancery-cli", "--edges", "normal,build", "--prefix", "none", "--offline"])
        .args(["--locked", "--target", target])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_client_is_built_without_a_store_a_journal_or_kafka_on_each_platform() {
    // Packages that work on Unix alone.
    const UNIX: &[&str] = &["close_fds", "linux-raw-sys", "nix", "pidfd", "signal-hook"];
    for (target, others) in [
        ("x86_64-unknown-linux-gnu", &["close_fds", "nix", "pidfd", "signal-hook"][..]),
        ("aarch64-apple-darwin", UNIX),
        ("x86_64-pc-windows-msvc", &[UNIX, &["rustix"]].concat()),
    ] {
        let tree = client_tree(target);
        let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(crates.contains("chancery-projector"), "{tree}");
        let heavy = ["chancery-executor", "chancery-journal", "chancery-machine", "rdkafka", "sled", "tokio"];
        // A C compiler, or a system library.
        let foreign = ["cc", "cmake", "pkg-config", "openssl-sys"];
        for no in heavy.iter().chain(&foreign).chain(others) {
            assert!(!crates.contains(no), "a client for {target} needs no {no}:\n{tree}");
        }
    }
}

#[test]
fn a_client_calls_no_operating_system_by_its_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = 0;
    let mut folders = vec![root.join("cli/src"), root.join("events/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).expect("a source file");
            assert!(!text.contains("std::os::"), "{} is for one operating system", path.display());
        }
    }
    assert!(files > 50, "{files} files");
}
