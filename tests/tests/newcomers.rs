//! Typical mistakes of new users: each is reported, with what to do about it.

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use chancery_tests::fault_campaigns::fleet::{set_up, sleeper};
use chancery_tests::{ServerProcess, program};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(args).stdin(Stdio::null()).output().expect("the program runs")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_directory_has_one_server_whatever_its_fleet() {
    let server = ServerProcess::start();
    let data = server.data().to_str().expect("a path");
    for fleet in ["default", "other"] {
        let second = run(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data, "--fleet", fleet]);
        assert_eq!(second.status.code(), Some(4), "{fleet}");
        let listens = server.url().replace("http://", "that listens on ");
        let wanted = format!("chancery: cannot use directory {data}: locked by another server {listens}\n");
        assert!(printed(&second).starts_with(&wanted), "{}", printed(&second));
    }
    let address = std::fs::read_to_string(server.data().join("address")).expect("an address");
    assert_eq!(format!("http://{}", address.trim()), server.url());
    assert!(!server.data().join("fleets/other").exists(), "the directory is unchanged");
}

#[test]
fn a_port_that_is_taken_is_reported_with_another() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().to_str().expect("a path");
    let output = run(&["serve", "--listen", &format!("127.0.0.1:{port}"), "--data-dir", data]);
    assert_eq!(output.status.code(), Some(1));
    let text = printed(&output);
    assert!(
        text.starts_with(&format!("chancery: cannot start server: cannot listen on 127.0.0.1:{port}: ")),
        "{text}"
    );
    assert!(
        text.contains(&format!("another program uses port {port}")) && text.contains("--listen"),
        "{text}"
    );
    assert!(!directory.path().join("fleets").exists(), "no journal is created");
}

#[test]
fn the_demonstration_runs_under_any_name_and_leaves_no_log_when_it_succeeds() {
    let directory = tempfile::tempdir().expect("a directory");
    let (data, other) = (directory.path().join("demo"), directory.path().join("a $name of its own"));
    // By another process: a file that this one has open for writing, or a child of another test, cannot be executed.
    let copied = Command::new("cp").arg(program()).arg(&other).status();
    assert!(copied.expect("cp runs").success());
    let output = Command::new(&other).args(["demo", "--data-dir"]).arg(&data).output().expect("it runs");
    assert!(output.status.success(), "{}", printed(&output));
    assert!(data.join("fleets").exists() && !data.join("server.log").exists());
}

#[test]
fn what_a_server_refuses_is_reported_once_with_its_location_and_the_others_are_applied() {
    let server = ServerProcess::start_with(&[("CHANCERY_LIMITS_REPLICAS", "3")]);
    set_up(&server.client(), &sleeper());
    let file = server.directory().join("deployments.yaml");
    let deployment = |name: &str, count: u32| {
        format!(
            "apiVersion: chancery/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  plan: web\n  count: {count}\n"
        )
    };
    let path = file.to_str().expect("a path");
    std::fs::write(&file, deployment("many", 4)).expect("a file");
    let output = server.run(&["apply", "-f", path]);
    let refused = format!(
        "chancery: {path}:6:10: cannot apply deployment/web/many: spec.count must be at most 3, which is the server's setting \
         limits.replicas (given: \"4\")\n"
    );
    assert_eq!(printed(&output), format!("{refused}chancery: nothing was applied\n"));
    assert_eq!(output.status.code(), Some(1));
    std::fs::write(&file, format!("{}---\n{}", deployment("many", 4), deployment("few", 0))).expect("a file");
    let output = server.run(&["apply", "-f", path]);
    assert_eq!(
        printed(&output),
        format!("{refused}chancery: applied 1 of 2 documents: fix the others and apply again\n")
    );
}

#[test]
fn a_name_of_nothing_is_an_error_also_where_nothing_waits() {
    let server = ServerProcess::start();
    set_up(&server.client(), &sleeper());
    assert!(server.run(&["approve", "--plan", "web", "--all"]).status.success());
    for (args, wanted) in [
        (["approve", "--plan", "wbe", "--all"], "chancery: cannot read plan/wbe: there is no plan \"wbe\"\n"),
        (
            ["reject", "--replica", "web-x", "-y"],
            "chancery: cannot read replica/web-x: there is no replica \"web-x\"\n",
        ),
    ] {
        let output = server.run(&args);
        assert_eq!((output.status.code(), printed(&output).as_str()), (Some(3), wanted));
    }
    // A plan that never existed does not count as deleted.
    let output = server.run(&["wait", "plan/wbe", "--for", "deleted"]);
    assert_eq!(output.status.code(), Some(3), "{}", printed(&output));
    assert!(printed(&output).contains("there is no plan \"wbe\""), "{}", printed(&output));
    server.cli(&["apply", "-f", "examples/nodes.yaml"]);
    server.cli(&["delete", "node/node-4"]);
    server.cli(&["wait", "node/node-4", "--for", "deleted"]);
    let output = server.run(&["get", "node", "node-4", "node-44"]);
    let wanted = "chancery: cannot read node/node-4: there is no node \"node-4\"\n\
                  hint: its events are kept: chancery history node node-4\n\
                  cannot read node/node-44: there is no node \"node-44\"\n";
    assert_eq!((output.status.code(), printed(&output).as_str()), (Some(3), wanted));
    let output = server.run(&["logs", "replica/web-x"]);
    assert_eq!(printed(&output), "chancery: cannot read replica/web-x: there is no replica \"web-x\"\n");
    let id = "00000000-0008-8801-8000-000000000007";
    let output = server.run(&["logs", id]);
    let wanted = format!("there is no incarnation \"{id}\"\n");
    assert!(output.status.code() == Some(3) && printed(&output).ends_with(&wanted), "{}", printed(&output));
}
