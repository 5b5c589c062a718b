//! Requirements of a runtime, each on a real Kubernetes API.
//!
//! | requirement | test |
//! |---|---|
//! | the same plan changes nothing; any changed field is applied | `the_same_plan_keeps_its_pods_and_a_changed_field_replaces_them` |
//! | a deletion leaves nothing, and another deletion changes nothing | `a_deletion_leaves_nothing_and_another_one_changes_nothing` |
//! | a list includes what an earlier executor left | `what_an_earlier_executor_left_is_found_and_removed` |
//! | a late watcher gets the state, a slow one the last state of each | the conformance suite, and the campaign `kubernetes` |
//! | restarts are delayed, and a deletion ends them | `a_pod_that_fails_again_and_again_is_restarted_until_it_is_deleted` |
//! | a later executor adopts what runs | `on_kubernetes::pods_outlive_the_server_and_the_api_of_kubernetes`, `an_executor_on_an_empty_machine_takes_over_every_pod` |
//! | no crash leaves a pod without a record | `kills_of_the_executor_while_it_creates_pods_lose_and_double_none` |
//! | a reason is that of the current death | `a_reason_is_that_of_the_current_death` |
//! | a replica is ready if all its pods are | `a_replica_is_ready_while_all_its_pods_are` |
//! | all runtimes pass one suite | the conformance suite, `pods_of_kubernetes_conform` |
//! | ports, volumes, resources and namespace reach the runtime | `what_a_plan_states_is_in_its_pod_and_its_claim`, `a_volume_of_another_namespace_fails_the_start_on_kubernetes` |

use std::collections::BTreeSet;
use std::time::Duration;

use chancery_tests::{ExecutorProcess, PodFleet, uids, until};
use serde_json::json;

#[test]
fn the_same_plan_keeps_its_pods_and_a_changed_field_replaces_them() {
    let fleet = PodFleet::start("changes");
    fleet.plan(json!({}), json!({}));
    fleet.deploy("d1", 2);
    fleet.completed("d1");
    let before = uids(&fleet.pods());
    assert_eq!(before.len(), 2);
    fleet.plan(json!({}), json!({}));
    fleet.deploy("d2", 2);
    fleet.completed("d2");
    assert_eq!(uids(&fleet.pods()), before, "nothing was started again");
    let env = json!({"image": "registry.test/web:1", "env": {"LEVEL": "debug"}});
    let memory = json!({"cpu": 100, "memory": 128 << 20});
    for (name, change) in
        [("d3", json!({"container": env})), ("d4", json!({"container": env, "resources": memory}))]
    {
        let before = uids(&fleet.pods());
        fleet.plan(json!({}), change);
        fleet.deploy(name, 3);
        fleet.completed(name);
        let pods = fleet.pods();
        assert!(pods.len() == 3 && uids(&pods).is_disjoint(&before), "{before:?} {pods:?}");
        for pod in &pods {
            let container = &pod["spec"]["containers"][0];
            let env = container["env"].as_array().expect("variables");
            assert!(env.contains(&json!({"name": "LEVEL", "value": "debug"})), "{container}");
            let memory = if name == "d3" { "64Mi" } else { "128Mi" };
            let bytes = container["resources"]["limits"]["memory"].as_str().expect("a limit");
            let same = [
                memory.to_owned(),
                (memory.trim_end_matches("Mi").parse::<u64>().expect("a number") << 20).to_string(),
            ];
            assert!(same.iter().any(|same| same == bytes), "{container}");
        }
    }
}

#[test]
fn a_deletion_leaves_nothing_and_another_one_changes_nothing() {
    let fleet = PodFleet::start("deletion");
    fleet.plan(json!({}), json!({}));
    fleet.deploy("d1", 3);
    fleet.completed("d1");
    assert_eq!(fleet.count("configmaps", "chancery.dev/incarnation"), 3);
    fleet.delete();
    assert_eq!(fleet.pods().len(), 0, "an end is reported when no pod is left");
    let again = fleet.client().decided("again", "plan.delete", &json!({"name": "web", "cascade": "yes"}));
    assert_eq!(again.status, 404, "{}", again.text);
    until("no config map of an incarnation is left", || {
        (fleet.count("configmaps", "chancery.dev/incarnation") == 0).then_some(())
    });
    assert_eq!(fleet.count("configmaps", "chancery.dev/epoch"), 1, "that of the executor");
}

#[test]
fn what_an_earlier_executor_left_is_found_and_removed() {
    let mut fleet = PodFleet::start("leftover");
    fleet.plan(json!({}), json!({}));
    fleet.deploy("d1", 1);
    fleet.completed("d1");
    let pod = fleet.pods().remove(0);
    let selector = format!("chancery.dev/cluster={},chancery.dev/incarnation", fleet.name);
    let map = fleet.api.list("configmaps", &selector).remove(0);
    fleet.delete();
    until("the config map is purged", || {
        (fleet.count("configmaps", "chancery.dev/incarnation") == 0).then_some(())
    });
    fleet.server.kill();
    // As if a request of an executor that slept had arrived after the end.
    for object in [&map, &pod] {
        let mut object = object.clone();
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        for key in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            metadata.remove(key);
        }
        object.as_object_mut().expect("an object").remove("status");
        fleet.api.create(&object);
    }
    assert_eq!(fleet.pods().len(), 1);
    fleet.server.start_again();
    until("the pod is deleted", || fleet.pods().is_empty().then_some(()));
    until("its config map is purged", || {
        (fleet.count("configmaps", "chancery.dev/incarnation") == 0).then_some(())
    });
}

#[test]
fn a_pod_that_fails_again_and_again_is_restarted_until_it_is_deleted() {
    let fleet = PodFleet::start("restarts");
    fleet.plan(json!({"restart_delay": 1000}), json!({}));
    fleet.deploy("d1", 1);
    fleet.completed("d1");
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let pod = until("another pod runs", || {
            fleet.client().wait_for("web", "running", 1);
            fleet.pods().into_iter().find(|pod| !seen.contains(&pod["metadata"]["uid"].to_string()))
        });
        seen.insert(pod["metadata"]["uid"].to_string());
        fleet.api.label(&pod, &json!({"chancery.tests/failure": "exit"}));
    }
    until("the last end is recorded", || {
        let failed = fleet.incarnations().into_iter().filter(|row| row["state"] == "failed").count();
        (failed == 3).then_some(())
    });
    assert_eq!(fleet.client().items("replicas?plan=web").len(), 1, "all were of one replica");
    // Before the next restart is due.
    fleet.delete();
    let restarts = || fleet.server.cli(&["events", "-o", "jsonl", "--types", "operation.created.v1"]);
    let before = restarts();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(restarts(), before, "nothing is started after the deletion");
    assert_eq!(fleet.pods().len(), 0);
}

#[test]
fn kills_of_the_executor_while_it_creates_pods_lose_and_double_none() {
    let mut fleet = PodFleet::start("crashes");
    fleet.plan(json!({}), json!({"resources": {"cpu": 10, "memory": 1 << 20}}));
    for round in 1..=6_u32 {
        fleet.deploy(&format!("d{round}"), round * 5);
        let wanted = (round * 5 - 3) as usize;
        until("most pods exist", || (fleet.pods().len() >= wanted).then_some(()));
        fleet.server.kill();
        fleet.server.start_again();
    }
    fleet.completed("d6");
    let pods = fleet.pods();
    let of = |label: &str| {
        pods.iter().map(|pod| pod["metadata"]["labels"][label].to_string()).collect::<BTreeSet<_>>().len()
    };
    assert_eq!((pods.len(), of("chancery.dev/incarnation"), of("chancery.dev/replica")), (30, 30, 30));
    assert_eq!(fleet.count("configmaps", "chancery.dev/incarnation"), 30);
}

#[test]
fn an_executor_on_an_empty_machine_takes_over_every_pod() {
    let fleet = PodFleet::start_with("local", "none");
    let start = || ExecutorProcess::start_pods(&fleet.server, "e1", fleet.api, "local");
    let mut first = start();
    fleet.plan(json!({}), json!({}));
    fleet.deploy("d1", 3);
    fleet.completed("d1");
    let before = uids(&fleet.pods());
    first.kill();
    drop(first);
    // Another directory: it has nothing but the credentials.
    let mut next = start();
    fleet.deploy("d2", 4);
    fleet.completed("d2");
    let after = uids(&fleet.pods());
    assert!(after.len() == 4 && after.is_superset(&before), "{before:?} {after:?}");
    assert!(fleet.client().items("operations?state=failed").is_empty());
    fleet.delete();
    assert_eq!(fleet.pods().len(), 0);
    assert_eq!(next.stop(), Some(0));
}

#[test]
fn the_start_of_an_executor_ends_the_earlier_one_on_kubernetes() {
    let fleet = PodFleet::start_with("epochs", "none");
    let start = |name| ExecutorProcess::start_pods(&fleet.server, name, fleet.api, "epochs");
    let mut first = start("e1");
    fleet.plan(json!({}), json!({}));
    fleet.deploy("d1", 2);
    fleet.completed("d1");
    // No command is due: only the watch shows the first one that its epoch has ended.
    let mut second = start("e2");
    assert_eq!(first.wait(), Some(4), "{}", first.log());
    assert!(first.log().contains("another executor has taken over: epoch 2 has started"), "{}", first.log());
    fleet.deploy("d2", 3);
    fleet.completed("d2");
    assert_eq!(second.stop(), Some(0));
}

#[test]
fn an_executor_of_another_namespace_writes_nothing_there_on_kubernetes() {
    let fleet = PodFleet::start_with("misplaced", "none");
    let kubeconfig = fleet.api.kubeconfig().to_str().expect("text");
    let place = ["--kubernetes", "--namespace", "default", "--kubeconfig", kubeconfig];
    let ended =
        fleet.server.run(&[&["executor", "--cluster", "misplaced", "--name", "e1"], &place[..]].concat());
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{errors}");
    let wanted = "namespace default of the executor is not that of the cluster's spec, misplaced";
    assert!(errors.contains(wanted), "{errors}");
    assert_eq!(fleet.count("configmaps", "chancery.dev/epoch"), 0);
}

#[test]
fn an_executor_store_that_was_restored_does_not_fall_behind_the_records() {
    let fleet = PodFleet::start_with("restored", "none");
    let start = || ExecutorProcess::start_pods(&fleet.server, "e1", fleet.api, "restored");
    fleet.plan(json!({}), json!({}));
    for (deployment, count) in [("d1", 1), ("d2", 2)] {
        let mut executor = start();
        fleet.deploy(deployment, count);
        fleet.completed(deployment);
        assert_eq!(executor.stop(), Some(0));
    }
    let store = "namespaces/restored/configmaps/chancery-default-restored";
    let patch = json!({"data": {"epoch": "0"}, "metadata": {"labels": {"chancery.dev/epoch": "0"}}});
    assert!(fleet.api.patch(store, &patch), "there is a store");
    let mut third = start();
    fleet.deploy("d3", 3);
    fleet.completed("d3");
    let now = fleet.api.get(store);
    assert_eq!(now["data"]["epoch"], "3", "the records are of epoch 2: {}", third.log());
    assert_eq!(third.stop(), Some(0));
}

#[test]
fn a_pod_that_appears_after_its_record_was_purged_is_removed() {
    let fleet = PodFleet::start("late-pods");
    fleet.plan(json!({}), json!({}));
    fleet.deploy("d1", 1);
    fleet.completed("d1");
    let mut late = fleet.pods().remove(0);
    fleet.deploy("d2", 0);
    fleet.completed("d2");
    until("the record is purged", || {
        (fleet.count("configmaps", "chancery.dev/incarnation") == 0).then_some(())
    });
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        late["metadata"].as_object_mut().expect("an object").remove(field);
    }
    late.as_object_mut().expect("an object").remove("status");
    fleet.api.create(&late);
    until("the late pod is gone", || fleet.pods().is_empty().then_some(()));
    until("its record is purged", || {
        (fleet.count("configmaps", "chancery.dev/incarnation") == 0).then_some(())
    });
    // The executor continues to work.
    fleet.deploy("d3", 1);
    fleet.completed("d3");
}

#[test]
fn a_reason_is_that_of_the_current_death() {
    let fleet = PodFleet::start("reasons");
    fleet.plan(json!({}), json!({}));
    fleet.deploy("d1", 1);
    fleet.completed("d1");
    let mut seen = BTreeSet::new();
    for failure in ["oom", "exit"] {
        let pod = until("its pod runs", || {
            fleet.client().wait_for("web", "running", 1);
            fleet.pods().into_iter().find(|pod| !seen.contains(&pod["metadata"]["uid"].to_string()))
        });
        seen.insert(pod["metadata"]["uid"].to_string());
        fleet.api.label(&pod, &json!({"chancery.tests/failure": failure}));
        let ended = until("its end is recorded", || {
            let rows = fleet.incarnations();
            let id = &pod["metadata"]["labels"]["chancery.dev/incarnation"];
            rows.into_iter().find(|row| row["id"] == *id && row["state"] == "failed")
        });
        let message = ended["message"].as_str().expect("a message").to_lowercase();
        let names_memory = message.contains("oom") || message.contains("memory");
        assert_eq!(names_memory, failure == "oom", "{failure}: {message}");
    }
}

#[test]
fn a_replica_is_ready_while_all_its_pods_are() {
    let fleet = PodFleet::start("processes");
    let ready = json!({"http": {"port": "http", "path": "/"}});
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    fleet.plan(json!({}), json!({"processes": 3, "ready": ready, "ports": ports}));
    fleet.deploy("d1", 1);
    fleet.completed("d1");
    let pods = fleet.pods();
    assert_eq!(pods.len(), 3);
    let is_ready = || fleet.client().items("replicas?plan=web")[0]["ready"] == true;
    assert!(is_ready());
    let states =
        |wanted: bool| until("the replica follows its pods", || (is_ready() == wanted).then_some(()));
    fleet.api.label(&pods[1], &json!({"chancery.tests/failure": "unready"}));
    states(false);
    assert_eq!(fleet.pods().len(), 3, "a pod that is not ready has not ended");
    fleet.api.label(&pods[1], &json!({"chancery.tests/failure": null}));
    // Readiness that does not come back ends nothing: another start replaces all three pods.
    let replica = fleet.client().items("replicas?plan=web")[0]["name"].clone();
    fleet.client().must("replica.restart", &json!({"name": replica}));
    until("other pods are ready", || {
        let now = fleet.pods();
        (is_ready() && now.len() == 3 && uids(&now).is_disjoint(&uids(&pods))).then_some(())
    });
    // The end of one process is the end of the incarnation.
    let before = fleet.pods();
    fleet.api.label(&before[2], &json!({"chancery.tests/failure": "exit"}));
    until("other pods are ready", || {
        let now = fleet.pods();
        (is_ready() && now.len() == 3 && uids(&now).is_disjoint(&uids(&before))).then_some(())
    });
}

#[test]
fn what_a_plan_states_is_in_its_pod_and_its_claim() {
    let fleet = PodFleet::start("contents");
    fleet.provide_storage();
    fleet.plan(
        json!({"labels": {"team": "shop"}, "timeouts": {"approval": 60_000, "start": 60_000, "stop": 7_000}}),
        json!({
            "resources": {"cpu": 250, "memory": 64 << 20, "disk": 0},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}, {"name": "dns", "protocol": "UDP", "port": 53}],
            "volumes": [{"volume": null, "on_delete": "destroy", "class": fleet.name, "capacity": 1 << 20, "mount": "/data"}],
            "container": {
                "image": "registry.test/web:1", "command": ["web"], "args": ["--port", "${port.http}"],
                "env": {"AT": "${replica}"}, "init": [{"image": "registry.test/init:1", "args": ["${replica}"]}],
            },
        }),
    );
    fleet.deploy("d1", 1);
    let row = fleet.client().wait_for("web", "running", 1).remove(0);
    let pod = fleet.pods().remove(0);
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    assert_eq!((&metadata["namespace"], &metadata["labels"]["team"]), (&json!(fleet.name), &json!("shop")));
    assert_eq!((&spec["nodeName"], &spec["restartPolicy"]), (&json!(fleet.name), &json!("Never")));
    assert_eq!(spec["terminationGracePeriodSeconds"], 7);
    let container = &spec["containers"][0];
    assert_eq!(
        (&container["image"], &container["command"], &container["args"]),
        (&json!("registry.test/web:1"), &json!(["web"]), &json!(["--port", "80"]))
    );
    let resources = &container["resources"];
    assert_eq!(resources["limits"], resources["requests"]);
    assert_eq!(resources["limits"]["cpu"], "250m");
    let ports = container["ports"].as_array().expect("ports").iter();
    let ports = ports.map(|port| format!("{} {}", port["containerPort"], port["protocol"]));
    assert_eq!(ports.collect::<BTreeSet<_>>(), [r#"53 "UDP""#.to_owned(), r#"80 "TCP""#.to_owned()].into());
    let env = container["env"].as_array().expect("variables");
    for (name, value) in [("AT", row["name"].clone()), ("PORT_HTTP", json!("80"))] {
        assert!(env.contains(&json!({"name": name, "value": value})), "{env:?}");
    }
    let init = &spec["initContainers"][0];
    assert_eq!((&init["image"], &init["args"]), (&json!("registry.test/init:1"), &json!([row["name"]])));
    let mount = container["volumeMounts"]
        .as_array()
        .expect("mounts")
        .iter()
        .find(|mount| mount["mountPath"] == "/data");
    let volume = &mount.expect("the mount")["name"];
    let volumes = spec["volumes"].as_array().expect("volumes");
    let volume = volumes.iter().find(|of| of["name"] == *volume).expect("the volume");
    let claim = volume["persistentVolumeClaim"]["claimName"].as_str().expect("a claim");
    let claim = fleet.api.get(&format!("namespaces/{}/persistentvolumeclaims/{claim}", fleet.name));
    let stated = &claim["spec"];
    assert_eq!(
        (&stated["storageClassName"], &stated["accessModes"]),
        (&json!(fleet.name), &json!(["ReadWriteOnce"]))
    );
    assert!(
        ["1Mi", "1048576"].contains(&stated["resources"]["requests"]["storage"].as_str().expect("a size")),
        "{stated}"
    );
    assert_eq!(claim["status"]["phase"], "Bound");
    fleet.delete();
    until("the claim is deleted", || {
        (fleet.count("persistentvolumeclaims", "chancery.dev/volume") == 0).then_some(())
    });
}

#[test]
fn a_volume_of_another_namespace_fails_the_start_on_kubernetes() {
    let fleet = PodFleet::start("sharing");
    fleet.provide_storage();
    let volumes = json!({
        "volumes": [{"volume": "shared", "class": fleet.name, "capacity": 1 << 20, "mount": "/data"}],
    });
    fleet.plan(json!({}), volumes.clone());
    fleet.deploy("d1", 1);
    fleet.completed("d1");
    fleet.delete();
    fleet.api.namespace("sharing-2");
    fleet.plan(json!({"namespace": "sharing-2"}), volumes);
    fleet.deploy("d2", 1);
    let failed = until("the start fails", || fleet.client().items("operations?state=failed").pop());
    let reason = "is in namespace sharing: a pod in namespace sharing-2 cannot use it";
    assert!(failed.to_string().contains(reason), "{failed}");
}
