//! Bad input on every route of the API's own description: the answer gives the location, and no other client
//! is slowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chancery_tests::{ServerProcess, TestClient};
use serde_json::{Value, json};

/// Methods and paths of the API, with a value in place of each parameter.
fn routes(client: &TestClient) -> Vec<(String, String)> {
    let description = client.get("/v1/openapi.json").json();
    let paths = description["paths"].as_object().expect("paths");
    let mut routes = Vec::new();
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys().filter(|key| *key != "parameters") {
            let mut filled = path.replace("{fleet}", "default");
            while let Some((before, rest)) = filled.split_once('{') {
                let (_, after) = rest.split_once('}').expect("a parameter ends");
                filled = format!("{before}x{after}");
            }
            routes.push((method.to_uppercase(), filled));
        }
    }
    assert!(routes.len() > 50, "the API has more routes than {}", routes.len());
    routes
}

fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let noise = std::iter::repeat_with(|| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()[3]
    });
    vec![
        ("nothing", Vec::new()),
        ("a mebibyte of random bytes", noise.take(1 << 20).collect()),
        ("more than is taken", vec![b' '; (1 << 20) + 1]),
        ("deep JSON", "[".repeat(100_000).into_bytes()),
        ("a deep value", format!("{}1{}", "{\"spec\":".repeat(500), "}".repeat(500)).into_bytes()),
        ("half of JSON", b"{\"spec\": {".to_vec()),
        ("a number", b"7".to_vec()),
        ("wrong types", json!({"spec": 7, "name": [], "state": {}, "operations": "x", "hash": 1, "reason": 2, "activity": 3}).to_string().into_bytes()),
        ("unknown fields", json!({"colour": "red"}).to_string().into_bytes()),
        ("bad text", b"{\"spec\": \"\xff\xfe\"}".to_vec()),
    ]
}

fn is_problem(answer: &chancery_tests::ServerAnswer, what: &str) {
    assert!((400..500).contains(&answer.status), "{what}: {} {}", answer.status, answer.text);
    assert_eq!(answer.content_type, "application/problem+json", "{what}: {}", answer.text);
    let problem = answer.json();
    for field in ["type", "title", "status", "code", "detail", "request_id"] {
        assert!(!problem[field].is_null(), "{what}: no {field} in {problem}");
    }
}

#[test]
fn bad_input_on_every_route_is_a_problem_that_names_the_location_and_slows_no_client() {
    let server = ServerProcess::start();
    let client = server.client();
    let stop = Arc::new(AtomicBool::new(false));
    let others = {
        let (client, stop) = (client.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                client.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": count}}));
                count += 1;
            }
            count
        })
    };
    let json = [("content-type", "application/json")];
    let routes = routes(&client);
    for (method, path) in &routes {
        let writes = matches!(method.as_str(), "POST" | "PUT");
        for (what, body) in bodies() {
            if writes {
                let answer = client.send(method, path, &json, &body);
                // Some of these inputs are valid for a route without a body.
                if answer.status / 100 != 2 {
                    is_problem(&answer, &format!("{method} {path} with {what}"));
                }
                let bodiless =
                    path.ends_with("/start") || path.ends_with("/stop") || path.ends_with("/cancel");
                assert!(
                    bodiless || answer.status / 100 == 4,
                    "{method} {path} with {what}: {} {}",
                    answer.status,
                    answer.text
                );
            }
        }
        let wrong = client.send("PATCH", path, &json, b"{}");
        is_problem(&wrong, &format!("PATCH {path}"));
        assert_eq!(wrong.status, 405, "PATCH {path}");
        if writes {
            let answer = client.send(method, path, &[("content-type", "text/html")], b"{}");
            assert!(
                answer.status == 415 || answer.status == 404,
                "{method} {path} as HTML: {}",
                answer.status
            );
        }
    }
    for path in [
        "/",
        "/v2",
        "/v1/fleets/default/pods",
        "/v1/fleets/other/nodes",
        "/v1/fleets/default/nodes/%ff%fe",
        "/v1/fleets/default/operations/x",
    ] {
        is_problem(&client.get(path), path);
    }
    for query in [
        "limit=0",
        "limit=x",
        "limit=100000",
        "page_token=!!",
        "min_position=x",
        "colour=red",
        "state=nosuch",
    ] {
        is_problem(&client.get(&format!("/v1/fleets/default/nodes?{query}")), query);
    }
    stop.store(true, Ordering::Relaxed);
    let answered = others.join().expect("every intent of the other client was accepted");
    assert!(answered > routes.len(), "the other client was answered {answered} times");
    assert_eq!(client.get("/livez").status, 200);
}

#[test]
fn a_wrong_field_is_named_with_its_location() {
    let server = ServerProcess::start();
    let client = server.client();
    let cases: [(&str, Value, &str); 3] = [
        (
            "/v1/fleets/default/nodes/n",
            json!({"spec": {"domain": "d", "resources": {"cpu": "four", "memory": 1}}}),
            "/spec/resources/cpu",
        ),
        (
            "/v1/fleets/default/nodes/n",
            json!({"spec": {"domain": "d", "resources": {"cpu": 1, "memory": 1}, "labls": {}}}),
            "/spec/labls",
        ),
        ("/v1/fleets/default/capabilities/c", json!({"spec": {"type": "T", "score": -1}}), "/spec/score"),
    ];
    for (path, body, pointer) in cases {
        let answer =
            client.send("PUT", path, &[("content-type", "application/json")], body.to_string().as_bytes());
        assert!((400..500).contains(&answer.status), "{}", answer.text);
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{}", answer.text);
    }
}
