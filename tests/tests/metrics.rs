//! Metrics of the real program: their reference, the checks of `promtool`, and the alert rules and dashboard that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use chancery_tests::fault_campaigns::fleet::{by_hand, deploy, set_up, sleeper};
use chancery_tests::{ExecutorProcess, ServerProcess, TestClient, until};
use serde_json::json;

const REFERENCE: &str = "../docs/metrics.md";
const ALERTS: &str = "../deploy/prometheus/alerts.yaml";
const ALERT_TESTS: &str = "../deploy/prometheus/alerts_test.yaml";
const DASHBOARD: &str = "../deploy/grafana/chancery.json";

/// Metric as a scrape or the reference describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct MetricDescription {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

/// Row of the reference: a metric, and the condition under which it exists if not always.
struct ReferenceRow {
    described: MetricDescription,
    condition: String,
}

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn text_of(relative: &str) -> String {
    std::fs::read_to_string(path(relative)).expect(relative)
}

/// Returns the metrics of a scrape in the text format of Prometheus.
fn metrics_of(scrape: &str) -> BTreeMap<String, MetricDescription> {
    let mut all: BTreeMap<String, MetricDescription> = BTreeMap::new();
    let mut helps = BTreeMap::new();
    for line in scrape.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            helps.insert(name.to_owned(), help.trim_end_matches('.').to_owned());
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            let help = helps.remove(name).unwrap_or_else(|| panic!("{name} has no HELP"));
            let described = MetricDescription { kind: kind.to_owned(), labels: BTreeSet::new(), help };
            assert!(all.insert(name.to_owned(), described).is_none(), "{name} is described twice");
        } else {
            let (name, labels) =
                line.split_once('{').unwrap_or_else(|| (line.split(' ').next().expect("a name"), ""));
            let of = all.keys().find(|of| family(name, of)).cloned();
            let of = of.unwrap_or_else(|| panic!("{name} has no TYPE"));
            let names = labels.split("=\"").filter_map(|part| part.rsplit(['"', ',', '{']).next());
            let names = names.filter(|name| !name.is_empty() && !name.contains(' ') && *name != "le");
            all.get_mut(&of).expect("a metric").labels.extend(names.map(str::to_owned));
        }
    }
    all
}

/// Whether a sample belongs to a metric.
fn family(sample: &str, metric: &str) -> bool {
    sample.strip_prefix(metric).is_some_and(|rest| matches!(rest, "" | "_bucket" | "_sum" | "_count"))
}

/// Returns the rows of the reference.
fn reference() -> BTreeMap<String, ReferenceRow> {
    let text = text_of(REFERENCE);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_end_matches(" |").split(" | ").map(str::trim).collect();
        let [name, kind, labels, help, condition] = cells[..] else { panic!("columns of {line}") };
        let labels = labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let described = MetricDescription { kind: kind.to_owned(), labels, help: help.to_owned() };
        let condition = condition.to_owned();
        (name.trim_end_matches('`').to_owned(), ReferenceRow { described, condition })
    };
    rows.map(row).collect()
}

/// Writes the rows of exported metrics into the reference, and keeps its other rows.
fn update(found: &BTreeMap<String, MetricDescription>) {
    let mut rows = reference();
    rows.retain(|name, row| found.contains_key(name) || !row.condition.is_empty());
    for (name, described) in found {
        let condition = rows.remove(name).map(|row| row.condition).unwrap_or_default();
        rows.insert(name.clone(), ReferenceRow { described: described.clone(), condition });
    }
    let text = text_of(REFERENCE);
    let head: Vec<_> = text.lines().take_while(|line| !line.starts_with("| `")).collect();
    let mut text = head.join("\n") + "\n";
    for (name, ReferenceRow { described: MetricDescription { kind, labels, help }, condition }) in rows {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(text, "| `{name}` | {kind} | {} | {help} | {condition} |", labels.join(", ")).expect("text");
    }
    std::fs::write(path(REFERENCE), text).expect("written");
}

/// Returns the path of promtool, which is fetched if necessary.
fn promtool() -> String {
    let output =
        Command::new(path("prometheus/install")).stderr(Stdio::inherit()).output().expect("a script");
    assert!(output.status.success(), "promtool is not available");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// Runs promtool, and returns its output. It must succeed.
fn check(args: &[&str], input: &str) -> String {
    let mut tool = Command::new(promtool());
    tool.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().expect("promtool");
    tool.stdin.take().expect("standard input").write_all(input.as_bytes()).expect("written");
    let output = tool.wait_with_output().expect("an end");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {args:?}: {printed}");
    printed.into_owned()
}

fn scrape(client: &TestClient) -> String {
    let answer = client.get("/metrics");
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.text
}

/// Returns the value of a series.
fn value(scrape: &str, series: &str) -> Option<f64> {
    scrape.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Returns a server with two running replicas and an executor in its own process.
fn running_fleet() -> ServerProcess {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    deploy(&client, "d1", 2);
    client.wait_for("web", "running", 2);
    server
}

#[test]
fn metrics_of_a_live_server_are_those_of_the_reference_and_pass_the_check_of_promtool() {
    let server = running_fleet();
    let client = server.client();
    // An intent over HTTP, so that its verdict is counted.
    client.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": 1}}));
    let text = until("the rows and the executor are counted", || {
        let text = scrape(&client);
        let ready = value(&text, "chancery_plan_replicas_ready{fleet=\"default\",plan=\"web\"}");
        let attached = text.contains("chancery_executor_attached{fleet=\"default\",cluster=\"local\"");
        (ready == Some(2.0) && attached && text.contains("chancery_intent_verdicts_total{")).then_some(text)
    });
    for (series, expected) in [
        ("chancery_plan_replicas_desired{fleet=\"default\",plan=\"web\"}", 2.0),
        ("chancery_replicas{fleet=\"default\",plan=\"web\",phase=\"running\"}", 2.0),
        ("chancery_plans{fleet=\"default\"}", 1.0),
        ("chancery_clusters{fleet=\"default\",session=\"open\"}", 1.0),
        ("chancery_cluster_has_session{fleet=\"default\",cluster=\"local\"}", 1.0),
        ("chancery_operations_pending_approval_oldest_age_seconds{fleet=\"default\"}", 0.0),
        ("chancery_is_leader{fleet=\"default\"}", 1.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series} in\n{text}");
    }
    for series in [
        "chancery_journal_bytes{fleet=\"default\"}",
        "chancery_executor_lease_seconds{fleet=\"default\",cluster=\"local\"}",
        "chancery_commit_duration_seconds_count{fleet=\"default\"}",
        "chancery_journal_sync_duration_seconds_count{fleet=\"default\"}",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
    ] {
        assert!(value(&text, series).is_some_and(|value| value > 0.0), "{series} in\n{text}");
    }
    assert_eq!(check(&["check", "metrics"], &text), "");
    let found = metrics_of(&text);
    if std::env::var_os("UPDATE").is_some() {
        update(&found);
    }
    let known = reference();
    for (name, described) in &found {
        let row = known.get(name).unwrap_or_else(|| panic!("{name} is not in {REFERENCE}"));
        assert_eq!(row.described, *described, "{name} in {REFERENCE}");
    }
    for (name, row) in &known {
        assert!(found.contains_key(name) || !row.condition.is_empty(), "{name} is not exported");
    }
}

#[test]
fn operations_that_wait_for_people_are_counted_with_the_age_of_the_oldest() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    by_hand(&client, &sleeper());
    client.must("deployment.create", &json!({"plan": "hand", "name": "d1", "spec": {"count": 3}}));
    let pending = "chancery_operations{fleet=\"default\",kind=\"create\",state=\"pending_approval\"}";
    let age = "chancery_operations_pending_approval_oldest_age_seconds{fleet=\"default\"}";
    until("they wait", || (value(&scrape(&client), pending) == Some(3.0)).then_some(()));
    until("the oldest has an age", || value(&scrape(&client), age).filter(|age| *age > 0.0));
    until("all run", || {
        client.approve_all();
        let text = scrape(&client);
        (value(&text, pending) == Some(0.0) && value(&text, age) == Some(0.0)).then_some(())
    });
}

#[test]
fn an_executor_exports_its_own_metrics_if_it_is_asked_to() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    set_up(&server.client(), &sleeper());
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let listen = format!("127.0.0.1:{port}");
    let executor = ExecutorProcess::start_with(&server, "e1", &["--process", "--metrics-listen", &listen]);
    let client = TestClient::new(&format!("http://{listen}"));
    let series = "{fleet=\"default\",cluster=\"local\",executor=\"e1\"}";
    // The port is closed until the executor listens.
    until("it is attached", || {
        std::net::TcpStream::connect(&listen).ok()?;
        let text = scrape(&client);
        (value(&text, &format!("chancery_executor_attached{series}")) == Some(1.0)).then_some(())
    });
    let text = scrape(&client);
    assert_eq!(value(&text, &format!("chancery_executor_connection_attempts_total{series}")), Some(1.0));
    assert!(
        value(&text, &format!("chancery_executor_own_lease_seconds{series}")).is_some_and(|left| left > 0.0)
    );
    assert!(text.contains("process_cpu_seconds_total ") && text.contains("chancery_build_info{"), "{text}");
    assert_eq!(check(&["check", "metrics"], &text), "");
    let known = reference();
    for name in metrics_of(&text).keys() {
        assert!(known.contains_key(name), "{name} is not in {REFERENCE}");
    }
    drop(executor);
}

#[test]
fn alert_rules_and_dashboard_use_only_metrics_of_the_reference() {
    let known = reference();
    let word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    for file in [ALERTS, ALERT_TESTS, DASHBOARD] {
        let text = text_of(file);
        let words = text.split(|letter| !word(letter));
        let used: BTreeSet<_> =
            words.filter(|word| word.starts_with("chancery_") || word.starts_with("process_")).collect();
        assert!(used.len() > 10, "{file}: {used:?}");
        for name in used {
            assert!(
                known.keys().any(|metric| family(name, metric)),
                "{name} of {file} is not in {REFERENCE}"
            );
        }
    }
}

#[test]
fn alert_rules_are_valid_are_tested_and_are_described() {
    check(&["check", "rules", path(ALERTS).to_str().expect("text")], "");
    check(
        &[
            "check",
            "config",
            "--syntax-only",
            path("../deploy/prometheus/prometheus.yaml").to_str().expect("text"),
        ],
        "",
    );
    check(&["test", "rules", path(ALERT_TESTS).to_str().expect("text")], "");
    let (rules, tests, page) = (text_of(ALERTS), text_of(ALERT_TESTS), text_of("../docs/operations.md"));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        assert!(tests.contains(&format!("- name: {alert}\n")), "{alert} has no test");
        assert!(page.contains(&format!("| `{alert}` |")), "{alert} is not in docs/operations.md");
    }
}

#[test]
fn the_dashboard_is_json_whose_panels_do_not_overlap() {
    let dashboard: serde_json::Value = serde_json::from_str(&text_of(DASHBOARD)).expect("JSON");
    let mut cells = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let of = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        for x in of("x")..of("x") + of("w") {
            for y in of("y")..of("y") + of("h") {
                assert!(x < 24 && cells.insert((x, y)), "{} at {x}, {y}", panel["title"]);
            }
        }
    }
}
