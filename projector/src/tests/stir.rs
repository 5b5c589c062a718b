//! Random actions of all actors, by the driver's seed.

use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::IncarnationId;
use chancery_events::name::ReplicaName;
use chancery_events::observation::ProcessInfo;
use chancery_machine::state::{IncarnationState, OperationState, VolumeState};
use serde_json::{Value, json};

use super::driver::TestDriver;

impl TestDriver {
    /// Performs one random action.
    pub(crate) fn stir(&mut self) {
        let (nodes, plans) = (self.fleet.nodes().len().max(1), self.fleet.plans().len().max(1));
        match self.pick(24) {
            0..3 => {
                let (plan, count, n) = (self.pick(plans), self.pick(7), self.asked());
                let coordinates = json!({ "web": { "version": format!("v{}", self.pick(2)) } });
                let strategy = match self.pick(4) {
                    0 => json!({ "blue_green": { "timeout": 20_000, "on_timeout": "rollback" } }),
                    1 => json!({ "rolling": { "max_parallel": 1 } }),
                    _ => json!({ "rolling": {} }),
                };
                let spec = json!({ "count": count, "coordinates": coordinates, "strategy": strategy });
                let name = format!("deployment-{n}");
                let body = json!({ "plan": format!("plan-{plan}"), "name": name, "spec": spec });
                self.ask("deployment.create.v1", &body);
            }
            3..8 => self.work(20),
            8..13 => self.report_one(),
            13 => self.report_volume(),
            14..16 => self.approve_one(),
            16..19 => self.ask_replica(),
            19 => {
                let (node, cores) = (self.pick(nodes + 1), 1 + self.pick(3) as u64);
                self.apply_node(node, cores);
            }
            20 => {
                let (node, state) =
                    (self.pick(nodes), ["evicted", "sanitizing", "unallocated", "expunged"][self.pick(4)]);
                self.ask("node.set_state.v1", &json!({ "name": format!("node-{node}"), "state": state }));
            }
            21 => self.odds_and_ends(),
            22 => self.sessions(),
            _ => {
                let seconds = [1, 3, 20, 90][self.pick(4)];
                self.pass_time(Duration::from_secs(seconds));
            }
        }
        if self.pick(3) == 0 {
            self.seal();
        }
    }

    fn odds_and_ends(&mut self) {
        let n = self.pick(4);
        match self.pick(10) {
            0 => self
                .ask("plan.set_activity.v1", &json!({ "name": format!("plan-{n}"), "activity": "inactive" })),
            1 => self
                .ask("plan.set_activity.v1", &json!({ "name": format!("plan-{n}"), "activity": "active" })),
            2 => self.ask("plan.delete.v1", &json!({ "name": format!("plan-{n}") })),
            3 => self.ask("node.delete.v1", &json!({ "name": format!("node-{n}") })),
            4 => self.ask("capability.set_activity.v1", &json!({ "name": "h100", "activity": "inactive" })),
            7 => {
                let spec = json!({ "kinds": [], "rule": { "approve": { "max_in_flight": 2 } } });
                self.ask("policy.apply.v1", &json!({ "name": "anything", "spec": spec }))
            }
            8 => {
                let body = json!({ "node": format!("node-{n}"), "name": format!("power-{}", self.asked()) });
                let mut whole = body.clone();
                let action = ["drain", "none"][self.pick(2)];
                whole["spec"] = json!({ "action": action });
                self.ask("disruption.schedule.v1", &whole) && self.ask("disruption.approve.v1", &body)
            }
            5 => self.ask("cluster.set_activity.v1", &json!({ "name": "west", "activity": "active" })),
            6 => {
                let (plan, name) = (
                    format!("plan-{n}"),
                    self.fleet
                        .plans()
                        .get(format!("plan-{n}").as_str())
                        .and_then(|plan| plan.current.clone()),
                );
                name.is_some_and(|name| {
                    self.ask("deployment.cancel.v1", &json!({ "plan": plan, "name": name }))
                })
            }
            _ => {
                let approval = ["manual", "automatic"][self.pick(2)];
                self.apply_plan(n, approval);
                true
            }
        };
    }

    fn sessions(&mut self) {
        let open: Vec<_> =
            self.fleet.sessions().sorted().into_iter().filter(|s| s.end.is_none()).map(|s| s.id).collect();
        if open.is_empty() || self.pick(3) == 0 {
            for cluster in ["east", "west"] {
                let executor = format!("exec-{cluster}");
                self.see(
                    "session.requested.v1",
                    &json!({ "cluster": cluster, "executor": executor, "runtime": "simulated", "store": "0000000000000001" }),
                );
            }
        } else {
            let session = open[self.pick(open.len())];
            self.see("session.ended.v1", &json!({ "session": session, "end": "expired" }));
        }
    }

    fn ask_replica(&mut self) {
        let Some(name) = self.any_replica() else { return };
        let what = ["stop", "start", "delete", "relocate", "restart"][self.pick(5)];
        self.ask(&format!("replica.{what}.v1"), &json!({ "name": name }));
    }

    fn any_replica(&mut self) -> Option<ReplicaName> {
        let names: Vec<_> = self.fleet.replicas().sorted().into_iter().map(|r| r.name.clone()).collect();
        if names.is_empty() { None } else { Some(names[self.pick(names.len())].clone()) }
    }

    fn approve_one(&mut self) {
        let pending: Vec<_> = self
            .fleet
            .operations()
            .sorted()
            .into_iter()
            .filter_map(|operation| match &operation.state {
                OperationState::PendingApproval(proposal) => Some((operation.id, proposal.hash)),
                _ => None,
            })
            .collect();
        if pending.is_empty() {
            return;
        }
        let (operation, hash) = pending[self.pick(pending.len())];
        if self.pick(5) == 0 {
            self.ask("operation.reject.v1", &json!({ "operations": [operation], "reason": "not today" }));
        } else {
            self.ask(
                "operation.approve.v1",
                &json!({ "operations": [{ "operation": operation, "hash": hash }] }),
            );
        }
    }

    /// Reports about a random incarnation of an executor.
    fn report_one(&mut self) {
        let live: Vec<_> = self
            .fleet
            .incarnations()
            .sorted()
            .into_iter()
            .filter(|i| !matches!(i.state, IncarnationState::Reserved | IncarnationState::Ended(_)))
            .map(|i| i.id)
            .collect();
        if !live.is_empty() {
            let id = live[self.pick(live.len())];
            let choice = self.pick(10);
            self.report(id, choice);
        }
    }

    /// Reports about a random volume.
    fn report_volume(&mut self) {
        let volumes: Vec<_> = self.fleet.volumes().sorted().into_iter().cloned().collect();
        if volumes.is_empty() {
            return;
        }
        let volume = &volumes[self.pick(volumes.len())];
        let cluster = self.fleet.clusters().get(&volume.cluster);
        let Some(session) = cluster.and_then(|cluster| cluster.session) else { return };
        let observed = match self.pick(8) {
            0 => json!({ "failed": { "message": "no space", "retry": "retryable" } }),
            1 => json!({ "ended": { "exit": "clean", "processes": [] } }),
            _ if volume.state == VolumeState::Destroying => json!("gone"),
            _ => json!({ "ready": { "processes": [] } }),
        };
        let report = json!({ "object": volume.id, "revision": volume.revision, "observed": observed });
        let body = json!({ "session": session, "name": volume.name, "report": report });
        self.see("volume.reported.v1", &body);
    }

    pub(crate) fn report(&mut self, id: IncarnationId, choice: usize) {
        let Some(incarnation) = self.fleet.incarnations().get(&id) else { return };
        let (revision, asked) = (incarnation.revision, incarnation.last_effect);
        let cluster = self.fleet.clusters().get(&incarnation.cluster);
        let Some(session) = cluster.and_then(|cluster| cluster.session) else { return };
        let process = |status: Value| -> Vec<ProcessInfo> {
            serde_json::from_value(json!([{ "payload": "web", "index": 0, "pid": 7, "status": status,
                "addresses": [{ "port": "http", "address": "10.0.0.1:80" }] }]))
            .expect("a process")
        };
        let observed = match (choice, asked) {
            (0, _) => json!({ "started": { "processes": process(json!("starting")) } }),
            (1, _) => json!({ "not_ready": { "processes": process(json!({ "exited": { "code": 3 } })) } }),
            (2, _) => {
                json!({ "ended": { "exit": { "failed": { "reason": "it crashed" } }, "processes": [] } })
            }
            (3, _) => json!({ "failed": { "message": "no image", "retry": "retryable" } }),
            (4, _) => json!({ "failed": { "message": "no such image", "retry": "permanent" } }),
            (5, _) => json!({ "not_ready": { "processes": process(json!("rebooting")) } }),
            (6, _) => json!({ "ended": { "exit": "powered_off", "processes": [] } }),
            (_, Some(CommandEffect::Stop | CommandEffect::Kill)) => json!("gone"),
            _ => json!({ "ready": { "processes": process(json!("ready")) } }),
        };
        let report = json!({ "incarnation": id, "revision": revision, "observed": observed });
        self.see("incarnation.reported.v1", &json!({ "session": session, "report": report }));
    }
}
