//! Brokers that require TLS and a login.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use chancery_tests::kafka::KafkaCluster;
use chancery_tests::{ServerProcess, program};
use serde_json::json;

/// Settings that reach the brokers correctly.
fn settings(ca: &Path, password: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("CHANCERY_KAFKA_ALLOW_UNSAFE_TOPICS", "yes".into()),
        ("CHANCERY_KAFKA_TLS", "yes".into()),
        ("CHANCERY_KAFKA_CA_FILE", ca.display().to_string()),
        ("CHANCERY_KAFKA_USERNAME", "chancery".into()),
        ("CHANCERY_KAFKA_PASSWORD_FILE", password.display().to_string()),
    ]
}

fn run(args: &[&str], journal: &str, settings: &[(&'static str, String)]) -> Output {
    let mut run = Command::new(program());
    run.args(args).args(["--journal", journal]).envs(settings.iter().map(|(name, value)| (name, value)));
    run.output().expect("the program runs")
}

#[test]
fn a_server_reaches_brokers_by_tls_and_scram_and_believes_no_other_certificate_or_password() {
    let cluster = KafkaCluster::start_secure();
    let (brokers, ca) = cluster.secure();
    let journal = format!("kafka://{brokers}/secure");
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| -> PathBuf {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let password = write("password", "secret\n");
    let good = settings(&ca, &password);
    let made = run(&["init-topics", "--replication-factor", "1"], &journal, &good);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let mut server = ServerProcess::new();
    for (name, value) in &good {
        server.set(name, value);
    }
    server.set("CHANCERY_JOURNAL", &journal);
    server.set("CHANCERY_EMBEDDED_EXECUTORS", "none");
    server.start_again();
    let fact = json!({"name": "a", "spec": {"type": "T", "score": 1}});
    assert_eq!(server.client().decided("a", "capability.apply", &fact).status, 201);
    let shown = server.cli(&["events", "-o", "jsonl"]);
    assert!(shown.contains("dev.chancery.capability.applied.v1"), "{shown}");
    assert!(!server.log().contains("secret"), "no password is in the log");

    // This authority did not sign the broker's certificate.
    let other = KafkaCluster::start_secure();
    let wrong_authority = settings(&other.secure().1, &password);
    let wrong_password = settings(&ca, &write("wrong", "guessed\n"));
    let asked = |settings: &[(&'static str, String)]| {
        let output = run(&["doctor"], &journal, settings);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout).contains("secure.journal: "), text(&output.stderr))
    };
    let (is_reported, why) = asked(&good);
    assert!(is_reported, "{why}");
    for (wrong, what) in [(wrong_authority, "another authority"), (wrong_password, "another password")] {
        let (is_reported, why) = asked(&wrong);
        assert!(!is_reported && why.contains("BrokerTransportFailure"), "{what}: {why}");
    }
    // Contradictory settings, and a missing file.
    let mut alone = good.clone();
    alone.retain(|(name, _)| *name != "CHANCERY_KAFKA_PASSWORD_FILE");
    let refused = run(&["doctor"], &journal, &alone);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("invalid kafka.username: requires kafka.password_file"), "{error}");
    let mut undone = good.clone();
    undone.push(("CHANCERY_KAFKA_CLIENT_PROPERTIES", "enable.ssl.certificate.verification=false".into()));
    let (is_reported, why) = asked(&undone);
    assert!(
        !is_reported
            && why.contains(
                "invalid kafka.client_properties: must not set enable.ssl.certificate.verification"
            ),
        "{why}"
    );
    let refused = run(&["doctor"], &journal, &settings(&ca, &directory.path().join("none")));
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("read kafka.password_file"), "{error}");
}
