//! Real processes: their input, their readiness, and their end.

use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::{
    IncarnationExit, ObjectReport, ObservedState, ProbeError, ProcessStatus, RetryClass,
};
use chancery_events::protocol::{IncarnationSpec, RunLabels};
use chancery_events::spec::{PayloadPort, PortProtocol, ProbeTiming, ReadinessProbe};
use chancery_executor::Orchestrator;
use chancery_executor::process::{OutputReader, ProcessConfig, ProcessOrchestrator, log_files};

use crate::world::{
    TestRoot, command, config, id, is_ended, is_ready, payload, sleeper, spec, until, wait_until,
};

pub(crate) async fn a_process_that_exits_ends_its_siblings_and_their_children() {
    let root = TestRoot::new();
    // Each process leaves a child in a session of its own; the second dies.
    let script =
        "setsid sleep 3600 & while [ ! -e ../../die-$$CHANCERY_PROCESS ]; do sleep 0.01; done; exit 9";
    let spec = spec(vec![payload("web", 3, &["sh", "-c", script])]);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    std::fs::write(root.incarnation_directory(id(1)).join("die-1"), "").unwrap();
    let ended = until(&processes, id(1), "it ended", is_ended).await;
    let ObservedState::Ended { exit: IncarnationExit::Failed { reason }, processes: reported } =
        &ended.observed
    else {
        panic!("{ended:?}")
    };
    assert_eq!(reason, "web-1 ended with status 9");
    assert_eq!(reported[1].status, ProcessStatus::Exited { code: 9 });
    assert!(matches!(reported[0].status, ProcessStatus::Signaled { signal: 15 }), "{reported:?}");
    assert_eq!(root.payloads(), Vec::<i32>::new(), "no descendant is left");
    wait_until("the supervisor has exited", || root.supervisors().is_empty());
}

pub(crate) async fn what_ignores_the_stop_signal_is_killed() {
    let root = TestRoot::new();
    let script = "trap '' TERM; touch ../../deaf; while true; do sleep 0.05; done";
    let spec = spec(vec![payload("web", 1, &["sh", "-c", script])]);
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    wait_until("it ignores SIGTERM", || root.incarnation_directory(id(1)).join("deaf").exists());
    let grace = Duration::from_millis(300);
    let begun = std::time::Instant::now();
    processes
        .carry_out(chancery_events::protocol::Command {
            grace,
            ..command(id(1), 2, CommandEffect::Stop, &spec)
        })
        .await;
    let ended = until(&processes, id(1), "it is killed", is_ended).await;
    assert!(begun.elapsed() >= grace, "it has its whole grace");
    let ObservedState::Ended { exit: IncarnationExit::Clean, processes: reported } = &ended.observed else {
        panic!("{ended:?}")
    };
    assert_eq!(reported[0].status, ProcessStatus::Signaled { signal: 9 });
    // A kill does not wait for the grace of a stop.
    processes.carry_out(command(id(2), 1, CommandEffect::Ensure, &spec)).await;
    until(&processes, id(2), "it is ready", is_ready).await;
    wait_until("it ignores SIGTERM", || root.incarnation_directory(id(2)).join("deaf").exists());
    let long = Duration::from_hours(1);
    processes
        .carry_out(chancery_events::protocol::Command {
            grace: long,
            ..command(id(2), 2, CommandEffect::Stop, &spec)
        })
        .await;
    processes.carry_out(command(id(2), 3, CommandEffect::Kill, &spec)).await;
    until(&processes, id(2), "it is killed immediately", |r| r.revision == 3 && is_ended(r)).await;
}

fn served(script: &str, ready: ReadinessProbe) -> IncarnationSpec {
    let mut served = payload("web", 1, &["python3", "-c", script, "${port.http}", "${version}"]);
    served.ports = vec![PayloadPort { name: "http".parse().unwrap(), protocol: PortProtocol::Tcp, port: 80 }];
    served.coordinates.insert("version".parse().unwrap(), "v1".to_owned());
    served.ready = Some(ready);
    spec(vec![served])
}

pub(crate) async fn placeholders_and_readiness() {
    let root = TestRoot::new();
    let script = r"
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.path == '/health' and os.path.exists('healthy')
        self.send_response(200 if ok else 503); self.end_headers()
print(sys.argv[2], os.environ['PORT_HTTP'] == sys.argv[1], os.getcwd() == os.environ['HOME'], sorted(os.environ), flush=True)
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";
    let timing = ProbeTiming::default();
    let http = ReadinessProbe::Http { port: "http".parse().unwrap(), path: "/health".to_owned(), timing };
    let script = script.replace('$', "$$");
    let mut spec = served(&script, http);
    *spec.labels = RunLabels {
        namespace: "ns".parse().unwrap(),
        service: "web".parse().unwrap(),
        labels: std::collections::BTreeMap::new(),
        deployment: "d1".parse().unwrap(),
        domain: Some("rack-1".parse().unwrap()),
        zone: None,
        node_labels: None,
    };
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
    until(&processes, id(1), "it is started, not ready", |r| {
        matches!(r.observed, ObservedState::Started { .. })
    })
    .await;
    let healthy = root.incarnation_directory(id(1)).join("web-0/work/healthy");
    std::fs::write(&healthy, "").unwrap();
    let ready = until(&processes, id(1), "it is ready", is_ready).await;
    std::fs::remove_file(&healthy).unwrap();
    until(&processes, id(1), "it is no longer ready", |r| {
        matches!(r.observed, ObservedState::NotReady { .. })
    })
    .await;
    std::fs::write(&healthy, "").unwrap();
    let again = until(&processes, id(1), "it is ready again", is_ready).await;
    assert_eq!(again, ready);
    let logs = log_files(root.path(), id(1)).unwrap();
    assert_eq!(
        logs.iter().map(|log| log.base.file_name().unwrap().to_str().unwrap()).collect::<Vec<_>>(),
        ["web-0.out", "web-0.err"]
    );
    let mut reader = OutputReader::last(&logs[0].base, u64::MAX).unwrap();
    let mut out = String::new();
    wait_until("its output is complete", || {
        out.push_str(&String::from_utf8(reader.read(100_000).unwrap()).unwrap());
        out.ends_with('\n')
    });
    assert!(out.starts_with("v1 True True"), "{out}");
    // The process has no zone.
    for (name, _) in chancery_executor::PAYLOAD_VARIABLES {
        assert_eq!(out.contains(name), *name != "CHANCERY_ZONE", "{name} is in {out}");
    }
    assert!(!out.contains("CARGO"), "the environment is scrubbed: {out}");
}

/// Server that answers until `hang` exists; then it accepts connections without an answer, until `hang` is
/// removed.
const HANGS: &str = r"
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while os.path.exists('hang'): time.sleep(0.02)
        ok = self.path == '/alive' or not os.path.exists('unready')
        self.send_response(200 if ok else 503); self.end_headers()
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

fn probe(path: &str) -> ReadinessProbe {
    let timing = ProbeTiming { period: 100, timeout: 200, failure_threshold: 2, ..ProbeTiming::default() };
    ReadinessProbe::Http { port: "http".parse().unwrap(), path: path.to_owned(), timing }
}

fn status(report: &ObjectReport) -> Option<&ProcessStatus> {
    match &report.observed {
        ObservedState::Ready { processes }
        | ObservedState::NotReady { processes }
        | ObservedState::Started { processes } => processes.first().map(|process| &process.status),
        ObservedState::Ended { .. } | ObservedState::Gone | ObservedState::Failed { .. } => None,
    }
}

pub(crate) async fn one_that_hangs_is_reported_with_its_error_and_ended_by_its_executor_only_on_command() {
    let root = TestRoot::new();
    let mut spec = served(HANGS, probe("/ready"));
    spec.payloads[0].alive = Some(probe("/alive"));
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    let work = root.incarnation_directory(id(1)).join("web-0/work");
    // Not ready, with the error, and alive.
    std::fs::write(work.join("unready"), "").unwrap();
    let unready = ProcessStatus::Unready { error: ProbeError::Status { code: 503 } };
    until(&processes, id(1), "it is not ready", |r| status(r) == Some(&unready)).await;
    std::fs::remove_file(work.join("unready")).unwrap();
    until(&processes, id(1), "it is ready again", is_ready).await;
    std::fs::write(work.join("hang"), "").unwrap();
    let hung = ProcessStatus::Unresponsive { error: ProbeError::Timeout };
    until(&processes, id(1), "it hangs", |r| status(r) == Some(&hung)).await;
    assert_eq!(root.payloads().len(), 1, "only the decider ends it");
    // A restarted executor counts from zero, and finds the same.
    drop(processes);
    let processes = root.open().await;
    until(&processes, id(1), "it still hangs", |r| status(r) == Some(&hung)).await;
    // The process recovers before it was stopped.
    std::fs::remove_file(work.join("hang")).unwrap();
    until(&processes, id(1), "it answers again", is_ready).await;
    std::fs::write(work.join("hang"), "").unwrap();
    until(&processes, id(1), "it hangs again", |r| status(r) == Some(&hung)).await;
    processes.carry_out(command(id(1), 2, CommandEffect::Stop, &spec)).await;
    until(&processes, id(1), "it is ended", is_ended).await;
    assert_eq!(root.payloads(), Vec::<i32>::new());
}

pub(crate) async fn a_port_without_a_listener_is_reported_as_refused_and_nothing_hangs_before_it_was_ready() {
    let root = TestRoot::new();
    let tcp = |failure_threshold| ReadinessProbe::Tcp {
        port: "http".parse().unwrap(),
        timing: ProbeTiming { period: 100, failure_threshold, ..ProbeTiming::default() },
    };
    let mut spec = served("import time; time.sleep(3600)", tcp(2));
    spec.payloads[0].alive = Some(tcp(1));
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
    let refused = ProcessStatus::Unready { error: ProbeError::Refused };
    let report = until(&processes, id(1), "no process listens", |r| status(r) == Some(&refused)).await;
    assert!(matches!(report.observed, ObservedState::Started { .. }), "{report:?}");
}

pub(crate) async fn what_is_wrong_with_an_incarnation_is_reported() {
    let root = TestRoot::new();
    let processes = root.open().await;
    let mut nothing = payload("web", 1, &[]);
    nothing.run = None;
    let cases = [
        (vec![payload("web", 1, &["/no/such"])], "/no/such"),
        (
            vec![payload("web", 2, &["sleep", "3600"]), payload("bad", 1, &["/etc/passwd"])],
            "Permission denied",
        ),
        (vec![payload("web", 1, &["sleep", "${port.nope}"])], "${port.nope}"),
        (vec![payload("web", 1, &[])], "invalid argv: must not be empty"),
        (vec![nothing], "nothing to run"),
        (vec![], "must have a process"),
    ];
    for (position, (payloads, expected)) in (1..).zip(cases) {
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &spec(payloads))).await;
        let failed = |r: &ObjectReport| matches!(r.observed, ObservedState::Failed { .. });
        let report = until(&processes, id(position), expected, failed).await;
        let ObservedState::Failed { message, retry: RetryClass::Permanent } = &report.observed else {
            panic!("{report:?}")
        };
        assert!(message.contains(expected), "{message:?} contains {expected:?}");
    }
    assert_eq!(root.payloads(), Vec::<i32>::new(), "siblings of the failed process are ended");
    // A local fault, not one of the plan, may be fixed later.
    let mut broken = config(root.path());
    broken.root = root.path().join("broken");
    broken.program.supervisor_args =
        vec!["as-supervisor".into(), "too".into(), "many".into(), "--help".into()];
    let processes = ProcessOrchestrator::open(broken).await.unwrap();
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "the supervisor cannot start", |r| {
        matches!(r.observed, ObservedState::Failed { retry: RetryClass::Retryable, .. })
    })
    .await;
}

pub(crate) async fn nothing_but_the_standard_descriptors_reaches_a_process() {
    let root = TestRoot::new();
    let mut leaky = config(root.path());
    let this = leaky.program.program.display().to_string();
    // Both start with unintended descriptors.
    let leak = |run: &str| format!("exec 7</dev/null 300</dev/null; exec \"$0\" {run}");
    leaky.program.program = "/bin/bash".into();
    leaky.program.supervisor_args = vec!["-c".into(), leak("as-supervisor \"$1\""), this.clone()];
    leaky.program.trampoline_args = vec!["-c".into(), leak("as-trampoline"), this];
    let processes = ProcessOrchestrator::open(leaky).await.unwrap();
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    let [pid] = root.payloads()[..] else { panic!("one process") };
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut open: Vec<_> = open.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    open.sort();
    assert_eq!(open, ["0", "1", "2"]);
}

pub(crate) async fn a_process_starts_with_the_original_descriptor_limit_of_the_server() {
    let root = TestRoot::new();
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let hard = hard.map_or("unlimited".to_owned(), |hard| hard.to_string());
    let processes =
        ProcessOrchestrator::open(ProcessConfig { files: Some(77), ..config(root.path()) }).await.unwrap();
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &sleeper(1))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    let [pid] = root.payloads()[..] else { panic!("one process") };
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let files: Vec<_> = files.split_whitespace().take(2).collect();
    assert_eq!(files, ["77", &hard], "the soft limit is set, the hard limit unchanged");
}
