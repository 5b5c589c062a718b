//! Permitted imports between crates, by the table in `docs/architecture.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Row of the table of modules.
#[derive(Debug)]
struct CrateRow {
    package: String,
    /// Workspace directories whose crates the crate may import.
    ours: Vec<String>,
    /// Permitted other crates; `None` if these are not limited.
    others: Option<Vec<String>>,
}

/// Rows of the table by directory.
fn crate_rows() -> BTreeMap<String, CrateRow> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/architecture.md");
    let text = fs::read_to_string(page).expect("the page");
    let (_, section) = text.split_once("\n## Crates\n").expect("a section");
    let code = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let mut crate_rows = BTreeMap::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, directory, package, _, ours, others, _] = cells[..] else { panic!("columns of {row}") };
        let others = match others.strip_prefix("only ") {
            Some(only) => Some(only.split(", ").map(str::to_owned).collect()),
            None => (others == "free").then_some(None).expect("`free`, or `only` and names"),
        };
        let directory_name = code(directory)[0].trim_end_matches('/').to_owned();
        let crate_row = CrateRow { package: code(package).remove(0), ours: code(ours), others };
        assert!(crate_rows.insert(directory_name, crate_row).is_none(), "two rows: {row}");
    }
    crate_rows
}

/// Packages that `cargo metadata` reports without network.
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
fn each_crate_imports_only_what_its_layer_allows() {
    let crate_rows = crate_rows();
    let packages = packages(&["--no-deps"]);
    let names: BTreeSet<_> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let described: BTreeSet<_> = crate_rows.values().map(|row| row.package.as_str()).collect();
    assert_eq!(names, described, "members of the workspace, and rows of the table of modules");
    for (directory, CrateRow { package: name, ours, others }) in &crate_rows {
        let package = packages.iter().find(|package| package["name"] == **name).expect("it is a member");
        let manifest = package["manifest_path"].as_str().expect("a path");
        assert!(manifest.ends_with(&format!("/{directory}/Cargo.toml")), "{name} is in {manifest}");
        let allowed: BTreeSet<&str> = ours
            .iter()
            .map(|incarnation_directory| crate_rows[incarnation_directory].package.as_str())
            .collect();
        let imports = package["dependencies"].as_array().expect("dependencies").iter();
        for import in imports
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str())
        {
            if names.contains(import) {
                assert!(allowed.contains(import), "{name} must not import {import}");
            } else if let Some(only) = others {
                assert!(
                    only.iter().any(|other| other == import),
                    "{name} must not import {import}: it is pure"
                );
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
    const UNIX: &[&str] = &["close_fds", "linux-raw-sys", "nix", "pidfd"];
    for (target, others) in [
        ("x86_64-unknown-linux-gnu", &["close_fds", "nix", "pidfd"][..]),
        ("aarch64-apple-darwin", UNIX),
        ("x86_64-pc-windows-msvc", &[UNIX, &["rustix", "signal-hook"]].concat()),
    ] {
        let tree = client_tree(target);
        let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(crates.contains("chancery-projector"), "{tree}");
        let heavy = ["chancery-executor", "chancery-journal", "chancery-machine", "rdkafka", "sled", "tokio"];
        // Packages that need a C compiler or a system library.
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
    let mut directories = vec![root.join("cli/src"), root.join("events/src")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).expect("a source file");
            // This one has a form for each platform.
            let is_for_each = path.ends_with("console/terminal.rs") && text.contains("#[cfg(not(unix))]");
            let is_for_one = text.contains("std::os::") && !is_for_each;
            assert!(!is_for_one, "{} is for one operating system", path.display());
        }
    }
    assert!(files > 50, "{files} files");
}
