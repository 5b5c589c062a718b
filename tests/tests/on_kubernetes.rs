//! Replicas as pods of a real Kubernetes API.

use std::collections::BTreeSet;
use std::path::Path;

use chancery_tests::fault_campaigns::CampaignKind;
use chancery_tests::kubernetes::{KubernetesApi, exclusive, shared};
use chancery_tests::{JournalBackend, PodFleet, ServerProcess, TestClient, uids, until};
use serde_json::{Value, json};

/// Starts a fleet in this API. Its pods have a namespace of their own: its records are in another one.
fn fleet<'a>(api: &'a KubernetesApi, name: &'static str) -> PodFleet<'a> {
    let fleet = PodFleet::start_in(api, name, "all");
    api.namespace(&demo(name));
    fleet
}

/// Namespace of the pods of a fleet.
fn demo(fleet: &str) -> String {
    format!("{fleet}-demo")
}

fn plan(fleet: &PodFleet<'_>, more: &Value) {
    let mut payload = json!({
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "container": {"image": "registry.test/web:${version}", "args": ["--port", "${port.http}"]},
    });
    payload.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    fleet.plan(json!({"namespace": demo(fleet.name), "labels": {"team": "shop"}}), payload);
}

/// Applies a plan of pods alone, whose creations are approved by rule.
fn plan_of_pods(fleet: &PodFleet<'_>, name: &str, labels: &Value) {
    let spec = json!({
        "namespace": demo(fleet.name), "service": name, "labels": labels, "approval": {"create": "automatic"},
        "payloads": [{"name": "web", "resources": {"cpu": 1, "memory": 1 << 20}, "container": {"image": "registry.test/none:1"}}],
    });
    fleet.client().must("plan.apply", &json!({"name": name, "spec": spec}));
    let deployment = json!({"plan": name, "name": "d1", "spec": {"count": 1}});
    fleet.client().must("deployment.create", &deployment);
}

fn deploy(client: &TestClient, name: &str, version: &str, count: u32) {
    let spec = json!({"count": count, "coordinates": {"web": {"version": version}}});
    client.must("deployment.create", &json!({"plan": "web", "name": name, "spec": spec}));
}

/// Returns the pods of a plan, whichever labels another party has changed.
fn pods(fleet: &PodFleet<'_>, plan: &str) -> Vec<Value> {
    fleet.api.list(&format!("namespaces/{}/pods", demo(fleet.name)), &format!("chancery.dev/plan={plan}"))
}

#[test]
fn a_plan_runs_as_pods_of_kubernetes_from_deployment_to_deletion() {
    let fleet = fleet(shared(), "lifecycle");
    fleet.api.node("lifecycle-2");
    fleet.apply_node("lifecycle-2");
    let client = fleet.client();
    plan(&fleet, &json!({}));
    deploy(&client, "d1", "1", 2);
    let replicas = client.wait_for("web", "running", 2);
    let all = pods(&fleet, "web");
    assert_eq!(all.len(), 2);
    let nodes: BTreeSet<_> =
        all.iter().map(|pod| pod["spec"]["nodeName"].as_str().expect("a node")).collect();
    assert_eq!(nodes, BTreeSet::from(["lifecycle", "lifecycle-2"]));
    for pod in &all {
        assert_eq!(pod["metadata"]["labels"]["team"], "shop");
        let container = &pod["spec"]["containers"][0];
        assert_eq!(
            (&container["image"], &container["args"]),
            (&json!("registry.test/web:1"), &json!(["--port", "80"]))
        );
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        let replica = pod["metadata"]["labels"]["chancery.dev/replica"].as_str().expect("a label");
        assert!(replicas.iter().any(|row| row["name"] == replica), "{replica}");
    }
    // Another version: another incarnation, and so another pod.
    deploy(&client, "d2", "2", 3);
    until("all three run the new version", || {
        let all = pods(&fleet, "web");
        let new =
            all.iter().filter(|pod| pod["spec"]["containers"][0]["image"] == "registry.test/web:2").count();
        (new == 3 && all.len() == 3).then_some(())
    });
    let rows = client.wait_for("web", "running", 3);
    let name = rows[0]["name"].as_str().expect("a name").to_owned();
    client.must("replica.stop", &json!({"name": name}));
    client.wait_for("web", "stopped", 1);
    until("its pod is deleted", || (pods(&fleet, "web").len() == 2).then_some(()));
    client.must("replica.start", &json!({"name": name}));
    client.wait_for("web", "running", 3);
    // A container that ends without a request is started again, as another incarnation.
    let before = uids(&pods(&fleet, "web"));
    fleet.api.label(&pods(&fleet, "web")[0], &json!({"chancery.tests/failure": "oom"}));
    until("another pod runs in its place", || {
        let now = uids(&pods(&fleet, "web"));
        (now.len() == 3 && now.intersection(&before).count() == 2).then_some(())
    });
    client.wait_for("web", "running", 3);
    // A pod whose labels another party changes is still the pod of its replica, and ends with it.
    let before = pods(&fleet, "web");
    fleet.api.label(&before[0], &json!({"chancery.dev/cluster": null}));
    client.must("replica.stop", &json!({"name": before[0]["metadata"]["labels"]["chancery.dev/replica"]}));
    until("the pod is deleted", || {
        let now = uids(&pods(&fleet, "web"));
        (now.len() == 2 && now.is_disjoint(&uids(&before[..1]))).then_some(())
    });
    client.wait_for("web", "stopped", 1);
    client.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    until("the plan is gone", || client.items("plans").is_empty().then_some(()));
    assert!(pods(&fleet, "web").is_empty());
    until("all config maps of objects are purged", || {
        fleet.api.list("namespaces/lifecycle/configmaps", "chancery.dev/incarnation").is_empty().then_some(())
    });
    assert!(fleet.server.is_up());
}

#[test]
fn pods_outlive_the_server_and_the_api_of_kubernetes() {
    let api = exclusive();
    let mut fleet = fleet(&api, "outlives");
    plan(&fleet, &json!({}));
    deploy(&fleet.client(), "d1", "1", 2);
    fleet.client().wait_for("web", "running", 2);
    let before = uids(&pods(&fleet, "web"));
    // The server dies, and an executor of a later epoch takes over.
    fleet.server.kill();
    fleet.server.start_again();
    deploy(&fleet.client(), "d2", "1", 3);
    fleet.client().wait_for("web", "running", 3);
    let after = uids(&pods(&fleet, "web"));
    assert!(after.is_superset(&before) && after.len() == 3, "{before:?} {after:?}");
    // The API is away while a replica is requested: nothing is lost, and nothing has failed.
    api.component("kill", "kube-apiserver");
    deploy(&fleet.client(), "d3", "1", 4);
    api.component("restart", "kube-apiserver");
    fleet.client().wait_for("web", "running", 4);
    let last = uids(&pods(&fleet, "web"));
    assert!(last.is_superset(&after) && last.len() == 4, "{after:?} {last:?}");
    let failed = fleet.client().items("operations?state=failed");
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn an_image_that_kubernetes_cannot_pull_is_a_reason_of_the_replica() {
    let fleet = fleet(shared(), "images");
    let client = fleet.client();
    plan(&fleet, &json!({}));
    plan_of_pods(&fleet, "bad", &json!({"chancery.tests/failure": "image-pull"}));
    let waiting = until("the reason is shown", || {
        let rows = client.items("incarnations?plan=bad");
        let status = rows.first()?["processes"].get(0)?["status"]["waiting"].clone();
        status.is_object().then_some(status)
    });
    assert_eq!(waiting["reason"], "ImagePullBackOff");
    fleet.api.label(&pods(&fleet, "bad")[0], &json!({"chancery.tests/failure": null}));
    client.wait_for("bad", "running", 1);
}

/// Applies a file of `deploy/kubernetes` for the cluster and namespace `role`.
fn apply_deployed(api: &KubernetesApi, name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes").join(name);
    let mut text = std::fs::read_to_string(file).expect("a file");
    for (shown, own) in [
        ("chancery-system", "role"),
        ("chancery-default-pods", "chancery-default-role"),
        ("chancery.dev/cluster: pods", "chancery.dev/cluster: role"),
    ] {
        text = text.replace(shown, own);
    }
    let file = api.directory().join(name);
    std::fs::write(&file, text).expect("written");
    api.kubectl(&["apply", "-f", file.to_str().expect("text")]);
}

#[test]
fn the_documented_role_suffices_and_doctor_names_what_is_missing() {
    let api = shared();
    PodFleet::prepare(api, "role");
    api.namespace(&demo("role"));
    // The same credentials as an executor that runs as a pod.
    api.kubectl(&["create", "serviceaccount", "chancery-executor", "-n", "role"]);
    let token = api.kubectl(&["create", "token", "chancery-executor", "-n", "role"]);
    let direct = std::fs::read_to_string(api.kubeconfig()).expect("a file");
    let user = direct.rfind("  user: {token: ").expect("a user");
    let kubeconfig = api.directory().join("executor");
    std::fs::write(&kubeconfig, format!("{}  user: {{token: {}}}\n", &direct[..user], token.trim()))
        .expect("written");
    let mut server = ServerProcess::new();
    server.set("KUBECONFIG", kubeconfig.to_str().expect("text"));
    server.start_again();
    let doctor = |server: &ServerProcess| {
        let kubeconfig = kubeconfig.to_str().expect("text");
        let data = server.data().to_str().expect("text");
        let cluster = ["--cluster", "role", "--namespace", "role", "--kubeconfig", kubeconfig];
        let output = server.run(&[&["doctor", "--fix", "--data-dir", data], &cluster[..]].concat());
        (String::from_utf8(output.stdout).expect("text"), output.status.code())
    };
    let (text, code) = doctor(&server);
    assert_eq!(code, Some(1), "{text}");
    for right in [
        "watch pods,",
        "create persistentvolumeclaims,",
        "get storageclasses,",
        "update configmaps in namespace role,",
    ] {
        assert!(text.contains(right), "{text}");
    }
    assert!(text.contains("cannot find out whether the API refuses"), "{text}");

    apply_deployed(api, "executor.yaml");
    // Here, the server is the executor.
    api.kubectl(&["delete", "deployment", "chancery-executor", "-n", "role"]);
    let mut fleet = PodFleet::of(api, server, "role");
    let client = fleet.client();
    plan(&fleet, &json!({}));
    deploy(&client, "d1", "1", 1);
    client.wait_for("web", "running", 1);
    let (text, code) = doctor(&fleet.server);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cluster role: an executor with these credentials has every right"), "{text}");
    assert!(text.contains("the API admits requests of an executor that was replaced"), "{text}");

    apply_deployed(api, "epoch-policy.yaml");
    until("the policy has an effect", || {
        let (text, code) = doctor(&fleet.server);
        (code == Some(0) && text.contains("the API refuses requests of an executor that was replaced"))
            .then_some(())
    });
    deploy(&client, "d2", "2", 2);
    client.wait_for("web", "running", 2);
    client.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    until("the plan is gone", || client.items("plans").is_empty().then_some(()));
    assert!(pods(&fleet, "web").is_empty());
    assert_eq!(fleet.server.stop(), Some(0));
}

#[test]
fn discovered_nodes_can_be_applied_as_they_are_printed() {
    // Nodes of other tests would be discovered too.
    let api = exclusive();
    api.node("node-a");
    for namespace in ["pods", &demo("pods")] {
        api.namespace(namespace);
    }
    let options = ["--cpu", "3920m", "--memory", "16393244Ki", "--zone", "east", "--label", "disk=fast"];
    api.node_with("node-b", &options);
    api.kubectl(&["cordon", "node-b"]);
    let name = "n".repeat(64);
    api.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}));
    for (name, node, cpu) in [("one", "node-b", "250m"), ("two", "node-b", "1"), ("three", "node-a", "500m")]
    {
        api.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": demo("pods")},
            "spec": {"nodeName": node, "containers": [{
                "name": "c", "image": "registry.test/other:1", "resources": {"requests": {"cpu": cpu, "memory": "1Mi"}},
            }]},
        }));
    }
    let kubeconfig = api.kubeconfig().to_str().expect("text").to_owned();
    let server = ServerProcess::start_with(&[("KUBECONFIG", &kubeconfig)]);
    let client = server.client();
    let spec = json!({"runtime": "kubernetes", "kubernetes": {"namespace": "pods"}});
    client.must("cluster.apply", &json!({"name": "pods", "spec": spec}));
    let discover = ["discover", "nodes", "--cluster", "pods", "--kubeconfig", &kubeconfig];
    let found = server.run(&discover);
    let (text, notes) =
        (String::from_utf8(found.stdout).expect("text"), String::from_utf8(found.stderr).expect("text"));
    assert_eq!(found.status.code(), Some(0), "{notes}");
    assert!(text.contains("# the node is cordoned\n"), "{text}");
    assert!(notes.contains(&format!("node {name} is left out: invalid name")), "{notes}");
    let file = api.directory().join("nodes.yaml");
    std::fs::write(&file, &text).expect("written");
    server.cli(&["apply", "-f", file.to_str().expect("text")]);
    let rows = client.items("nodes");
    let of = |name: &str| rows.iter().find(|node| node["name"] == name).expect("a node");
    assert_eq!(rows.len(), 2);
    let (a, b) = (of("node-a"), of("node-b"));
    assert_eq!(b["cluster"], "pods");
    assert_eq!((&b["zone"], &b["labels"]["disk"]), (&json!("east"), &json!("fast")));
    assert_eq!(b["resources"], json!({"cpu": 3920, "memory": 16_393_244u64 << 10, "disk": 0}));
    assert_eq!(b["reserved"], json!({"cpu": 1250, "memory": 2 << 20, "disk": 0}));
    assert_eq!(a["reserved"], json!({"cpu": 500, "memory": 1 << 20, "disk": 0}));
    // What the fleet runs on a node is not foreign: the second discovery prints the same.
    let fleet = PodFleet { api: &api, server, name: "pods" };
    plan(&fleet, &json!({}));
    deploy(&client, "d1", "1", 2);
    client.wait_for("web", "running", 2);
    assert_eq!(fleet.server.cli(&discover), text);
}

#[test]
fn the_output_of_containers_is_read_through_the_api_of_kubernetes() {
    let fleet = fleet(shared(), "outputs");
    let client = fleet.client();
    plan(&fleet, &json!({}));
    deploy(&client, "d1", "1", 1);
    let replica = client.wait_for("web", "running", 1)[0]["name"].as_str().expect("a name").to_owned();
    // Every container of the shared API has this output. No other test reads it.
    fleet.api.write_output("2026-11-21T09:00:00.5Z stdout F one\n2026-11-21T09:00:01.5Z stderr F two\n");
    assert_eq!(fleet.server.cli(&["logs", &replica]), "out | one\nout | two\n");
    assert_eq!(fleet.server.cli(&["logs", &replica, "--tail", "1"]), "out | two\n");
    let id = client.items("incarnations")[0]["id"].as_str().expect("an id").to_owned();
    client.must("replica.stop", &json!({"name": replica}));
    client.wait_for("web", "stopped", 1);
    let gone = client.get(&format!("/v1/fleets/default/incarnations/{id}/logs"));
    assert_eq!(gone.status, 410, "{}", gone.text);
    assert!(gone.text.contains("Kubernetes deletes the output of a pod with the pod"), "{}", gone.text);
}

#[test]
fn a_plan_of_both_bodies_moves_from_pods_to_processes_and_a_plan_of_one_body_waits() {
    let fleet = fleet(shared(), "bodies");
    let client = fleet.client();
    plan(&fleet, &json!({"run": {"argv": ["sleep", "3600"]}}));
    deploy(&client, "d1", "1", 1);
    client.wait_for("web", "running", 1);
    assert_eq!(pods(&fleet, "web").len(), 1);
    // Another cluster of the fleet: processes of this machine.
    client.must("cluster.apply", &json!({"name": "machine", "spec": {"runtime": "process"}}));
    let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
    let node = json!({"domain": "rack-9", "resources": total});
    client.must("node.apply", &json!({"name": "here", "cluster": "machine", "spec": node}));
    fleet.server.cli(&["drain", fleet.name, "--wait", "--timeout", "1m"]);
    let rows = client.wait_for("web", "running", 1);
    assert_eq!(rows[0]["node"], "here", "{rows:?}");
    assert!(pods(&fleet, "web").is_empty());
    let incarnations = client.items("incarnations?state=running");
    assert!(incarnations[0]["processes"][0]["pid"].is_u64(), "{incarnations:?}");
    // A plan of pods alone has no node left.
    plan_of_pods(&fleet, "only", &json!({}));
    let reason = until("it waits with its reason", || {
        let text = client.get("/v1/fleets/default/operations?plan=only").text;
        text.contains("has no `run`").then_some(text)
    });
    assert!(reason.contains("which runtime process of cluster machine needs"), "{reason}");
    fleet.server.cli(&["undrain", fleet.name]);
    client.wait_for("only", "running", 1);
    assert_eq!(pods(&fleet, "only").len(), 1);
}

#[test]
fn faults_of_kubernetes_and_of_the_executor_leak_and_double_no_pod() {
    let (tally, ran) = CampaignKind::Kubernetes.run(JournalBackend::Embedded, 6, 0);
    println!("{tally:?}");
    ran.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((tally.rounds, tally.lost, tally.decided_twice, tally.violations), (6, 0, 0, 0));
    assert_eq!(tally.faults.len(), 6, "one of each kind");
    assert!(tally.acknowledged > 100, "only {} intents were acknowledged", tally.acknowledged);
}
