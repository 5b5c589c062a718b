//! `get --watch` of the real program: every change once, also when the server is killed and restarted.

use std::io::{BufRead as _, BufReader, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use chancery_tests::{ServerProcess, program, until};
use serde_json::Value;

/// Proxy with a constant address in front of a server whose address changes with each start.
struct FrontProxy {
    url: String,
    behind: Arc<Mutex<String>>,
}

impl FrontProxy {
    fn of(server: &ServerProcess) -> FrontProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let behind = Arc::new(Mutex::new(address(server)));
        let front = FrontProxy { url, behind: behind.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let address = behind.lock().expect("no panic").clone();
                // Without a server the connection is closed.
                if let Ok(server) = TcpStream::connect(address) {
                    let half = |stream: &TcpStream| stream.try_clone().expect("a stream");
                    pass(half(&client), half(&server));
                    pass(server, client);
                }
            }
        });
        front
    }

    fn now(&self, server: &ServerProcess) {
        *self.behind.lock().expect("no panic") = address(server);
    }
}

fn address(server: &ServerProcess) -> String {
    server.url().trim_start_matches("http://").to_owned()
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// Running `get --watch` command; dropping it ends the program.
struct WatchCommand {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl WatchCommand {
    fn begin(url: &str, args: &[&str]) -> WatchCommand {
        let mut child = Command::new(program())
            .args(args)
            .env("CHANCERY_SERVER", url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let printed = lines.clone();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                printed.lock().expect("no panic").push(line);
            }
        });
        WatchCommand { child, lines }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic").clone()
    }

    /// Change, entity, state and version of each line.
    fn changes(&self) -> Vec<(String, String, String, u64)> {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let read = |line: &String| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let version = line["row"]["version"].as_u64().expect("a version");
            (text(&line["change"]), text(&line["subject"]), text(&line["row"]["state"]), version)
        };
        self.lines().iter().map(read).collect()
    }

    fn until(&self, change: &str, subject: &str, state: &str) {
        until(&format!("{subject} is reported as {change}, {state}"), || {
            let found = |c: &(String, String, String, u64)| c.0 == change && c.1 == subject && c.2 == state;
            self.changes().iter().any(found).then_some(())
        });
    }
}

impl Drop for WatchCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_watch_reports_every_change_once_also_across_a_killed_server() {
    let mut server = ServerProcess::start();
    let front = FrontProxy::of(&server);
    server.cli(&["apply", "-f", "examples/nodes.yaml"]);
    let watch = WatchCommand::begin(&front.url, &["get", "nodes", "--watch", "-o", "jsonl"]);
    let lines = WatchCommand::begin(&front.url, &["get", "node/node-2", "-w"]);
    for node in ["node/node-1", "node/node-2", "node/node-3", "node/node-4"] {
        watch.until("added", node, "allocated");
    }
    until("the one node is printed with its columns", || (lines.lines().len() == 2).then_some(()));
    server.cli(&["evict", "node/node-1"]);
    watch.until("changed", "node/node-1", "evicted");

    // A change recorded just before the kill is also reported, by the restarted server.
    server.cli(&["evict", "node-2"]);
    server.kill();
    server.start_again();
    server.cli(&["sanitize", "node-1"]);
    front.now(&server);
    watch.until("changed", "node/node-2", "evicted");
    watch.until("changed", "node/node-1", "sanitizing");
    server.cli(&["release", "no/node-1"]);
    watch.until("changed", "node/node-1", "unallocated");
    server.cli(&["delete", "node/node-1"]);
    watch.until("removed", "node/node-1", "unallocated");

    let changes = watch.changes();
    for node in ["node/node-1", "node/node-2", "node/node-3", "node/node-4"] {
        let of: Vec<_> = changes.iter().filter(|change| change.1 == node && change.0 != "removed").collect();
        assert!(of.is_sorted_by(|before, after| before.3 < after.3), "each version once, in order: {of:?}");
        assert_eq!(of.iter().filter(|change| change.0 == "added").count(), 1, "{of:?}");
    }
    assert_eq!(changes.len(), 9, "nothing else: {changes:?}");
    until("the node that is watched alone is printed too", || (lines.lines().len() == 3).then_some(()));
    let words: Vec<String> = lines
        .lines()
        .iter()
        .map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(words, ["CHANGE NAME STATE", "added node-2 allocated", "changed node-2 evicted"]);
}
