//! Payload of the real program that answers, then hangs.

use chancery_tests::fault_campaigns::fleet::{deploy, set_up};
use chancery_tests::{ServerProcess, until};
use serde_json::{Value, json};

/// Script that answers; once its directory has a file `hang`, it accepts connections and sends nothing.
const HANGS: &str = "
import http.server, os, sys, time
print('run of', os.environ['CHANCERY_PLAN'], os.environ['CHANCERY_DEPLOYMENT'], os.environ['CHANCERY_DOMAIN'], flush=True)
print('to err', file=sys.stderr, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while os.path.exists('hang'): time.sleep(0.02)
        self.send_response(503 if os.path.exists('unready') and self.path == '/ready' else 200); self.end_headers()
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

fn payload() -> Value {
    let probe = |path: &str| {
        let timing = json!({"period": 100, "timeout": 300, "failure_threshold": 2});
        json!({"http": {"port": "http", "path": path, "timing": timing}})
    };
    json!({
        "name": "app", "resources": {"cpu": 1, "memory": 64 << 20},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "run": {"argv": ["python3", "-c", HANGS, "${port.http}"]},
        "ready": probe("/ready"), "alive": probe("/alive"),
    })
}

/// Working directory of the replica's incarnation.
fn work(server: &ServerProcess, replica: &Value) -> std::path::PathBuf {
    let id = replica["incarnation"].as_str().expect("it runs");
    until("the directory of the incarnation exists", || {
        walk(server.data(), id).map(|directory| directory.join("app-0/work")).filter(|work| work.is_dir())
    })
}

fn walk(directory: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(directory).ok()? {
        let path = entry.ok()?.path();
        if path.file_name().and_then(|file| file.to_str()) == Some(name) && path.join("spec.json").exists() {
            return Some(path);
        }
        if path.is_dir()
            && let Some(found) = walk(&path, name)
        {
            return Some(found);
        }
    }
    None
}

#[test]
fn an_unresponsive_incarnation_is_shown_ended_and_started_again_and_its_output_is_kept() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &payload());
    deploy(&client, "d1", 1);
    let first = client.wait_for("web", "running", 1)[0].clone();
    let name = first["name"].as_str().expect("a name").to_owned();
    let row = || client.read(&format!("replicas/{name}"));
    // Unready: the row has time and error, and nothing else happens.
    let directory = work(&server, &first);
    std::fs::write(directory.join("unready"), "").expect("written");
    let unready = until("it is seen unready", || Some(row()).filter(|row| row["unready_at"].is_string()));
    assert_eq!((&unready["phase"], &unready["ready"]), (&json!("running"), &json!(false)));
    let message = unready["message"].as_str().expect("a message");
    assert!(
        message.starts_with("not ready since ")
            && message.ends_with(": readiness probe of app-0: status 503"),
        "{message}"
    );
    std::fs::remove_file(directory.join("unready")).expect("removed");
    until("it is ready again", || {
        Some(row()).filter(|row| row["ready"] == true && row["unready_at"].is_null())
    });
    // The payload hangs.
    std::fs::write(directory.join("hang"), "").expect("written");
    let second = until("another incarnation of it is ready", || {
        Some(row()).filter(|row| row["incarnation"] != first["incarnation"] && row["ready"] == true)
    });
    assert_eq!(second["phase"], "running");
    let past = client.read(&format!("incarnations/{}", first["incarnation"].as_str().expect("an id")));
    assert_eq!(
        (&past["state"], &past["message"]),
        (&json!("failed"), &json!("liveness probe of app-0 failed: timeout"))
    );
    // Both outputs, marked; one output as it is; the previous incarnation.
    let logs = |args: &[&str]| {
        let output = server.run(&[&["logs", &name], args].concat());
        String::from_utf8(output.stdout).expect("text")
    };
    let expected_output = |replica: &Value| {
        let node = client.read(&format!("nodes/{}", replica["node"].as_str().expect("a node")));
        format!("run of web d1 {}\n", node["domain"].as_str().expect("a domain"))
    };
    let expected = expected_output(&second);
    until("its output is there", || (logs(&["--stderr"]) == "to err\n").then_some(()));
    assert_eq!(logs(&["--stdout"]), expected);
    let both = logs(&[]);
    assert!(both.contains(&format!("out | {expected}")) && both.contains("err | to err\n"), "{both}");
    assert_eq!(logs(&["--since", "1h"]), both);
    assert_eq!(logs(&["--since", "2999-01-01T00:00:00Z"]), "");
    until("the output of the previous incarnation is kept", || {
        (logs(&["--previous", "--stdout"]) == expected_output(&first)).then_some(())
    });
}

#[test]
fn a_ready_incarnation_continues_when_its_server_restarts_whatever_its_start_timeout() {
    let mut server = ServerProcess::start();
    let client = server.client();
    let mut payload = payload();
    payload["ready"]["http"]["timing"]["initial_delay"] = json!(3000);
    set_up(&client, &payload);
    let mut spec = client.read("plans/web")["spec"].clone();
    spec["unready"] = json!({"after": 500, "action": "restart"});
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
    deploy(&client, "d1", 1);
    let first = client.wait_for("web", "running", 1)[0].clone();
    server.stop();
    server.start_again();
    let client = server.client();
    let name = first["name"].as_str().expect("a name");
    let row = || client.read(&format!("replicas/{name}"));
    until("it is seen ready", || {
        Some(row()).filter(|row| row["ready"] == true && row["reachability"] == "known")
    });
    assert_eq!(row()["incarnation"], first["incarnation"]);
    // A failing payload still ends in time.
    std::fs::write(work(&server, &first).join("unready"), "").expect("written");
    until("another incarnation of it exists", || {
        Some(row()).filter(|row| row["incarnation"].is_string() && row["incarnation"] != first["incarnation"])
    });
}

#[test]
fn requests_for_logs_whose_clients_read_nothing_take_few_descriptors() {
    const READERS: usize = 10;
    let server = ServerProcess::start();
    let client = server.client();
    let many = json!({
        "name": "app", "resources": {"cpu": 1, "memory": 1 << 20}, "processes": 40,
        "run": {"argv": ["sh", "-c", "head -c 500000 /dev/zero | tr '\\0' '\\n'; head -c 500000 /dev/zero | tr '\\0' '\\n' >&2; exec sleep 3600"]},
    });
    set_up(&client, &many);
    deploy(&client, "d1", 1);
    let replica = client.wait_for("web", "running", 1)[0].clone();
    let id = replica["incarnation"].as_str().expect("it runs").to_owned();
    let directory = until("its directory exists", || walk(server.data(), &id));
    until("everything is written", || {
        let sizes = std::fs::read_dir(&directory).ok()?.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            (name.ends_with(".out.1") || name.ends_with(".err.1")).then(|| entry.metadata().ok())?
        });
        (sizes.filter(|found| found.len() == 500_000).count() == 80).then_some(())
    });
    let open = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs").count();
    let before = open();
    let address = server.url().trim_start_matches("http://").to_owned();
    let readers: Vec<std::net::TcpStream> = (0..READERS)
        .map(|_| {
            let mut reader = std::net::TcpStream::connect(&address).expect("connected");
            let request =
                format!("GET /v1/fleets/default/incarnations/{id}/logs HTTP/1.1\r\nHost: {address}\r\n\r\n");
            std::io::Write::write_all(&mut reader, request.as_bytes()).expect("sent");
            // The answer has started, and all buffers are full.
            let mut head = [0; 16];
            std::io::Read::read_exact(&mut reader, &mut head).expect("an answer");
            assert!(head.starts_with(b"HTTP/1.1 200"));
            reader
        })
        .collect();
    until("the answers wait for their readers", || (open() <= before + 3 * READERS).then_some(()));
    for _ in 0..20 {
        assert!(open() <= before + 3 * READERS, "{} descriptors, and {before} before", open());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(readers);
}
