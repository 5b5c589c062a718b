//! Page of a plan, compared byte by byte.

use chancery_events::id::{IncarnationId, Lineage, OperationId, Position};
use serde_json::{Value, json};

use super::columns::typed;
use super::plan_page::{PlanPage, ReplicaSection};

fn row(mut fields: Value) -> Value {
    let meta = json!({ "version": 3, "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:01.5Z", "position": 12 });
    fields.as_object_mut().expect("an object").extend(meta.as_object().expect("an object").clone());
    fields
}

pub(super) fn plan() -> Value {
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
        "operations": { "create": { "succeeded": 1, "pending_approval": 1, "preparing": 1, "rejected": 2 }, "update": { "approved": 2, "running": 1 }, "stop": { "expired": 1 }, "relocate": { "superseded": 1 } },
        "unschedulable": [{ "reason": "no GPU of the score", "count": 3, "nodes": ["node-1", "node-2"] }],
        "spread": { "domains": { "rack-1": 2, "rack-2": 1 }, "balance": "even", "rebalance_requested_by": null },
        "message": "",
    }))
}

fn member() -> ReplicaSection {
    let lineage = Lineage::from_random(1);
    let [active, passive, past] = [20, 30, 10].map(|at| IncarnationId::issue(lineage, Position::new(at)));
    let [create, update] = [18, 29].map(|at| OperationId::issue(lineage, Position::new(at)));
    let other = json!({ "incarnation": passive, "node": "node-3", "state": "starting" });
    let replica = row(json!({
        "name": "nginx-service-7f3k", "plan": "nginx-deployment-plan", "deployment": "deployment-1", "desired": "running",
        "phase": "updating", "ready": true, "reachability": "known", "node": "node-2", "incarnation": active,
        "secondary": other, "processes": [], "operation": update, "next_restart": null, "unready_at": null, "message": "another starts",
    }));
    let run = |id, node: &str, deployment: &str, state: &str, port: u16| {
        let process = json!({
            "payload": "nginx-payload", "index": 0, "pid": port, "status": "ready",
            "addresses": [{ "port": "tcp-80", "address": format!("127.0.0.1:{port}") }],
        });
        row(json!({
            "id": id, "replica": "nginx-service-7f3k", "plan": "nginx-deployment-plan", "deployment": deployment,
            "node": node, "cluster": "local", "state": state, "ready": true, "reachability": "known",
            "resources": { "cpu": 4000, "memory": 0, "disk": 0 }, "reserved_storage": {}, "mounts": [], "revision": 1, "message": "",
            "operation": create, "starts_after": null, "affinity_violated": null, "unready_at": null, "processes": [process],
        }))
    };
    let runs = [
        run(past, "node-1", "deployment-1", "destroyed", 4001),
        run(active, "node-2", "deployment-1", "running", 4002),
        run(passive, "node-3", "deployment-2", "starting", 4003),
    ];
    let operation = |id, kind: &str, by: Value, approved: Value, state: &str| {
        row(json!({
            "id": id, "replica": "nginx-service-7f3k", "plan": "nginx-deployment-plan", "kind": kind,
            "deployment": "deployment-1", "requested_by": by, "target_deployment": "deployment-1", "state": state, "hash": null,
            "node": "node-2", "incarnation": active, "approved_by": approved, "message": "",
        }))
    };
    let operations = [
        operation(create, "create", Value::Null, json!({ "actor": "ann" }), "succeeded"),
        operation(
            update,
            "update",
            json!({ "actor": "bob" }),
            json!({ "rule": "policy/weekends" }),
            "running",
        ),
    ];
    ReplicaSection {
        replica: typed(&replica).expect("a replica"),
        incarnations: runs.iter().map(|run| typed(run).expect("an incarnation")).collect(),
        operations: operations.iter().map(|one| typed(one).expect("an operation")).collect(),
    }
}

#[test]
fn the_page_of_a_plan_shows_what_it_requests_and_the_progress_of_that() {
    let deployment = row(json!({
        "plan": "nginx-deployment-plan", "name": "deployment-2", "generation": 1, "count": 3,
        "coordinates": { "nginx-payload": { "image": "nginx:latest" } }, "state": "in_progress", "message": "1 of 3",
        "strategy": { "rolling": { "max_parallel": 2, "per_domain": false, "delay": 0 } }, "requested_by": "bob", "active_set": "old",
        "progress_deadline": 600_000, "auto_rollback": false, "rollback": null, "last_progress_at": null,
        "stalled_at": null,
    }));
    let member = member();
    let [past, active, passive] = [0, 1, 2].map(|index| member.incarnations[index].id);
    let [create, update] = [0, 1].map(|index| member.operations[index].id);
    let text = PlanPage {
        plan: &typed(&plan()).expect("a plan"),
        deployments: &[typed(&deployment).expect("a deployment")],
        members: &[member],
    }
    .text();
    let wanted = format!(
        "\
plan/nginx-deployment-plan
  Activity:    active
  Generation:  1
  Row version: 3
  Spread:      even, rack-1 2, rack-2 1
  Updated:     2026-11-21T09:00:01Z

Immediate fields (an edit takes effect immediately, for every later decision)
  cluster:         any
  zone:            any
  zones:           none
  selectors:       none
  matchers:        GPU gte nvidia-v100, nvidia-p100; CPU eq intel-xeon
  sharing:         never
  placement:       spread
  affinity:        none
  restart:         on_failure
  restart_delay:   10s
  update_order:    start_first
  max_unavailable: 1
  approval:        manual
  timeouts:        approval 1d, start 5m, stop 10s
  unready:         show after 5m

Deployed fields (an edit takes effect with the next deployment)
  namespace:       nginx-namespace
  service:         nginx-service
  labels:          none
  payloads:        nginx-payload

Payloads (1)
  NAME           PROCESSES  CPU  MEMORY  DISK  PORTS                         VOLUMES
  nginx-payload  1          4    64GiB   0B    TCP:80 tcp-80, UDP:53 udp-53  standard 100GB at /data
  nginx-payload run: none
  nginx-payload ready: none

Deployments (1)
  NAME          COUNT  STATE        STRATEGY                REQUESTED BY  MESSAGE  COORDINATES
  deployment-2  3      in_progress  rolling max_parallel=2  bob           1 of 3   nginx-payload{{image=nginx:latest}}

All replicas
  TOTAL  RUNNING  PENDING  FAILED  STOPPED
  3      1        2        0       0

All operations
  KIND      PREPARING  PENDING APPROVAL  APPROVED  RUNNING  SUCCEEDED  FAILED  REJECTED  EXPIRED  CANCELLED  SUPERSEDED
  create    1          1                 0         0        1          0       2         0        0          0
  update    0          0                 2         1        0          0       0         0        0          0
  relocate  0          0                 0         0        0          0       0         0        0          1
  restart   0          0                 0         0        0          0       0         0        0          0
  start     0          0                 0         0        0          0       0         0        0          0
  stop      0          0                 0         0        0          0       0         1        0          0
  delete    0          0                 0         0        0          0       0         0        0          0
  reboot    0          0                 0         0        0          0       0         0        0          0
  try: chancery approve --plan nginx-deployment-plan --all

Waiting for a placement
  REASON               NODES  NODE NAMES
  no GPU of the score  3      node-1, node-2 and 1 more

Replicas (1)
  nginx-service-7f3k  updating  by deployment-1  another starts
    incarnation {past} on node-1  destroyed  past  by deployment-1
    incarnation {active} on node-2  running  active  by deployment-1
      nginx-payload-0 ready pid 4002 tcp-80=127.0.0.1:4002
    incarnation {passive} on node-3  starting  secondary  by deployment-2
      nginx-payload-0 ready pid 4003 tcp-80=127.0.0.1:4003
    operation {create} create  requested by deployment-1  succeeded  approved by ann
    operation {update} update  requested by bob  running  approved by rule policy/weekends
"
    );
    assert_eq!(text, wanted, "\n{text}");
}
