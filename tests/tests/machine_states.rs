//! Ends and resets of guests: each test is a row of the table "Ends and resets of virtual machines" in `docs/checks.md`, with the
//! real QEMU. It happens to a guest while everything runs, while its executor is dead, and while executor and supervisor are; they
//! start again afterwards.

use std::path::PathBuf;
use std::time::Duration;

use chancery_tests::qemu::{GuestPort, run_state};
use chancery_tests::{ServerProcess, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::machine_disks::{RunningGuest, TestPermit, executor, parent_of};
use crate::virtual_machines::{deploy, machines, qemu};

/// Components that are dead while something happens to a guest.
#[derive(Clone, Copy, PartialEq, Debug)]
enum DeadComponents {
    Nothing,
    Executor,
    ExecutorAndSupervisor,
}

/// Guest to which something happens.
struct SubjectGuest<'a> {
    server: &'a mut ServerProcess,
    dead: DeadComponents,
    plan: &'static str,
    replica: String,
    incarnation: String,
    process: Pid,
    directory: PathBuf,
}

impl SubjectGuest<'_> {
    /// Starts a guest in a plan of its own.
    fn start<'a>(
        server: &'a mut ServerProcess,
        plan: &'static str,
        dead: DeadComponents,
    ) -> SubjectGuest<'a> {
        deploy(&server.client(), plan, "");
        let guest = RunningGuest::wait(server, plan, |_| true);
        let process = guest.qemu(server).expect("it runs");
        let (replica, incarnation) = (guest.replica.clone(), guest.incarnation.clone());
        let directory = executor(server).join("nodes/node-1").join(&incarnation).join("app-0");
        drop(guest);
        SubjectGuest { server, dead, plan, replica, incarnation, process, directory }
    }

    /// Carries out an action while the components are dead, and starts the executor again.
    fn while_dead(&mut self, acts: impl FnOnce(&SubjectGuest<'_>)) {
        if self.dead != DeadComponents::Nothing {
            self.server.kill();
        }
        if self.dead == DeadComponents::ExecutorAndSupervisor {
            kill_process(parent_of(self.process), Signal::KILL).expect("a signal");
        }
        acts(self);
        if self.dead != DeadComponents::Nothing {
            self.server.start_again();
        }
    }

    /// Waits for longer than an executor needs to report what it finds: what was shown before must not count.
    fn settle(&self) {
        let is_started = self.dead != DeadComponents::Nothing;
        std::thread::sleep(Duration::from_millis(if is_started { 1000 } else { 300 }));
    }

    /// Sends a command to the guest.
    fn send(&self, command: &str) {
        GuestPort::open(&self.directory).and_then(|mut port| port.send(command)).expect("a port");
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process, signal).expect("a signal");
    }

    /// Waits until QEMU reports this state, or has ended: that is what a supervisor does once it has recorded the end.
    fn has_ended(&self, state: &str) {
        until(&format!("the guest has ended; dead: {:?}", self.dead), || {
            let has_supervisor = self.dead != DeadComponents::ExecutorAndSupervisor;
            let is_paused = !has_supervisor && run_state(&self.directory).is_ok_and(|now| now == state);
            (is_paused || qemu(self.server, &self.incarnation).is_none()).then_some(())
        });
    }

    /// Returns the reason of a failure of QEMU. Its status is that of a child, which only the supervisor sees.
    fn failure(&self, seen: &'static str) -> &'static str {
        match self.dead {
            DeadComponents::Nothing | DeadComponents::Executor => seen,
            DeadComponents::ExecutorAndSupervisor => "app-0 ended with unknown status",
        }
    }

    /// Waits until the guest reads commands again after a reset. A starting guest loses what it receives.
    fn has_started_again(&self) {
        until(&format!("it has started again; dead: {:?}", self.dead), || {
            let mut port = GuestPort::open(&self.directory).ok()?;
            port.set_patience(Duration::from_millis(300)).ok()?;
            port.ask("?").ok().filter(|answer| answer.ends_with("alive"))
        });
    }

    /// Whether the guest answers nothing for a while.
    fn is_silent(&self) -> bool {
        let port = GuestPort::open(&self.directory).expect("a port");
        port.set_patience(Duration::from_millis(500)).expect("a time limit");
        let mut port = port;
        port.ask("?").is_err()
    }

    /// Waits until the guest has printed the text this often.
    fn has_printed(&self, text: &str, times: usize) {
        until(&format!("{text} {times} times; dead: {:?}", self.dead), || {
            let output = std::fs::read_to_string(self.directory.with_extension("out.1")).unwrap_or_default();
            (output.matches(text).count() >= times).then_some(())
        });
    }

    /// Waits until the kept output of the guest has the text.
    fn has_logged(&self, text: &str) {
        until(&format!("{text:?} is kept; dead: {:?}", self.dead), || {
            self.server.cli(&["logs", &self.replica, "--stdout"]).contains(text).then_some(())
        });
    }

    /// Waits until the row of the incarnation meets a condition, and returns it.
    fn row(&self, what: &str, is_right: impl Fn(&Value) -> bool) -> Value {
        let client = self.server.client();
        until(&format!("{what}; dead: {:?}", self.dead), || {
            Some(client.read(&format!("incarnations/{}", self.incarnation))).filter(|row| is_right(row))
        })
    }

    /// Returns the facts of a type about the incarnation.
    fn facts(&self, type_name: &str) -> Vec<Value> {
        let text = self.server.cli(&["events", "-o", "jsonl"]);
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let is_meant = |event: &Value| {
            event["type"] == format!("dev.chancery.incarnation.{type_name}.v1")
                && event["data"]["incarnation"] == self.incarnation
        };
        events.filter(is_meant).map(|mut event| event["data"].take()).collect()
    }

    /// Checks the only end of the incarnation, and that nothing of it is left.
    fn ends(&self, state: &str, message: &str, end: &Value) {
        let row = self.row(state, |row| row["state"] == state);
        assert_eq!(row["message"].as_str().unwrap_or_default(), message, "dead: {:?}", self.dead);
        let facts = self.facts("ended");
        assert_eq!(facts.iter().map(|fact| &fact["end"]).collect::<Vec<_>>(), [end], "dead: {:?}", self.dead);
        until("QEMU has ended", || qemu(self.server, &self.incarnation).is_none().then_some(()));
    }

    /// Checks that the guest runs on in its incarnation and process, and returns its row.
    fn runs_on(&self, what: &str, is_right: impl Fn(&Value) -> bool) -> Value {
        self.settle();
        let row = self.row(what, |row| row["state"] == "running" && is_right(&row["processes"][0]));
        assert_eq!(qemu(self.server, &self.incarnation), Some(self.process), "dead: {:?}", self.dead);
        assert_eq!(self.facts("ended"), [] as [Value; 0], "dead: {:?}", self.dead);
        row
    }
}

/// Runs a test with a guest for each combination of dead components.
fn with_each(test: impl Fn(&mut SubjectGuest<'_>)) {
    let _permit = TestPermit::take();
    let mut server = machines();
    for (plan, dead) in [
        ("nothing", DeadComponents::Nothing),
        ("executor", DeadComponents::Executor),
        ("both", DeadComponents::ExecutorAndSupervisor),
    ] {
        let mut guest = SubjectGuest::start(&mut server, plan, dead);
        test(&mut guest);
        guest.server.client().must("plan.delete", &json!({"name": plan, "cascade": "yes"}));
    }
}

#[test]
fn a_power_off_by_the_guest_is_a_shutdown() {
    with_each(|guest| {
        guest.while_dead(|guest| {
            guest.send("o");
            guest.has_ended("shutdown");
        });
        guest.ends("powered_off", "its guest powered itself off", &json!("powered_off"));
    });
}

#[test]
fn a_panic_of_the_guest_is_a_failure() {
    with_each(|guest| {
        guest.while_dead(|guest| {
            guest.send("p");
            guest.has_ended("guest-panicked");
        });
        guest.ends("failed", "app-0 panicked", &json!({"failed": {"reason": "app-0 panicked"}}));
    });
}

#[test]
fn a_kill_of_qemu_is_a_failure() {
    with_each(|guest| {
        guest.while_dead(|guest| {
            guest.signal(Signal::KILL);
            guest.has_ended("");
        });
        let reason = guest.failure("app-0 was ended by signal 9");
        guest.ends("failed", reason, &json!({"failed": {"reason": reason}}));
        // The rule of the plan is `never`.
        guest.settle();
        let all = guest.server.client().items(&format!("incarnations?plan={}", guest.plan));
        assert_eq!(all.len(), 1, "dead: {:?}", guest.dead);
    });
}

#[test]
fn a_signal_that_ends_qemu_is_a_failure_although_its_status_is_0() {
    with_each(|guest| {
        guest.while_dead(|guest| {
            guest.signal(Signal::TERM);
            guest.has_ended("");
        });
        let reason = guest.failure("app-0 was ended with its virtual machine, status 0");
        guest.ends("failed", reason, &json!({"failed": {"reason": reason}}));
    });
}

#[test]
fn a_reset_by_the_guest_is_counted_and_it_runs_on() {
    for command in ["r", "t"] {
        with_each(|guest| {
            guest.while_dead(|guest| {
                guest.send(command);
                guest.has_started_again();
            });
            // Without a client on the control socket, nothing receives the event.
            let is_seen = guest.dead != DeadComponents::ExecutorAndSupervisor;
            guest.runs_on("it is ready", |process| {
                process["status"] == "ready" && (process["resets"].as_u64() > Some(0)) == is_seen
            });
        });
    }
}

#[test]
fn a_guest_that_hangs_runs_on() {
    with_each(|guest| {
        guest.while_dead(|guest| {
            guest.send("h");
            assert!(guest.is_silent());
        });
        guest.runs_on("it is ready", |process| process["status"] == "ready");
    });
}

#[test]
fn a_requested_reboot_resets_the_guest() {
    with_each(|guest| {
        // QEMU carries out nothing before the components are dead.
        guest.signal(Signal::STOP);
        guest.server.client().must("replica.reboot", &json!({"name": guest.replica}));
        guest.while_dead(|guest| guest.signal(Signal::CONT));
        guest.runs_on("a reset is counted", |process| {
            process["resets"].as_u64() >= Some(1) && process["status"] == "ready"
        });
        guest.has_started_again();
        assert!(!guest.facts("processes_changed").is_empty());
    });
}

#[test]
fn a_guest_that_has_powered_itself_off_is_not_called_rebooted() {
    let _permit = TestPermit::take();
    let mut server = machines();
    let guest = SubjectGuest::start(&mut server, "web", DeadComponents::Nothing);
    let supervisor = parent_of(guest.process);
    // QEMU waits for the supervisor once the guest is off, and does not end before the reboot is requested.
    kill_process(supervisor, Signal::STOP).expect("a signal");
    guest.send("o");
    until("the guest is off", || guest.is_silent().then_some(()));
    guest.signal(Signal::STOP);
    kill_process(supervisor, Signal::CONT).expect("a signal");
    guest.settle();
    guest.server.client().must("replica.reboot", &json!({"name": guest.replica}));
    guest.settle();
    assert_eq!(guest.facts("running").len(), 1, "only the boot was completed");
    guest.signal(Signal::CONT);
    guest.ends("powered_off", "its guest powered itself off", &json!("powered_off"));
    assert_eq!(guest.facts("running").len(), 1, "only the boot was completed");
}

#[test]
fn a_stop_that_the_guest_obeys_is_a_stop() {
    with_each(|guest| {
        guest.signal(Signal::STOP);
        guest.server.client().must("replica.stop", &json!({"name": guest.replica}));
        let has_supervisor = guest.dead != DeadComponents::ExecutorAndSupervisor;
        guest.while_dead(|guest| {
            if has_supervisor {
                guest.signal(Signal::CONT);
            }
        });
        if !has_supervisor {
            // Its output is read from now on.
            guest.signal(Signal::CONT);
        }
        guest.ends("destroyed", "", &json!("destroyed"));
        guest.has_logged("power off");
    });
}

#[test]
fn a_stop_that_the_guest_ignores_is_a_stop_after_the_grace() {
    with_each(|guest| {
        guest.send("i");
        guest.has_printed("beat 3 ", 1);
        guest.server.client().must("replica.stop", &json!({"name": guest.replica}));
        guest.while_dead(|_| {});
        guest.ends("destroyed", "", &json!("destroyed"));
        guest.has_logged("power button");
    });
}

#[test]
fn a_machine_that_does_not_answer_has_not_ended() {
    with_each(|guest| {
        guest.while_dead(|guest| guest.signal(Signal::STOP));
        guest.runs_on("it is unreachable", |process| process["status"] == "unreachable");
        guest.signal(Signal::CONT);
        guest.runs_on("it is ready", |process| process["status"] == "ready");
    });
}
