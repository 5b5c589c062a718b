//! Consoles of guests of the real QEMU, with the real program as the client.
//!
//! | case | test |
//! |---|---|
//! | input, output, logs, journal, the escape key | `what_is_typed_reaches_the_guest_and_its_answer_is_shown_and_kept` |
//! | a terminal | `a_terminal_is_raw_while_it_is_attached_and_as_before_afterwards` |
//! | two writers, readers, a client that is killed, one that reads nothing | `one_client_writes_and_no_other_delays_it_or_keeps_its_place` |
//! | a reset and the end of the guest, the end of the server and of the supervisor | `a_console_outlives_a_reset_and_ends_with_its_guest` |
//! | an executor outside the server, one that does not answer, one that is killed | `consoles_of_a_remote_executor_are_reached_through_its_server` |
//! | the probe `serial`, after a reset, and for another executor | `a_guest_is_ready_once_it_has_written_the_awaited_line` |
//! | what has no console | `a_console_is_opened_for_one_attachment_of_its_actor` |

use std::io::{Read, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use chancery_tests::qemu::build_guest;
use chancery_tests::{ExecutorProcess, ServerProcess, StartConditions, TestClient, payloads, program, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const MIB: u64 = 1 << 20;

/// Client that is attached to a console, or was refused.
struct AttachedConsole {
    child: Child,
    input: Option<ChildStdin>,
    shown: Arc<Mutex<String>>,
    notes: Arc<Mutex<String>>,
}

/// Collects what a stream contains.
fn collect(mut stream: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let collected = Arc::clone(&text);
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            let mut text = collected.lock().unwrap_or_else(PoisonError::into_inner);
            text.push_str(&String::from_utf8_lossy(&chunk[..count]));
        }
    });
    text
}

impl AttachedConsole {
    fn begin(server: &ServerProcess, replica: &str, flags: &[&str]) -> AttachedConsole {
        let mut child = Command::new(program())
            .args(["console", replica])
            .args(flags)
            .env("CHANCERY_SERVER", server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let shown = collect(child.stdout.take().expect("a pipe"));
        let notes = collect(child.stderr.take().expect("a pipe"));
        AttachedConsole { input: child.stdin.take(), child, shown, notes }
    }

    /// Attaches, once that is possible.
    fn attach(server: &ServerProcess, replica: &str, flags: &[&str]) -> AttachedConsole {
        until(&format!("a client attaches to {replica} with {flags:?}"), || {
            let mut console = AttachedConsole::begin(server, replica, flags);
            until("it is attached or refused", || {
                let ended = console.child.try_wait().expect("a child").is_some();
                (ended || console.notes().starts_with("attached to ")).then_some(())
            });
            console.notes().starts_with("attached to ").then_some(console)
        })
    }

    fn notes(&self) -> String {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn shows(&self, text: &str) {
        until(&format!("{text:?} is shown"), || self.shown().contains(text).then_some(()));
    }

    fn enter(&mut self, text: &str) {
        let input = self.input.as_mut().expect("a pipe");
        input.write_all(text.as_bytes()).expect("typed");
    }

    /// Waits for the end of the client; returns whether it succeeded, and its messages.
    fn end(mut self) -> (bool, String) {
        let status = until("the client ends", || self.child.try_wait().expect("a child"));
        // Its output ends with it.
        until("its messages are read", || (Arc::strong_count(&self.notes) == 1).then_some(()));
        (status.success(), self.notes())
    }
}

impl Drop for AttachedConsole {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a server whose cluster `local` runs virtual machines on one node. Its executor is in the server, or elsewhere.
fn machines(embedded: &str) -> ServerProcess {
    let mut server = ServerProcess::new();
    let images = server.directory().join("images");
    std::fs::create_dir(&images).expect("a directory");
    build_guest(&images);
    server.set("CHANCERY_QEMU_IMAGES", &images.display().to_string());
    server.set("CHANCERY_LOG_FILTER", "info");
    server.set("CHANCERY_EMBEDDED_EXECUTORS", embedded);
    // Attachments end with the session, which must outlast an executor that is stopped for as long as two answers may take.
    server.set("CHANCERY_SESSION_LEASE", "1m");
    server.start_again();
    server.stay_at_this_address();
    let client = server.client();
    client.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "qemu"}}));
    let total = json!({"cpu": 8000, "memory": 16_384 * MIB, "disk": 0});
    let spec = json!({"domain": "a", "resources": total});
    client.must("node.apply", &json!({"name": "node-1", "cluster": "local", "spec": spec}));
    server
}

/// Deploys one replica, and returns its name once it runs.
fn deploy(client: &TestClient) -> String {
    // The firmware and the start of the port discard what was typed before.
    begin(client, &json!({"serial": {"line": "READY"}}));
    client.wait_for("web", "running", 1)[0]["name"].as_str().expect("a name").to_owned()
}

/// Deploys one replica with this readiness probe.
fn begin(client: &TestClient, ready: &serde_json::Value) {
    let automatic = json!({
        "create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
        "start": "automatic", "stop": "automatic", "delete": "automatic", "reboot": "automatic",
    });
    let payload = json!({
        "name": "app", "resources": {"cpu": 100, "memory": 112 * MIB}, "vm": {"kernel": "guest"}, "ready": ready,
    });
    let spec = json!({
        "namespace": "tests", "service": "web", "payloads": [payload], "approval": automatic, "restart": "never",
        "timeouts": {"stop": 1500},
    });
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
    client.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
}

/// Returns the text of each file of the journal.
fn journal(server: &ServerProcess) -> String {
    let files = std::fs::read_dir(server.data().join("fleets/default/journal")).expect("a journal");
    let bytes = files.map(|file| std::fs::read(file.expect("a file").path()).expect("a file"));
    bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

#[test]
fn what_is_typed_reaches_the_guest_and_its_answer_is_shown_and_kept() {
    let server = machines("all");
    let client = server.client();
    let replica = deploy(&client);
    let mut console = AttachedConsole::attach(&server, &replica, &["--actor", "ann"]);
    assert_eq!(console.notes(), format!("attached to replica/{replica}; escape: Ctrl-]\n"));
    console.enter("open sesame\r");
    console.shows("heard open sesame\r\n");
    assert!(!console.shown().contains("READY"), "earlier output is not repeated: {}", console.shown());
    console.enter("one\rtwo\r\x1dthree\r");
    let (is_success, notes) = console.end();
    assert!(is_success && notes.ends_with("detached: by the escape key\n"), "{notes}");
    let kept = until("the output is kept", || {
        let text = server.cli(&["logs", &replica, "--stdout"]);
        text.contains("heard two").then_some(text)
    });
    for (text, count) in
        [("heard open sesame\r\n", 1), ("heard one\r\n", 1), ("heard two\r\n", 1), ("three", 0)]
    {
        assert_eq!(kept.matches(text).count(), count, "{text:?} in {kept}");
    }
    let history = server.cli(&["history", &format!("replica/{replica}"), "-o", "jsonl"]);
    let opened = history.lines().find(|line| line.contains("console.opened")).expect("an event");
    assert!(opened.contains("\"ann\"") && opened.contains("read_write"), "{opened}");
    let journal = journal(&server);
    assert!(journal.contains("console.opened.v1") && !journal.contains("sesame"));
    let log = server.log();
    assert!(log.contains("console attached") && !log.contains("sesame"), "{log}");
}

#[test]
fn a_terminal_is_raw_while_it_is_attached_and_as_before_afterwards() {
    let server = machines("all");
    let replica = deploy(&server.client());
    let commands =
        format!("stty -a; '{}' console {replica}; echo status $?; stty -a; echo end", program().display());
    // A terminal of its own for these commands.
    let mut child = Command::new("script")
        .args(["--quiet", "--flush", "--command", &commands, "/dev/null"])
        .env("CHANCERY_SERVER", server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script of util-linux");
    let text = collect(child.stdout.take().expect("a pipe"));
    let shown = || text.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let await_text = |wanted: &str| {
        until(&format!("{wanted:?} is shown"), || shown().contains(wanted).then_some(()));
    };
    let mut input = child.stdin.take().expect("a pipe");
    await_text("attached to ");
    // Ctrl-C and Ctrl-Z reach the guest: the terminal makes no signals of them, and echoes nothing.
    input.write_all(b"a\x03b\x1ac\r").expect("typed");
    await_text("heard a\x03b\x1ac\r\n");
    input.write_all(b"\x1d").expect("typed");
    await_text("status 0");
    await_text("end\r\n");
    let shown = shown();
    child.wait().expect("a child");
    let settings: Vec<_> = shown.lines().filter(|line| line.contains("icanon")).collect();
    let others: Vec<_> = shown.lines().filter(|line| line.contains("echo ")).collect();
    for found in [settings, others] {
        assert!(found.len() == 2 && found[0] == found[1], "{found:?} in {shown}");
        assert!(!found[0].contains("-icanon") && !found[0].contains("-echo "), "{found:?}");
    }
    assert_eq!(shown.matches("a\x03b").count(), 1, "what is typed is echoed by the guest alone: {shown}");
}

#[test]
fn one_client_writes_and_no_other_delays_it_or_keeps_its_place() {
    let server = machines("all");
    let client = server.client();
    let replica = deploy(&client);
    let mut first = AttachedConsole::attach(&server, &replica, &["--actor", "ann"]);
    let (is_success, notes) = AttachedConsole::begin(&server, &replica, &[]).end();
    assert!(!is_success && notes.contains("ann writes to the console"), "{notes}");
    let mut reader = AttachedConsole::attach(&server, &replica, &["--read-only"]);
    // A client that reads nothing, and never will.
    let slow = AttachedConsole::attach(&server, &replica, &["--read-only"]);
    let slow_pid = Pid::from_raw(i32::try_from(slow.child.id()).expect("a pid")).expect("a pid");
    kill_process(slow_pid, Signal::STOP).expect("a signal");
    reader.enter("not for the guest\r");
    first.enter("hello\r");
    first.shows("heard hello");
    reader.shows("heard hello");
    assert!(!first.shown().contains("not for"), "{}", first.shown());
    // Killed: the place is free for the next.
    first.child.kill().expect("a signal");
    let mut next = AttachedConsole::attach(&server, &replica, &[]);
    next.enter("again\r");
    next.shows("heard again");
    reader.shows("heard again");
}

#[test]
fn a_console_outlives_a_reset_and_ends_with_its_guest() {
    let mut server = machines("all");
    let replica = deploy(&server.client());
    let mut console = AttachedConsole::attach(&server, &replica, &[]);
    console.enter("!r\r");
    console.shows("READY");
    console.enter("later\r");
    console.shows("heard later");
    // Without server there is no console; the next server has no attachment of the last one.
    server.kill();
    let (is_success, notes) = console.end();
    assert!(!is_success && notes.contains("connection lost"), "{notes}");
    let qemu = payloads(server.data()).pop().expect("it runs");
    let supervisor = std::fs::read_to_string(format!("/proc/{}/stat", qemu.pid)).expect("a process");
    let supervisor = supervisor.rsplit_once(") ").expect("a state").1.split(' ').nth(1).expect("a parent");
    let supervisor = Pid::from_raw(supervisor.parse().expect("a pid")).expect("a pid");
    kill_process(supervisor, Signal::KILL).expect("a signal");
    server.start_again();
    server.client().wait_for("web", "running", 1);
    let mut console = AttachedConsole::attach(&server, &replica, &[]);
    console.enter("anybody\r");
    console.shows("heard anybody");
    console.enter("!o\r");
    console.shows("power off");
    let (is_success, notes) = console.end();
    assert!(is_success && notes.ends_with("detached: the guest has ended\n"), "{notes}");
}

#[test]
fn consoles_of_a_remote_executor_are_reached_through_its_server() {
    let server = machines("none");
    let mut executor = ExecutorProcess::start(&server, "e1", "--qemu");
    executor.kill();
    let images = server.directory().join("images").display().to_string();
    let env = vec![("CHANCERY_QEMU_IMAGES".to_owned(), images)];
    executor.set_launch(StartConditions { env, ..StartConditions::default() });
    executor.start_again();
    let client = server.client();
    let replica = deploy(&client);
    let mut console = AttachedConsole::attach(&server, &replica, &[]);
    console.enter("from afar\r");
    console.shows("heard from afar\r\n");
    let reader = AttachedConsole::attach(&server, &replica, &["--read-only"]);
    executor.freeze();
    console.enter("lost\r");
    let (is_success, notes) = console.end();
    assert!(!is_success && notes.contains("did not answer"), "{notes}");
    let (is_success, notes) = AttachedConsole::begin(&server, &replica, &[]).end();
    assert!(!is_success && notes.contains("the executor of cluster local did not answer"), "{notes}");
    executor.thaw();
    let mut console = AttachedConsole::attach(&server, &replica, &[]);
    console.enter("and back\r");
    console.shows("heard and back");
    reader.shows("heard and back");
    executor.kill();
    let (is_success, notes) = console.end();
    assert!(!is_success && notes.contains("the connection to the executor was lost"), "{notes}");
    executor.start_again();
    let mut console = AttachedConsole::attach(&server, &replica, &[]);
    console.enter("third\r");
    console.shows("heard third");
}

#[test]
fn a_console_is_opened_for_one_attachment_of_its_actor() {
    let server = machines("all");
    let client = server.client();
    let replica = deploy(&client);
    let attach = |position: u64, actor: &str| {
        let path = format!("/v1/fleets/default/consoles/{position}/attach");
        client
            .send("POST", &path, &[("chancery-actor", actor), ("content-type", "application/x-ndjson")], b"")
            .json()["detail"]
            .to_string()
    };
    // The test's client is ann. The position before that of the verdict is that of the intent.
    let opened = client.must("console.open", &json!({"name": replica, "payload": "other"}));
    assert!(attach(opened, "bob").contains("bob has not opened the console"));
    assert!(attach(opened - 1, "ann").contains("opens no console"));
    assert!(attach(opened, "ann").contains("the payload must be one of app"));
    assert!(attach(opened, "ann").contains("open it again"));
    client.must("replica.stop", &json!({"name": replica}));
    client.wait_for("web", "stopped", 1);
    let stopped = client.intent("after-stop", "console.open", &json!({"name": replica}));
    assert!(stopped.json()["detail"].to_string().contains("no incarnation that runs"), "{}", stopped.json());
}

#[test]
fn a_guest_is_ready_once_it_has_written_the_awaited_line() {
    let mut server = machines("all");
    let client = server.client();
    begin(&client, &json!({"serial": {"line": "heard up and"}}));
    let replica = client.wait_for("web", "starting", 1)[0]["name"].as_str().expect("a name").to_owned();
    let phase = |server: &ServerProcess, phase: &str| {
        until(&format!("the replica is {phase}"), || {
            let row = server.client().read(&format!("replicas/{replica}"));
            (row["phase"] == phase).then_some(())
        });
    };
    let mut console = AttachedConsole::attach(&server, &replica, &[]);
    // The guest runs, and is not ready.
    console.shows("beat ");
    phase(&server, "starting");
    console.enter("up and running\r");
    phase(&server, "running");
    // It is ready for the next executor too, without writing the line again.
    server.kill();
    drop(console);
    server.start_again();
    phase(&server, "running");
    let mut console = AttachedConsole::attach(&server, &replica, &[]);
    console.enter("!r\r");
    console.shows("READY");
    phase(&server, "rebooting");
    console.enter("up and running\r");
    phase(&server, "running");
}
