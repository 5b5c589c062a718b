//! The worked example of a new kind of entity (`docs/adding-a-kind.md`): its patch applies to these sources, and what is
//! built from them has the kind everywhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use chancery_tests::{Launch, Server};
use serde_json::{Value, json};

/// What the program is built from.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "events",
    "machine",
    "journal",
    "projector",
    "executor",
    "decider",
    "api",
    "cli",
    "service",
    "tests",
    "bench",
    "schemas",
    "examples",
];
/// Product files that a new kind may touch.
const MOST_FILES: usize = 9;

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to).expect("a copy");
        return;
    }
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        copy(&from.join(&name), &to.join(&name));
    }
}

/// Makes `to` the same as `from`, and leaves alone what is the same already, so that it is not built again.
fn follow(from: &Path, to: &Path) {
    if from.is_file() {
        let wanted = fs::read(from).expect("a file");
        if fs::read(to).ok().as_ref() != Some(&wanted) {
            fs::write(to, wanted).expect("a file");
        }
        return;
    }
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(to).expect("a folder") {
        let entry = entry.expect("an entry");
        if !from.join(entry.file_name()).exists() && entry.path().is_file() {
            fs::remove_file(entry.path()).expect("it goes");
        }
    }
    for entry in fs::read_dir(from).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        follow(&from.join(&name), &to.join(&name));
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The sources with the patch, in a folder that goes.
fn patched(root: &Path, patch: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for source in SOURCES {
        copy(&root.join(source), &folder.path().join(source));
    }
    run(Command::new("patch")
        .args(["-p1", "--no-backup-if-mismatch", "-i"])
        .arg(patch)
        .current_dir(folder.path()));
    // The program of the tests stands beside it.
    let manifest = folder.path().join("service/Cargo.toml");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    let named = "\n[[bin]]\nname = \"chancery-with-certificates\"\npath = \"src/main.rs\"\n";
    fs::write(&manifest, text + named).expect("a manifest");
    folder
}

/// The program with the patch, built with the dependencies that are there already.
fn program(root: &Path, patch: &Path) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let target = test.ancestors().nth(3).expect("tests stand in target/<profile>/deps");
    let sources = target.join("chancery-with-certificates");
    follow(patched(root, patch).path(), &sources);
    run(Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--offline", "--workspace", "--features", "chancery/kafka-tls"])
        .args(["--bin", "chancery-with-certificates"])
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .current_dir(&sources));
    target.join("debug/chancery-with-certificates")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the sources")
}

fn patch() -> PathBuf {
    root().join("tests/examples/certificate.patch")
}

#[test]
fn a_new_kind_touches_few_files() {
    let patch = fs::read_to_string(patch()).expect("the patch");
    let files = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    let product: Vec<_> =
        files.filter(|file| std::path::Path::new(file).extension().is_some_and(|end| end == "rs")).collect();
    assert!((1..=MOST_FILES).contains(&product.len()), "{product:?}");
}

#[test]
fn the_example_of_a_new_kind_builds_and_works() {
    let (root, patch) = (root(), patch());
    let program = program(&root, &patch);
    let mut server = Server::new();
    let instead = ["sh", "-c", "shift; exec \"$INSTEAD\" \"$@\"", "sh"].map(str::to_owned).to_vec();
    let env = vec![("INSTEAD".to_owned(), program.display().to_string())];
    server.set_launch(Launch { wrapper: instead, env, ..Launch::default() });
    server.start_again();
    let client = server.client();
    let cli = |args: &[&str]| {
        let output = run(Command::new(&program).args(args).env("CHANCERY_SERVER", server.url()));
        String::from_utf8(output.stdout).expect("text")
    };

    // Its sample is read, and the schema that is served is the one in the tree.
    let sources = program.ancestors().nth(2).expect("the target").join("chancery-with-certificates");
    let sample =
        fs::read_to_string(sources.join("schemas/samples/certificate.apply.v1.json")).expect("a sample");
    let sample: Value = serde_json::from_str(&sample).expect("JSON");
    client.must("certificate.apply", &sample["d"]);
    let schema = client.get("/v1/schemas/certificate.apply.v1");
    let stored =
        fs::read_to_string(sources.join("schemas/events/certificate.apply.v1.json")).expect("a schema");
    assert_eq!(schema.text, stored);

    // A manifest, a row, a filter, a table, a description.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("certificate.yaml");
    let sha256 = "ab".repeat(32);
    let manifest = format!(
        "apiVersion: chancery/v1\nkind: Certificate\nmetadata: {{name: shop}}\nspec: {{service: shop, sha256: {sha256}}}\n"
    );
    fs::write(&file, manifest).expect("a file");
    let file = file.to_str().expect("a path");
    assert_eq!(cli(&["apply", "-f", file]), "certificate/shop created\n");
    let row = client.read("certificates/shop");
    assert_eq!(
        (&row["name"], &row["service"], &row["sha256"]),
        (&json!("shop"), &json!("shop"), &json!(sha256))
    );
    assert_eq!(client.items("certificates").len(), 2);
    assert_eq!(client.items("certificates?service=shop").len(), 1);
    assert_eq!(cli(&["get", "cert", "-l", "service=shop", "-o", "name"]), "certificate/shop\n");
    assert!(cli(&["get", "certificates"]).starts_with("NAME"));
    assert!(cli(&["describe", "certificate/shop"]).contains("sha256:"));

    // A restart keeps it: snapshot or journal.
    let version = row["version"].clone();
    // Streams and histories are filtered by it.
    let lines = client.get("/v1/fleets/default/events?subject=certificate&follow=false");
    assert_eq!(lines.text.matches("chancery.certificate.applied.v1").count(), 2, "{}", lines.text);
    let of_one = client.get("/v1/fleets/default/events?subject=certificate/shop&follow=false");
    assert_eq!(of_one.text.matches("chancery.certificate.applied.v1").count(), 1, "{}", of_one.text);
    assert!(cli(&["history", "certificate", "shop"]).contains("certificate.applied"));

    server.kill();
    server.start_again();
    let client = server.client();
    assert_eq!(client.read("certificates/shop")["version"], version);

    // It goes by a command, and by its manifest.
    let cli = |args: &[&str]| {
        let output = run(Command::new(&program).args(args).env("CHANCERY_SERVER", server.url()));
        String::from_utf8(output.stdout).expect("text")
    };
    let name = sample["d"]["name"].as_str().expect("a name");
    assert_eq!(cli(&["delete", "certificate", name]), format!("certificate/{name} deleted\n"));
    assert_eq!(cli(&["delete", "-f", file]), "certificate/shop deleted\n");
    assert!(client.items("certificates").is_empty());
    assert_eq!(client.get("/v1/fleets/default/certificates/shop").status, 404);
}
