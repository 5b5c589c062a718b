//! Breaches of each invariant, which the checker must find.

use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, RequestId};
use serde_json::json;

use super::check;
use crate::trace::TraceStage::{
    Approved, Deleted, Deployed, Fleet, Reserved, Running, StartAsked, Started, StopAsked, Stopped, Stopping,
};
use crate::trace::{
    BEGAN, HASH, JournalTrace, TOPIC, TraceStage, lineage, process, proposal, replica_at, trace,
};

type BreachCase = (TraceStage, u8, &'static str, fn(&mut JournalTrace));

/// Plays each breach on the valid trace at its stage.
fn find(breaches: &[BreachCase]) {
    for (stage, invariant, what, breach) in breaches {
        let mut s = trace(*stage);
        breach(&mut s);
        match check(&s) {
            Ok(_) => panic!("{what}: not found"),
            Err(found) => assert_eq!(found.invariant, *invariant, "{what}: {found}"),
        }
    }
}

fn noted(s: &mut JournalTrace, i: usize) {
    let name = format!("cap-{i}");
    let data = json!({"name": name, "spec": {"type": "T", "score": i}});
    let cause = s.ask("capability.apply.v1", &data);
    s.fact(cause, "capability.applied.v1", &data);
}

#[test]
fn a_chain_that_is_broken() {
    find(&[
        (Running, 1, "a record is missing", |s| {
            s.commits.remove(4);
        }),
        (Running, 1, "positions are left out", |s| s.commits[3].gap = 1),
        (Running, 1, "another record is continued", |s| s.commits[3].breaks_chain = true),
        (Running, 1, "time decreases", |s| s.commits[5].seconds = 0),
        (Running, 1, "a term is left out", |s| s.begin(3)),
        (Running, 1, "a term starts again", |s| s.begin(1)),
        (Running, 5, "a fenced writer continues", |s| {
            s.begin(2);
            noted(s, 1);
            (s.commits.last_mut().expect("a commit").term, s.commits.last_mut().expect("a commit").writer) =
                (1, 1);
        }),
        (Running, 5, "another start of a decider writes in the term", |s| {
            noted(s, 1);
            s.commits.last_mut().expect("a commit").writer = 9;
        }),
        (Fleet, 1, "a cause follows its effect", |s| {
            let data = json!({"name": "web", "activity": "inactive"});
            let cause = s.last() + 2;
            s.fact(cause, "plan.activity_changed.v1", &data);
        }),
    ]);
}

#[test]
fn verdicts_that_are_wrong() {
    find(&[
        (Fleet, 1, "an intent has no verdict", |s| {
            s.intent("x", "plan.delete.v1", &json!({"name": "web"}));
        }),
        (Fleet, 1, "a verdict comes a record late", |s| {
            let intent = s.intent("x", "plan.delete.v1", &json!({"name": "web"}));
            s.commit();
            s.refuse(intent, "in_use");
        }),
        (Fleet, 1, "an intent has two verdicts", |s| {
            let intent = s.intent("x", "plan.delete.v1", &json!({"name": "web"}));
            s.refuse(intent, "in_use");
            s.refuse(intent, "in_use");
        }),
        (Fleet, 1, "a key is decided twice", |s| {
            for _ in 0..2 {
                let intent = s.intent("x", "plan.delete.v1", &json!({"name": "web"}));
                s.refuse(intent, "in_use");
                s.commit();
            }
        }),
        (Fleet, 1, "a key is called used, and was not", |s| {
            let intent = s.intent("x", "plan.delete.v1", &json!({"name": "web"}));
            s.refuse(intent, "idempotency_key_reused");
        }),
        (Fleet, 1, "the verdict is of another intent", |s| {
            let other = s.intent("y", "plan.delete.v1", &json!({"name": "web"}));
            s.refuse(other, "in_use");
            let request = s.request(other);
            let intent = s.intent("x", "plan.delete.v1", &json!({"name": "web"}));
            let data =
                json!({"key": request.key(), "digest": request.digest(), "at": 0, "outcome": "changed"});
            s.fact(intent, "intent.accepted.v1", &data);
        }),
        (Fleet, 5, "a refused intent changes something", |s| {
            let data = json!({"name": "web", "activity": "inactive"});
            let intent = s.intent("x", "plan.set_activity.v1", &data);
            s.refuse(intent, "in_use");
            s.fact(intent, "plan.activity_changed.v1", &data);
        }),
        (Fleet, 1, "an intent changes nothing, and is recorded as a change", |s| {
            s.ask("plan.set_activity.v1", &json!({"name": "web", "activity": "active"}));
        }),
        (Running, 5, "an observation changes nothing", |s| {
            s.report(1, &json!({"ready": {"processes": process()}}));
        }),
    ]);
}

/// Reboots the incarnation, whose only process has been reset this number of times afterwards.
fn reboot(s: &mut JournalTrace, resets: u32) {
    let cause = s.ask("replica.reboot.v1", &json!({"name": s.replica}));
    let proposal = proposal(BEGAN + 3_600_000_000);
    s.open_operation(cause, &json!({"replica": s.replica, "kind": "reboot", "proposal": proposal}));
    s.commit();
    s.approve(HASH);
    s.commit();
    let mut processes = process();
    processes[0]["resets"] = json!(resets);
    let cause = s.report(2, &json!({"ready": {"processes": processes}}));
    let data = json!({
        "incarnation": s.incarnation, "replica": s.replica, "operation": s.operation, "processes": processes,
    });
    s.fact(cause, "incarnation.running.v1", &data);
    s.commit();
}

#[test]
fn a_reboot_without_a_reset() {
    let mut s = trace(Running);
    reboot(&mut s, 1);
    check(&s).expect("a reboot that resets the guest");
    find(&[(Running, 5, "no guest was reset", |s| reboot(s, 0))]);
}

#[test]
fn reservations_that_are_wrong() {
    find(&[
        (Deployed, 4, "more is reserved than exists", |s| {
            let node =
                json!({"domain": "d1", "resources": {"cpu": 600, "memory": 600}, "reserved": {"cpu": 1}});
            let cause = s.ask("node.apply.v1", &json!({"name": "n1", "spec": node}));
            s.fact(cause, "node.applied.v1", &json!({"name": "n1", "spec": node}));
            s.reserve(600);
        }),
        (Reserved, 4, "a node shrinks below its reservations", |s| {
            let node = json!({"domain": "d1", "resources": {"cpu": 599, "memory": 600}});
            let cause = s.ask("node.apply.v1", &json!({"name": "n1", "spec": node}));
            s.fact(cause, "node.applied.v1", &json!({"name": "n1", "spec": node}));
        }),
        (Deployed, 4, "less is reserved than the spec demands", |s| s.reserve(599)),
        (Reserved, 4, "a node with reservations is deleted", |s| {
            let cause = s.ask("node.delete.v1", &json!({"name": "n1"}));
            s.fact(cause, "node.deleted.v1", &json!({"name": "n1"}));
        }),
        (Deployed, 4, "a reservation on a node that takes none", |s| {
            let cause = s.ask("node.set_state.v1", &json!({"name": "n1", "state": "evicted"}));
            s.fact(
                cause,
                "node.state_changed.v1",
                &json!({"name": "n1", "state": "evicted", "cluster": null}),
            );
            s.reserve(600);
        }),
        (Running, 4, "a reservation is freed on another node", |s| {
            let cause = s.report(1, &json!({"ended": {"exit": "clean", "processes": process()}}));
            let end = json!({
                "incarnation": s.incarnation, "replica": s.replica, "node": "n2", "end": "destroyed",
            });
            s.fact(cause, "incarnation.ended.v1", &end);
        }),
        (Running, 4, "a replica that runs is deleted", |s| {
            let cause = s.last();
            s.fact(cause, "replica.deleted.v1", &json!({"name": s.replica}));
        }),
        (Reserved, 4, "an operation ends and keeps its reservation", |s| {
            let cause = s.ask("operation.reject.v1", &json!({"operations": [s.operation], "reason": "no"}));
            s.end_operation(cause, &json!({"rejected": {"rejected_by": "ann", "reason": "no"}}));
            let why = json!({"failed": {"cause": "rejected"}});
            s.fact(cause, "deployment.halted.v1", &json!({"plan": "web", "name": "d1", "end": why}));
        }),
        (Reserved, 6, "a second reservation for one operation", |s| s.reserve(600)),
    ]);
}

#[test]
fn changes_after_the_end() {
    find(&[
        (Stopped, 5, "an incarnation ends twice", |s| {
            let cause = s.report(3, &json!("gone"));
            s.end_incarnation(cause, &json!("destroyed"));
        }),
        (Stopped, 5, "an ended incarnation runs", |s| {
            let cause = s.report(3, &json!({"ready": {"processes": process()}}));
            let data = json!({"incarnation": s.incarnation, "replica": s.replica, "processes": process()});
            s.fact(cause, "incarnation.running.v1", &data);
        }),
        (Stopped, 5, "an ended incarnation is commanded", |s| {
            let data = json!({
                "incarnation": s.incarnation, "replica": s.replica, "effect": "kill", "end": "destroyed",
            });
            let cause = s.last();
            s.fact(cause, "incarnation.stop_requested.v1", &data);
        }),
        (Stopped, 5, "an operation ends twice", |s| {
            let cause = s.last();
            s.end_operation(cause, &json!({"failed": {"reason": "late"}}));
        }),
        (Stopped, 5, "an ended operation is approved", |s| s.approve(HASH)),
        (Running, 5, "a deployment ends twice", |s| {
            let cause = s.last();
            s.fact(cause, "deployment.ended.v1", &json!({"plan": "web", "name": "d1", "end": "completed"}));
        }),
        (Running, 5, "an ended deployment starts", |s| {
            let cause = s.last();
            s.fact(cause, "deployment.started.v1", &json!({"plan": "web", "name": "d1"}));
        }),
        (Running, 5, "an ended deployment is created again", |s| {
            let cause =
                s.ask("deployment.create.v1", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
            let spec = json!({"count": 1});
            let data =
                json!({"plan": "web", "name": "d1", "generation": 1, "spec": spec, "requested_by": "ann"});
            s.fact(cause, "deployment.created.v1", &data);
        }),
        (Fleet, 5, "an expunged node comes back", |s| {
            let cause = s.ask("node.set_state.v1", &json!({"name": "n1", "state": "expunged"}));
            s.fact(
                cause,
                "node.state_changed.v1",
                &json!({"name": "n1", "state": "expunged", "cluster": null}),
            );
            s.fact(
                cause,
                "node.state_changed.v1",
                &json!({"name": "n1", "state": "unallocated", "cluster": null}),
            );
        }),
        (Fleet, 5, "a node leaves out a state", |s| {
            let cause = s.ask("node.set_state.v1", &json!({"name": "n1", "state": "sanitizing"}));
            s.fact(
                cause,
                "node.state_changed.v1",
                &json!({"name": "n1", "state": "sanitizing", "cluster": null}),
            );
        }),
        (Fleet, 5, "a session closes twice", |s| {
            for _ in 0..2 {
                let cause = s.observed("session.ended.v1", &json!({"session": s.session, "end": "expired"}));
                let data = json!({"session": s.session, "cluster": "local", "end": "expired"});
                s.fact(cause, "session.closed.v1", &data);
            }
        }),
        (Fleet, 5, "two sessions of a cluster", |s| {
            let store = "0000000000000001";
            let hello =
                json!({"cluster": "local", "executor": "local-1", "runtime": "process", "store": store});
            let cause = s.observed("session.requested.v1", &hello);
            s.fact(cause, "session.opened.v1", &hello);
        }),
        (Fleet, 5, "a generation is left out", |s| {
            let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}});
            let spec = json!({"namespace": "tests", "service": "web", "payloads": [payload]});
            let cause = s.ask("plan.apply.v1", &json!({"name": "web", "spec": spec}));
            s.fact(cause, "plan.applied.v1", &json!({"name": "web", "generation": 3, "spec": spec}));
        }),
    ]);
}

#[test]
fn reports_that_should_change_nothing() {
    find(&[
        (Approved, 5, "a report of an ended session", |s| {
            let cause = s.observed("session.ended.v1", &json!({"session": s.session, "end": "expired"}));
            s.fact(
                cause,
                "session.closed.v1",
                &json!({"session": s.session, "cluster": "local", "end": "expired"}),
            );
            let cause = s.report(1, &json!({"started": {"processes": process()}}));
            let data = json!({"incarnation": s.incarnation, "replica": s.replica, "processes": process()});
            s.fact(cause, "incarnation.started.v1", &data);
        }),
        (Started, 5, "a report older than the command", |s| {
            let cause = s.report(0, &json!({"ready": {"processes": process()}}));
            let data = json!({
                "incarnation": s.incarnation, "replica": s.replica, "operation": s.operation, "processes": process(),
            });
            s.fact(cause, "incarnation.running.v1", &data);
        }),
        (Started, 5, "a report of something else", |s| {
            let cause = s.report(1, &json!({"not_ready": {"processes": process()}}));
            let data = json!({
                "incarnation": s.incarnation, "replica": s.replica, "operation": s.operation, "processes": process(),
            });
            s.fact(cause, "incarnation.running.v1", &data);
        }),
        (Started, 5, "no report at all", |s| {
            let cause = s.last();
            let data = json!({
                "incarnation": s.incarnation, "replica": s.replica, "operation": s.operation, "processes": process(),
            });
            s.fact(cause, "incarnation.running.v1", &data);
        }),
        (Running, 6, "death by nothing but time", |s| {
            let cause = s.last();
            s.end_incarnation(cause, &json!({"failed": {"reason": "no report about it"}}));
        }),
        (Stopping, 6, "a tombstone older than the last command", |s| {
            let cause = s.report(2, &json!("gone"));
            s.end_incarnation(cause, &json!("destroyed"));
        }),
        (Stopping, 5, "an end that is not the one remembered", |s| {
            let cause = s.report(3, &json!("gone"));
            s.end_incarnation(cause, &json!({"failed": {"reason": "gone"}}));
        }),
        (Approved, 5, "a failure of an earlier attempt", |s| {
            let cause = s.report(1, &json!({"failed": {"message": "no", "retry": "retryable"}}));
            let data = json!({
                "incarnation": s.incarnation, "revision": 1, "attempt": 2, "error": "no", "not_before": 5,
            });
            s.fact(cause, "incarnation.command_failed.v1", &data);
        }),
    ]);
}

#[test]
fn what_no_entitled_person_approved() {
    find(&[
        (Reserved, 6, "approved on another hash", |s| s.approve("0000000000000000000000000000dcba")),
        (Reserved, 6, "approved by a rule, and the plan wants a person", |s| {
            let cause = s.last();
            let data = json!({
                "operation": s.operation, "replica": s.replica, "approved_by": {"rule": "plan/web/approval/create"},
                "hash": HASH, "incarnation": s.incarnation,
            });
            s.fact(cause, "operation.approved.v1", &data);
        }),
        (Reserved, 6, "called approved by an actor who did not", |s| {
            let cause = s.last();
            let data = json!({
                "operation": s.operation, "replica": s.replica, "approved_by": {"actor": "ann"}, "hash": HASH,
                "incarnation": s.incarnation,
            });
            s.fact(cause, "operation.approved.v1", &data);
        }),
        (Reserved, 6, "approved after it expired", |s| {
            s.commits.last_mut().expect("a commit").seconds += 4000;
            s.approve(HASH);
        }),
        (Deployed, 6, "approved before it has a reservation", |s| s.approve(HASH)),
        (Reserved, 6, "expired before its time", |s| {
            let cause = s.last();
            s.end_operation(cause, &json!("expired"));
        }),
        (Running, 6, "a stop without approval", |s| {
            let data = json!({
                "incarnation": s.incarnation, "replica": s.replica, "effect": "stop", "end": "destroyed",
            });
            let cause = s.last();
            s.fact(cause, "incarnation.stop_requested.v1", &data);
        }),
        (Running, 6, "an operation without a request", |s| {
            let cause = s.last();
            let proposal = proposal(i64::MAX);
            s.open_operation(cause, &json!({"replica": s.replica, "kind": "delete", "proposal": proposal}));
        }),
        (Stopping, 6, "a success before it is done", |s| {
            let cause = s.last();
            s.end_operation(cause, &json!("succeeded"));
        }),
        (Approved, 6, "an operation that runs is cancelled", |s| {
            let cause = s.last();
            s.end_operation(cause, &json!({"cancelled": {"reason": "no"}}));
        }),
        (Reserved, 6, "superseded by what was never opened", |s| {
            let by = OperationId::issue(lineage(), Position::new(1));
            let cause = s.last();
            s.end_operation(cause, &json!({"superseded": {"successor": by}}));
            s.end_incarnation(cause, &json!({"unwound": {"reason": "its operation was superseded"}}));
        }),
        (Approved, 6, "a deployment ends before its operations", |s| {
            let cause = s.last();
            s.fact(cause, "deployment.ended.v1", &json!({"plan": "web", "name": "d1", "end": "completed"}));
        }),
        (Stopped, 6, "a replica is deleted without an operation", |s| {
            let cause = s.last();
            s.fact(cause, "replica.deleted.v1", &json!({"name": s.replica}));
        }),
        (Running, 6, "a replica of an ended deployment", |s| {
            let name = replica_at(s.last() + 1);
            let cause = s.last();
            s.fact(cause, "replica.created.v1", &json!({"name": name, "plan": "web", "deployment": "d1"}));
        }),
        (Started, 6, "a command has two outcomes", |s| {
            let cause = s.report(1, &json!({"failed": {"message": "no", "retry": "permanent"}}));
            let data = json!({"incarnation": s.incarnation, "revision": 1, "attempt": 1, "error": "no"});
            s.fact(cause, "incarnation.command_failed.v1", &data);
        }),
    ]);
}

#[test]
fn a_stop_that_is_undone_and_objects_that_are_not_ours() {
    find(&[
        (Stopped, 7, "a start that no user requested", |s| {
            let cause = s.last();
            s.open_operation(cause, &json!({"replica": s.replica, "kind": "start"}));
        }),
        (StopAsked, 7, "a start alongside a waiting stop", |s| {
            let cause = s.last();
            s.open_operation(cause, &json!({"replica": s.replica, "kind": "start"}));
        }),
        (StartAsked, 7, "a start is approved although a stop came after it", |s| {
            let stop = s.intent("stop", "replica.stop.v1", &json!({"name": s.replica}));
            s.accept(stop, "unchanged");
            s.approve(HASH);
        }),
        (StartAsked, 6, "a second start alongside the first", |s| {
            let cause = s.ask("replica.start.v1", &json!({"name": s.replica}));
            s.open_operation(cause, &json!({"replica": s.replica, "kind": "start"}));
        }),
        (Fleet, 8, "an object of another journal is removed", |s| {
            judge(s, IncarnationId::issue(Lineage::from_random(7), Position::new(3)), 3);
        }),
        (Fleet, 8, "an object that was never issued is removed", |s| {
            judge(s, IncarnationId::issue(lineage(), Position::new(3)), 3);
        }),
        (Running, 8, "what runs is removed", |s| {
            judge(s, s.incarnation.expect("one"), 3);
        }),
        (Stopped, 8, "the executor knows a later position", |s| {
            judge(s, s.incarnation.expect("one"), 10_000);
        }),
        (Deleted, 8, "an object without a report", |s| {
            let cause = s.last();
            let incarnation = IncarnationId::issue(lineage(), Position::new(3));
            let data =
                json!({"cluster": "local", "object": incarnation, "resolution": "leave", "revision": 1});
            s.fact(cause, "orphan.resolved.v1", &data);
        }),
    ]);
    let mut s = trace(Stopped);
    let ended = s.incarnation.expect("an incarnation");
    judge(&mut s, ended, 3);
    assert!(check(&s).is_ok(), "an ended incarnation of this journal may be removed");
}

fn judge(s: &mut JournalTrace, incarnation: IncarnationId, seen: u64) {
    let data = json!({"session": s.session, "object": incarnation, "revision": 3, "seen": seen});
    let cause = s.observed("orphan.reported.v1", &data);
    let data = json!({"cluster": "local", "object": incarnation, "resolution": "remove", "revision": 4});
    s.fact(cause, "orphan.resolved.v1", &data);
}

#[test]
fn an_inbox_that_is_answered_wrongly() {
    let mut s = trace(Fleet);
    s.refuse_messages(&[3, 5], 6);
    s.refuse_messages(&[6, 9], 10);
    assert!(check(&s).is_ok(), "a valid trace");
    find(&[
        (Fleet, 10, "the watermark falls", |s| {
            s.refuse_messages(&[3], 6);
            s.refuse_messages(&[], 6);
            noted(s, 1);
            s.commits.last_mut().expect("a commit").answered = Some(5);
        }),
        (Fleet, 10, "an inbox message is answered again", |s| {
            s.refuse_messages(&[3], 6);
            s.refuse_messages(&[3], 7);
        }),
        (Fleet, 10, "out of order", |s| s.refuse_messages(&[3, 3], 6)),
        (Fleet, 10, "the watermark does not count it", |s| s.refuse_messages(&[3], 3)),
        (Fleet, 10, "no watermark is recorded", |s| {
            s.refuse_messages(&[3], 6);
            let data = json!({"topic": TOPIC, "next": 6});
            s.fact(s.last() + 1, "inbox.advanced.v1", &data);
        }),
        (Fleet, 10, "it is another inbox", |s| {
            let data = json!({"topic": "another", "next": 6});
            s.fact(s.last() + 1, "inbox.advanced.v1", &data);
            s.commits.last_mut().expect("a commit").answered = Some(6);
        }),
        (Fleet, 10, "it is called further and is not", |s| {
            s.refuse_messages(&[3], 6);
            let data = json!({"topic": TOPIC, "next": 6});
            s.fact(s.last() + 1, "inbox.advanced.v1", &data);
            s.commits.last_mut().expect("a commit").answered = Some(6);
        }),
        (Fleet, 10, "more is called answered than is", |s| {
            let data = json!({"topic": TOPIC, "next": 7});
            s.fact(s.last() + 1, "inbox.advanced.v1", &data);
            s.commits.last_mut().expect("a commit").answered = Some(6);
        }),
    ]);
}

/// Applies a four-eyes policy that covers everything.
fn two(s: &mut JournalTrace) {
    let data = json!({"name": "two", "spec": {"rule": {"four_eyes": {}}}});
    let cause = s.ask("policy.apply.v1", &data);
    s.fact(cause, "policy.applied.v1", &data);
}

/// Requests, as `ann`, to delete the plan with its replica; returns the id of the opened request.
fn cascade(s: &mut JournalTrace, count: u32) -> serde_json::Value {
    let cause = s.ask("plan.delete.v1", &json!({"name": "web", "cascade": "yes"}));
    let effects = json!([{"kind": "delete", "plan": "web", "count": count, "replicas": [s.replica]}]);
    let data = json!({
        "change": {"plan_delete": {"name": "web"}}, "requested_by": "ann", "effects": effects, "hash": HASH,
        "expires": 9_000_000_000_000_000_i64,
    });
    let position = s.fact(cause, "request.opened.v1", &data);
    json!(RequestId::issue(lineage(), Position::new(position)))
}

/// Approves the request as `ann`, and deletes the plan.
fn remove(s: &mut JournalTrace, request: &serde_json::Value, hash: &str) {
    let cause = s.ask("request.approve.v1", &json!({"request": request, "hash": hash}));
    s.fact(cause, "request.approved.v1", &json!({"request": request, "approved_by": "ann", "hash": hash}));
    s.fact(cause, "plan.deletion_started.v1", &json!({"name": "web", "requested_by": "ann"}));
}

#[test]
fn approvals_as_a_whole_that_are_missing_or_of_the_wrong_person() {
    let mut s = trace(Running);
    let request = cascade(&mut s, 1);
    remove(&mut s, &request, HASH);
    check(&s).expect("a valid trace: any person will do");
    find(&[
        (Running, 6, "a plan is removed without approval", |s| {
            let cause = s.ask("plan.delete.v1", &json!({"name": "web", "cascade": "yes"}));
            s.fact(cause, "plan.deletion_started.v1", &json!({"name": "web", "requested_by": "ann"}));
        }),
        (Running, 6, "the requester approves what takes two people", |s| {
            two(s);
            let request = cascade(s, 1);
            remove(s, &request, HASH);
        }),
        (Running, 6, "it is approved on another hash", |s| {
            let request = cascade(s, 1);
            remove(s, &request, "0000000000000000000000000000abce");
        }),
        (Running, 6, "more replicas are shown than there are", |s| {
            cascade(s, 2);
        }),
        (Running, 5, "it is approved again", |s| {
            let request = cascade(s, 1);
            let cause = s.ask("request.reject.v1", &json!({"request": request}));
            let end = json!({"rejected": {"rejected_by": "ann", "reason": ""}});
            s.fact(cause, "request.ended.v1", &json!({"request": request, "end": end}));
            remove(s, &request, HASH);
        }),
        (Running, 6, "a policy is deleted alone", |s| {
            two(s);
            let cause = s.ask("policy.delete.v1", &json!({"name": "two"}));
            s.fact(cause, "policy.deleted.v1", &json!({"name": "two"}));
        }),
        (Running, 6, "a node is expunged alone", |s| {
            two(s);
            let cause = s.ask("node.set_state.v1", &json!({"name": "n1", "state": "expunged"}));
            s.fact(
                cause,
                "node.state_changed.v1",
                &json!({"name": "n1", "state": "expunged", "cluster": null}),
            );
        }),
        (Running, 6, "a node is emptied alone", |s| {
            two(s);
            let spec = json!({"start": null, "action": "drain", "reason": ""});
            let data = json!({"node": "n1", "name": "x", "spec": spec});
            let cause = s.ask("disruption.schedule.v1", &data);
            s.fact(cause, "disruption.scheduled.v1", &data);
            let cause = s.ask("disruption.approve.v1", &json!({"node": "n1", "name": "x"}));
            s.fact(
                cause,
                "disruption.approved.v1",
                &json!({"node": "n1", "name": "x", "approved_by": "ann"}),
            );
        }),
    ]);
}
