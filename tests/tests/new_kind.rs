//! Worked examples of a new kind of entity (`docs/adding-a-kind.md`) and of an orchestrator
//! (`docs/adding-an-orchestrator.md`). Their patches apply to these sources one after the other, and one
//! build of the result has both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use chancery_tests::{ServerProcess, StartConditions, until};
use serde_json::{Value, json};

/// Files that the program is built from.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "spans",
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
    "docs",
];
/// Maximum number of product files that a new kind may touch.
const KIND_FILES: usize = 9;
/// Maximum number of product files that an orchestrator may touch outside its own directory.
const ORCHESTRATOR_FILES: usize = 6;
/// Name of the program that is built from the patched sources.
const PROGRAM: &str = "chancery-with-examples";

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to).expect("a copy");
        return;
    }
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let name = entry.expect("an entry").file_name();
        copy(&from.join(&name), &to.join(&name));
    }
}

/// Makes `to` equal to `from`. Equal files are not written, so that they are not built again.
fn follow(from: &Path, to: &Path) {
    if from.is_file() {
        let wanted = fs::read(from).expect("a file");
        if fs::read(to).ok().as_ref() != Some(&wanted) {
            fs::write(to, wanted).expect("a file");
        }
        return;
    }
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(to).expect("a directory") {
        let entry = entry.expect("an entry");
        if !from.join(entry.file_name()).exists() && entry.path().is_file() {
            fs::remove_file(entry.path()).expect("it is removed");
        }
    }
    for entry in fs::read_dir(from).expect("a directory") {
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

/// Copies the sources and applies both patches, in a directory that is removed with the value.
fn patched(root: &Path) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for source in SOURCES {
        copy(&root.join(source), &directory.path().join(source));
    }
    for name in ["certificate", "orchestrator"] {
        run(Command::new("patch")
            .args(["-p1", "--no-backup-if-mismatch", "-i"])
            .arg(patch(name))
            .current_dir(directory.path()));
    }
    // The program of the tests is located in the same target directory.
    let manifest = directory.path().join("service/Cargo.toml");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    let named = format!("\n[[bin]]\nname = \"{PROGRAM}\"\npath = \"src/main.rs\"\n");
    fs::write(&manifest, text + &named).expect("a manifest");
    directory
}

/// Results of the build with patched sources.
struct PatchedBuild {
    sources: PathBuf,
    program: PathBuf,
    /// Test program of the orchestrator's conformance.
    conformance: PathBuf,
}

/// Builds the patched sources once, with existing dependencies.
fn built() -> &'static PatchedBuild {
    static BUILT: OnceLock<PatchedBuild> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        let target = test.ancestors().nth(3).expect("tests are in target/<profile>/deps");
        let sources = target.join(PROGRAM);
        follow(patched(&root()).path(), &sources);
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Cargo describes the package of these tests in their environment. A build script that reads such a variable would run
        // again, here and in the next build, and everything that depends on it would be compiled again.
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for name in names.filter(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            build.env_remove(name);
        }
        let output = run(build
            .args(["build", "--offline", "--workspace", "--features", "chancery/kafka-tls,chancery/otel"])
            .args(["--bin", PROGRAM, "--test", "files", "--message-format", "json"])
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
            .current_dir(&sources));
        let messages = String::from_utf8(output.stdout).expect("text");
        let executable = |name: &str| {
            let made = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let mut of_target = made.filter(|message| message["target"]["name"] == name);
            let path = of_target.find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
            path.unwrap_or_else(|| panic!("{name} is built"))
        };
        PatchedBuild { program: executable(PROGRAM), conformance: executable("files"), sources }
    })
}

/// Returns the conditions of a start of the patched program.
pub(crate) fn patched_launch() -> StartConditions {
    let instead = ["sh", "-c", "shift; exec \"$INSTEAD\" \"$@\"", "sh"].map(str::to_owned).to_vec();
    let env = vec![("INSTEAD".to_owned(), built().program.display().to_string())];
    StartConditions { wrapper: instead, env, ..StartConditions::default() }
}

/// Runs a command of the patched program with a server.
pub(crate) fn patched_command(server: &ServerProcess, args: &[&str]) -> Output {
    Command::new(&built().program)
        .args(args)
        .env("CHANCERY_SERVER", server.url())
        .output()
        .expect("the program runs")
}

/// Server of the patched program, and access to its command line.
struct PatchedServer(ServerProcess);

impl PatchedServer {
    fn start() -> PatchedServer {
        let mut server = ServerProcess::new();
        server.set_launch(patched_launch());
        server.start_again();
        PatchedServer(server)
    }

    fn cli(&self, args: &[&str]) -> String {
        let output = run(Command::new(&built().program).args(args).env("CHANCERY_SERVER", self.0.url()));
        String::from_utf8(output.stdout).expect("text")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the sources")
}

fn patch(name: &str) -> PathBuf {
    root().join("tests/examples").join(name).with_extension("patch")
}

/// Product files that a patch touches.
fn product_files(name: &str) -> Vec<String> {
    let patch = fs::read_to_string(patch(name)).expect("the patch");
    let files = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    let is_product = |file: &&str| {
        let mut directories = file.split('/');
        let is_source = Path::new(file).extension().is_some_and(|extension| extension == "rs");
        is_source && directories.next() != Some("tests") && directories.next() != Some("tests")
    };
    files.filter(is_product).map(str::to_owned).collect()
}

#[test]
fn a_new_kind_touches_few_files() {
    let product = product_files("certificate");
    assert!((1..=KIND_FILES).contains(&product.len()), "{product:?}");
}

#[test]
fn a_new_orchestrator_touches_few_files_outside_its_directory() {
    let mut product = product_files("orchestrator");
    product.retain(|file| !file.starts_with("executor/src/files/"));
    assert!((1..=ORCHESTRATOR_FILES).contains(&product.len()), "{product:?}");
}

#[test]
fn the_example_of_an_orchestrator_conforms_and_works() {
    run(&mut Command::new(&built().conformance));
    let server = PatchedServer::start();
    let (client, cli) = (server.0.client(), |args: &[&str]| server.cli(args));

    // A replica is running and ready, and is a file in the directory of its executor.
    let manifests = server.0.directory().join("files.yaml");
    fs::write(
        &manifests,
        "apiVersion: chancery/v1\nkind: Cluster\nmetadata: {name: paper}\nspec: {runtime: files}\n\
         ---\napiVersion: chancery/v1\nkind: Node\nmetadata: {name: sheet}\n\
         spec: {cluster: paper, domain: desk, resources: {cpu: 4, memory: 8, disk: 50}}\n\
         ---\napiVersion: chancery/v1\nkind: Plan\nmetadata: {name: note}\n\
         spec: {namespace: demo, service: note, cluster: paper, approval: automatic, \
         payloads: [{name: note, resources: {cpu: 500m, memory: 64MiB}, run: {argv: [run, along]}}]}\n\
         ---\napiVersion: chancery/v1\nkind: Deployment\nmetadata: {name: first}\n\
         spec: {plan: note, coordinates: {note: {version: v1}}, count: 1}\n",
    )
    .expect("a file");
    cli(&["apply", "-f", manifests.to_str().expect("a path")]);
    cli(&["wait", "deployment/note/first", "--for", "state=completed"]);
    let table = cli(&["get", "replicas"]);
    let row: Vec<_> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(&row[3..6], ["running", "yes", "sheet"], "{table}");
    let there = server.0.data().join("executors/default/paper/there");
    let first = client.items("incarnations?state=running")[0]["id"].as_str().expect("an id").to_owned();
    let process = there.join(&first).join("note-0");
    assert_eq!(fs::read_to_string(&process).expect("the process"), "run along");

    // An exit is reported.
    fs::write(&process, "exit 3").expect("the process ends");
    until("the end is reported", || {
        client
            .get(&format!("/v1/fleets/default/incarnations/{first}"))
            .text
            .contains("status 3")
            .then_some(())
    });
    assert!(!process.exists());
    let logs = Command::new(&built().program)
        .args(["logs", &first])
        .env("CHANCERY_SERVER", server.0.url())
        .output()
        .expect("the program runs");
    assert!(!logs.status.success() && logs.stdout.is_empty(), "files write no logs: {logs:?}");

    // A deletion of the plan ends its incarnations.
    cli(&["delete", "plan", "note", "--cascade"]);
    until("nothing is left", || {
        let is_deleted = client.get("/v1/fleets/default/plans/note").status == 404;
        (is_deleted && fs::read_dir(&there).ok()?.next().is_none()).then_some(())
    });
}

#[test]
fn the_example_of_a_new_kind_builds_and_works() {
    let mut server = PatchedServer::start();
    let client = server.0.client();
    let cli = |args: &[&str]| server.cli(args);

    // Its sample is valid, and the served schema is the one in the tree.
    let sources = &built().sources;
    let sample =
        fs::read_to_string(sources.join("schemas/samples/certificate.apply.v1.json")).expect("a sample");
    let sample: Value = serde_json::from_str(&sample).expect("JSON");
    // Its types have a level of their own: see `levels`.
    assert_eq!(cli(&["raise", "fleet"]), "fleet raised\n");
    client.must("certificate.apply", &sample["d"]);
    let schema = client.get("/v1/schemas/certificate.apply.v1");
    let stored =
        fs::read_to_string(sources.join("schemas/events/certificate.apply.v1.json")).expect("a schema");
    assert_eq!(schema.text, stored);

    // A manifest, a row, a filter, a table, a description.
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("certificate.yaml");
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
    assert_eq!(cli(&["get", "cert", "--filter", "service=shop", "-o", "name"]), "certificate/shop\n");
    assert!(cli(&["get", "certificates"]).starts_with("NAME"));
    assert!(cli(&["describe", "certificate/shop"]).contains("sha256:"));

    // A restart keeps the entity, by snapshot or journal.
    let version = row["version"].clone();
    // Streams and histories can be filtered by the kind.
    let lines = client.get("/v1/fleets/default/events?subject=certificate&follow=false");
    assert_eq!(lines.text.matches("dev.chancery.certificate.applied.v1").count(), 2, "{}", lines.text);
    let of_one = client.get("/v1/fleets/default/events?subject=certificate/shop&follow=false");
    assert_eq!(of_one.text.matches("dev.chancery.certificate.applied.v1").count(), 1, "{}", of_one.text);
    assert!(cli(&["history", "certificate", "shop"]).contains("certificate.applied"));

    server.0.kill();
    server.0.start_again();
    let client = server.0.client();
    assert_eq!(client.read("certificates/shop")["version"], version);

    // A command deletes the entity, and so does its manifest.
    let cli = |args: &[&str]| server.cli(args);
    let name = sample["d"]["name"].as_str().expect("a name");
    assert_eq!(cli(&["delete", "certificate", name]), format!("certificate/{name} deleted\n"));
    assert_eq!(cli(&["delete", "-f", file]), "certificate/shop deleted\n");
    assert!(client.items("certificates").is_empty());
    assert_eq!(client.get("/v1/fleets/default/certificates/shop").status, 404);
}
