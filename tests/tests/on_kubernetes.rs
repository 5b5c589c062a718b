//! Replicas as pods of a real Kubernetes API.

use std::collections::BTreeSet;

use chancery_tests::kubernetes::KubernetesApi;
use chancery_tests::{ServerProcess, TestClient, until};
use serde_json::{Value, json};

/// Starts an API with nodes, and a server with a cluster `pods` of them.
fn fleet(nodes: &[&str]) -> (KubernetesApi, ServerProcess) {
    let api = KubernetesApi::start(nodes);
    for namespace in ["control", "demo"] {
        api.kubectl(&["create", "namespace", namespace]);
    }
    let kubeconfig = api.kubeconfig().to_str().expect("text").to_owned();
    let server = ServerProcess::start_with(&[("KUBECONFIG", &kubeconfig)]);
    let client = server.client();
    let spec = json!({"runtime": "kubernetes", "kubernetes": {"namespace": "control"}});
    client.must("cluster.apply", &json!({"name": "pods", "spec": spec}));
    for (i, node) in nodes.iter().enumerate() {
        let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
        let spec = json!({"domain": format!("rack-{i}"), "resources": total});
        client.must("node.apply", &json!({"name": node, "cluster": "pods", "spec": spec}));
    }
    (api, server)
}

fn plan(client: &TestClient, more: &Value) {
    let automatic = json!({
        "create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
        "start": "automatic", "stop": "automatic", "delete": "automatic",
    });
    let mut payload = json!({
        "name": "web", "resources": {"cpu": 100, "memory": 64 << 20},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "container": {"image": "registry.test/web:${version}", "args": ["--port", "${port.http}"]},
    });
    payload.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let spec = json!({
        "namespace": "demo", "service": "web", "labels": {"team": "shop"}, "payloads": [payload],
        "approval": automatic, "sharing": "allowed",
    });
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
}

fn deploy(client: &TestClient, name: &str, version: &str, count: u32) {
    let spec = json!({"count": count, "coordinates": {"web": {"version": version}}});
    client.must("deployment.create", &json!({"plan": "web", "name": name, "spec": spec}));
}

fn uids(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod["metadata"]["uid"].as_str().expect("a uid").to_owned()).collect()
}

#[test]
fn a_plan_runs_as_pods_of_kubernetes_from_deployment_to_deletion() {
    let (api, server) = fleet(&["node-a", "node-b"]);
    let client = server.client();
    plan(&client, &json!({}));
    deploy(&client, "d1", "1", 2);
    let replicas = client.wait_for("web", "running", 2);
    let pods = api.pods("chancery.dev/plan=web,team=shop");
    assert_eq!(pods.len(), 2);
    let nodes: BTreeSet<_> =
        pods.iter().map(|pod| pod["spec"]["nodeName"].as_str().expect("a node")).collect();
    assert_eq!(nodes, BTreeSet::from(["node-a", "node-b"]));
    for pod in &pods {
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
        let pods = api.pods("chancery.dev/plan=web");
        let new =
            pods.iter().filter(|pod| pod["spec"]["containers"][0]["image"] == "registry.test/web:2").count();
        (new == 3 && pods.len() == 3).then_some(())
    });
    let rows = client.wait_for("web", "running", 3);
    let name = rows[0]["name"].as_str().expect("a name").to_owned();
    client.must("replica.stop", &json!({"name": name}));
    client.wait_for("web", "stopped", 1);
    until("its pod is deleted", || (api.pods("chancery.dev/plan=web").len() == 2).then_some(()));
    client.must("replica.start", &json!({"name": name}));
    client.wait_for("web", "running", 3);
    // A container that ends without a request is started again, as another incarnation.
    let before = uids(&api.pods("chancery.dev/plan=web"));
    let victim =
        api.pods("chancery.dev/plan=web")[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    api.kubectl(&["label", "pod", "-n", "demo", &victim, "chancery.tests/failure=oom"]);
    until("another pod runs in its place", || {
        let now = uids(&api.pods("chancery.dev/plan=web"));
        (now.len() == 3 && now.intersection(&before).count() == 2).then_some(())
    });
    client.wait_for("web", "running", 3);
    // A pod whose labels another party changes is still the pod of its replica, and ends with it.
    let before = api.pods("chancery.dev/plan=web");
    let changed = &before[0]["metadata"];
    api.kubectl(&[
        "label",
        "pod",
        "-n",
        "demo",
        changed["name"].as_str().expect("a name"),
        "chancery.dev/cluster-",
    ]);
    client.must("replica.stop", &json!({"name": changed["labels"]["chancery.dev/replica"]}));
    until("the pod is deleted", || {
        let now = uids(&api.pods("chancery.dev/plan=web"));
        (now.len() == 2 && now.is_disjoint(&uids(&before[..1]))).then_some(())
    });
    client.wait_for("web", "stopped", 1);
    client.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    until("the plan is gone", || client.items("plans").is_empty().then_some(()));
    assert!(api.pods("chancery.dev/plan=web").is_empty());
    until("all config maps of objects are purged", || {
        let maps = api.get(&["configmaps", "-n", "control", "-l", "chancery.dev/incarnation"]);
        maps["items"].as_array().expect("items").is_empty().then_some(())
    });
    assert!(server.is_up());
}

#[test]
fn pods_outlive_the_server_and_the_api_of_kubernetes() {
    let (api, mut server) = fleet(&["node-a"]);
    plan(&server.client(), &json!({}));
    deploy(&server.client(), "d1", "1", 2);
    server.client().wait_for("web", "running", 2);
    let before = uids(&api.pods("chancery.dev/plan=web"));
    // The server dies, and an executor of a later epoch takes over.
    server.kill();
    server.start_again();
    deploy(&server.client(), "d2", "1", 3);
    server.client().wait_for("web", "running", 3);
    let after = uids(&api.pods("chancery.dev/plan=web"));
    assert!(after.is_superset(&before) && after.len() == 3, "{before:?} {after:?}");
    // The API is away while a replica is requested: nothing is lost, and nothing has failed.
    api.component("kill", "kube-apiserver");
    deploy(&server.client(), "d3", "1", 4);
    api.component("restart", "kube-apiserver");
    server.client().wait_for("web", "running", 4);
    let last = uids(&api.pods("chancery.dev/plan=web"));
    assert!(last.is_superset(&after) && last.len() == 4, "{after:?} {last:?}");
    let failed = server.client().items("operations?state=failed");
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn an_image_that_kubernetes_cannot_pull_is_a_reason_of_the_replica() {
    let (api, server) = fleet(&["node-a"]);
    let client = server.client();
    plan(&client, &json!({}));
    let spec = json!({
        "namespace": "demo", "service": "bad", "labels": {"chancery.tests/failure": "image-pull"},
        "payloads": [{"name": "web", "resources": {"cpu": 1, "memory": 1 << 20}, "container": {"image": "registry.test/none:1"}}],
        "approval": {"create": "automatic"},
    });
    client.must("plan.apply", &json!({"name": "bad", "spec": spec}));
    client.must("deployment.create", &json!({"plan": "bad", "name": "d1", "spec": {"count": 1}}));
    let waiting = until("the reason is shown", || {
        let rows = client.items("incarnations?plan=bad");
        let status = rows.first()?["processes"].get(0)?["status"]["waiting"].clone();
        status.is_object().then_some(status)
    });
    assert_eq!(waiting["reason"], "ImagePullBackOff");
    let pods = api.pods("chancery.dev/plan=bad");
    let name = pods[0]["metadata"]["name"].as_str().expect("a name");
    api.kubectl(&["label", "pod", "-n", "demo", name, "chancery.tests/failure-"]);
    client.wait_for("bad", "running", 1);
}
