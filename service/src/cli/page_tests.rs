//! The page of a plan, to the byte.

use chancery_events::id::{IncarnationId, Lineage, OperationId, Position};
use serde_json::{Value, json};

use super::columns::typed;
use super::plan_page::{Member, Page};

fn row(mut fields: Value) -> Value {
    let meta = json!({ "version": 3, "created": "2026-11-21T09:00:00Z", "changed": "2026-11-21T09:00:01.5Z", "position": 12 });
    fields.as_object_mut().expect("an object").extend(meta.as_object().expect("an object").clone());
    fields
}

fn plan() -> Value {
    row(json!({
        "name": "nginx-deployment-plan", "generation": 1, "activity": "active", "current": "deployment-2", "next": null,
        "spec": {
            "namespace": "nginx-namespace", "service": "nginx-service",
            "matchers": [
                { "type": "GPU", "comparator": "gte", "names": ["nvidia-v100", "nvidia-p100"] },
                { "type": "CPU", "comparator": "eq", "names": ["intel-xeon"] },
            ],
            "payloads": [{
                "name": "nginx-payload", "resources": { "cpu": 4000, "memory": 68_719_476_736_u64 },
                "ports": [{ "name": "tcp-80", "protocol": "TCP", "port": 80 }, { "name": "udp-53", "protocol": "UDP", "port": 53 }],
                "volumes": [{ "class": "standard", "capacity": 100_000_000_000_u64, "mount": "/data" }],
            }],
        },
        "replicas": { "total": 3, "running": 1, "pending": 2 },
        "operations": { "create": { "succeeded": 1, "pending_approval": 1, "preparing": 1, "rejected": 2 }, "stop": { "expired": 1 } },
        "waiting": [{ "reason": "no GPU of the score", "count": 3, "nodes": ["node-1", "node-2"] }],
        "message": "",
    }))
}

fn member() -> Member {
    let lineage = Lineage::from_random(1);
    let incarnation = IncarnationId::issue(lineage, Position::new(20));
    let operation = OperationId::issue(lineage, Position::new(18));
    let replica = row(json!({
        "name": "nginx-service-7f3k", "plan": "nginx-deployment-plan", "deployment": "deployment-2", "will": "running",
        "phase": "running", "ready": true, "reachability": "known", "node": "node-2", "incarnation": incarnation,
        "processes": [], "operation": null, "message": "",
    }));
    let run = row(json!({
        "id": incarnation, "replica": "nginx-service-7f3k", "plan": "nginx-deployment-plan", "deployment": "deployment-1",
        "node": "node-2", "cluster": "local", "state": "running", "ready": true, "reachability": "known",
        "amounts": { "cpu": 4000, "memory": 0, "disk": 0 }, "volumes": {}, "revision": 1, "message": "",
        "processes": [{
            "payload": "nginx-payload", "index": 0, "pid": 4711, "status": "online",
            "addresses": [{ "port": "tcp-80", "address": "127.0.0.1:40001" }],
        }],
    }));
    let create = row(json!({
        "id": operation, "replica": "nginx-service-7f3k", "plan": "nginx-deployment-plan", "kind": "create",
        "deployment": "deployment-1", "state": "succeeded", "hash": null, "node": "node-2", "incarnation": incarnation,
        "approved_by": { "actor": "ann" }, "message": "",
    }));
    let typed_all = (typed(&replica), typed(&run), typed(&create));
    let (Ok(replica), Ok(run), Ok(create)) = typed_all else { panic!("rows: {typed_all:?}") };
    Member { replica, incarnations: vec![run], operations: vec![create] }
}

#[test]
fn the_page_of_a_plan_tells_what_it_asks_for_and_how_far_that_is() {
    let deployment = row(json!({
        "plan": "nginx-deployment-plan", "name": "deployment-2", "generation": 1, "count": 3,
        "coordinates": { "nginx-payload": { "image": "nginx:latest" } }, "state": "in_progress", "message": "1 of 3",
    }));
    let member = member();
    let (run, create) = (member.incarnations[0].id, member.operations[0].id);
    let text = Page {
        plan: &typed(&plan()).expect("a plan"),
        deployments: &[typed(&deployment).expect("a deployment")],
        members: &[member],
    }
    .text();
    let wanted = format!(
        "\
plan/nginx-deployment-plan
  State:       active
  Generation:  1
  Version:     3
  Namespace:   nginx-namespace
  Service:     nginx-service
  Cluster:     any
  Zone:        any
  Approval:    manual
  Changed:     2026-11-21T09:00:01Z

Matchers (2)
  TYPE  COMPARATOR  NAMES
  GPU   gte         nvidia-v100, nvidia-p100
  CPU   eq          intel-xeon

Payloads (1)
  NAME           PROCESSES  CPU  MEMORY  DISK  PORTS                         VOLUMES
  nginx-payload  1          4    64GiB   0B    TCP:80 tcp-80, UDP:53 udp-53  standard 100GB at /data

Deployments (1)
  NAME          COUNT  STATE        MESSAGE  COORDINATES
  deployment-2  3      in_progress  1 of 3   nginx-payload{{image=nginx:latest}}

Replicas in all
  TOTAL  RUNNING  PENDING  FAILED  STOPPED
  3      1        2        0       0

Operations in all
  KIND    PENDING APPROVAL  APPROVED  FAILED  SUCCEEDED  REJECTED  EXPIRED  CANCELLED
  create  1                 0         0       1          2         0        0
  start   0                 0         0       0          0         0        0
  stop    0                 0         0       0          0         1        0
  delete  0                 0         0       0          0         0        0
  approve with: chancery approve --plan nginx-deployment-plan --all

Waiting for a place: why not
  REASON               NODES  WHICH
  no GPU of the score  3      node-1, node-2 and 1 more

Replicas (1)
  nginx-service-7f3k  running  by deployment-2
    incarnation {run} on node-2  running  active
      nginx-payload/0 online pid 4711 tcp-80=127.0.0.1:40001
    operation {create} create  for deployment deployment-1  succeeded  approved by ann
"
    );
    assert_eq!(text, wanted, "\n{text}");
}
