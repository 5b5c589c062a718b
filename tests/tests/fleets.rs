//! Several fleets in one server, and in one cluster of servers: each has its own journal, decider and
//! machines.

use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::kafka::shared;
use chancery_tests::{ServerProcess, StandbyServers, TestClient, payloads, until};
use serde_json::{Value, json};

fn names(client: &TestClient, kind: &str) -> Vec<String> {
    let text = |row: Value| row["name"].as_str().expect("a name").to_owned();
    client.items(&format!("{kind}?limit=100")).into_iter().map(text).collect()
}

fn capability(name: &str) -> Value {
    json!({"name": name, "spec": {"type": "T", "score": 1}})
}

#[test]
fn fleets_of_one_server_share_nothing_but_its_address() {
    let mut server = ServerProcess::start_with(&[("CHANCERY_FLEETS", "red, blue")]);
    let (red, blue) = (server.client().of("red"), server.client().of("blue"));
    for client in [&red, &blue] {
        set_up(client, &sleeper());
        deploy(client, "d1", 2);
        client.wait_for("web", "running", 2);
    }
    assert_eq!(payloads(server.data()).len(), 4, "each has processes of its own, under the same names");
    // The same key in two fleets identifies two intents.
    for (client, name) in [(&red, "r"), (&blue, "b")] {
        let answer = client.intent("same", "capability.apply", &capability(name));
        assert_eq!(answer.status, 201, "{}", answer.text);
        until("it is shown", || (names(client, "capabilities") == [name]).then_some(()));
    }
    let other = server.client().get("/v1/fleets/default/nodes");
    assert_eq!(other.status, 404);
    assert!(
        other.text.contains(r#"there is no fleet \"default\" on this server, only \"blue\", \"red\""#),
        "{}",
        other.text
    );
    assert!(server.cli(&["--fleet", "blue", "get", "capabilities"]).contains("b "));
    let figures = server.client().get("/metrics").text;
    for fleet in ["red", "blue"] {
        assert!(figures.contains(&format!("chancery_is_leader{{fleet=\"{fleet}\"}} 1")), "{figures}");
    }
    // After a kill and a restart, each fleet has the same state and the same processes.
    let before = payloads(server.data());
    server.kill();
    server.start_again();
    let (red, blue) = (server.client().of("red"), server.client().of("blue"));
    for client in [&red, &blue] {
        deploy(client, "d2", 1);
        client.wait_for("web", "running", 1);
    }
    until("one of each is left", || (payloads(server.data()).len() == 2).then_some(()));
    assert!(
        payloads(server.data()).iter().all(|payload| before.contains(payload)),
        "adopted, not started again"
    );
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    let data = server.data().to_str().expect("a path").to_owned();
    let checked = server.cli(&["verify", &data]);
    assert_eq!(checked.matches("the chain holds").count(), 2, "{checked}");
}

#[test]
fn fleets_of_one_cluster_of_servers_are_decided_each_by_one_of_them() {
    let settings =
        [("CHANCERY_FLEETS", "default=0,green=1"), ("CHANCERY_INBOX_ALLOWED_INTENTS", "capability.*")];
    let mut standbys = StandbyServers::start(shared(1), "two-fleets", 3, &settings);
    let decider =
        |standbys: &StandbyServers, fleet: &str| until("it is decided", || standbys.decides_for(fleet));
    decider(&standbys, "green");
    let ask = |standbys: &StandbyServers, fleet: &str, at: usize, name: &str| {
        standbys.servers[at].client().of(fleet).must("capability.apply", &capability(name));
    };
    for (fleet, name) in [("default", "d-1"), ("green", "g-1")] {
        for at in 0..3 {
            ask(&standbys, fleet, at, &format!("{name}{at}"));
        }
    }
    // The leader of one fleet, perhaps of both, dies.
    let gone = decider(&standbys, "green");
    standbys.servers[gone].kill();
    let other = (gone + 1) % 3;
    for (fleet, name) in [("default", "d-2"), ("green", "g-2")] {
        ask(&standbys, fleet, other, name);
        let now = decider(&standbys, fleet);
        assert_ne!(now, gone);
    }
    standbys.servers[gone].start_again();
    for at in 0..3 {
        for (fleet, first) in [("default", "d-"), ("green", "g-")] {
            let client = standbys.servers[at].client().of(fleet);
            let all = until("all are there", || {
                Some(names(&client, "capabilities")).filter(|names| names.len() == 4)
            });
            assert!(all.iter().all(|name| name.starts_with(first)), "{fleet}: {all:?}");
        }
    }
    for server in &mut standbys.servers {
        assert_eq!(server.stop(), Some(0), "{}", server.log());
    }
}
