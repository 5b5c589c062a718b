//! A payload that hangs, with the real program: it answers, then it stops answering.

use chancery_tests::lanes::fleet::{deploy, set_up};
use chancery_tests::{Server, until};
use serde_json::{Value, json};

/// Answers; from when `hang` is in its folder it takes connections and says nothing.
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

/// The working folder of the replica's run.
fn work(server: &Server, replica: &Value) -> std::path::PathBuf {
    let id = replica["incarnation"].as_str().expect("it runs");
    until("the folder of the run is there", || {
        walk(server.data(), id).map(|folder| folder.join("app-0/work")).filter(|work| work.is_dir())
    })
}

fn walk(folder: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(folder).ok()? {
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
fn a_run_that_stops_answering_is_shown_ended_and_started_again_and_what_it_wrote_is_kept() {
    let server = Server::start();
    let client = server.client();
    set_up(&client, &payload());
    deploy(&client, "d1", 1);
    let first = client.wait_for("web", "running", 1)[0].clone();
    let name = first["name"].as_str().expect("a name").to_owned();
    let row = || client.read(&format!("replicas/{name}"));
    // Not ready: shown since when, with the error, and nothing is done.
    let folder = work(&server, &first);
    std::fs::write(folder.join("unready"), "").expect("written");
    let unready = until("it is seen unready", || Some(row()).filter(|row| row["unready_at"].is_string()));
    assert_eq!((&unready["phase"], &unready["ready"]), (&json!("running"), &json!(false)));
    let message = unready["message"].as_str().expect("a message");
    assert!(
        message.starts_with("not ready since ")
            && message.ends_with(": readiness probe of app-0: status 503"),
        "{message}"
    );
    std::fs::remove_file(folder.join("unready")).expect("removed");
    until("it is ready again", || {
        Some(row()).filter(|row| row["ready"] == true && row["unready_at"].is_null())
    });
    // It hangs.
    std::fs::write(folder.join("hang"), "").expect("written");
    let second = until("another run of it is ready", || {
        Some(row()).filter(|row| row["incarnation"] != first["incarnation"] && row["ready"] == true)
    });
    assert_eq!(second["phase"], "running");
    let past = client.read(&format!("incarnations/{}", first["incarnation"].as_str().expect("an id")));
    assert_eq!(
        (&past["state"], &past["message"]),
        (&json!("failed"), &json!("liveness probe of app-0 failed: timeout"))
    );
    // Both outputs, marked; one alone, as it is; the run before.
    let logs = |args: &[&str]| {
        let output = server.run(&[&["logs", &name], args].concat());
        String::from_utf8(output.stdout).expect("text")
    };
    let said_by = |replica: &Value| {
        let node = client.read(&format!("nodes/{}", replica["node"].as_str().expect("a node")));
        format!("run of web d1 {}\n", node["domain"].as_str().expect("a domain"))
    };
    let said = said_by(&second);
    until("its output is there", || (logs(&["--stderr"]) == "to err\n").then_some(()));
    assert_eq!(logs(&["--stdout"]), said);
    let both = logs(&[]);
    assert!(both.contains(&format!("out | {said}")) && both.contains("err | to err\n"), "{both}");
    assert_eq!(logs(&["--since", "1h"]), both);
    assert_eq!(logs(&["--since", "2999-01-01T00:00:00Z"]), "");
    until("the output of the run before is kept", || {
        (logs(&["--previous", "--stdout"]) == said_by(&first)).then_some(())
    });
}
