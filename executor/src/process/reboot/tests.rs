use std::time::Duration;

use chancery_events::id::{IncarnationId, Lineage, Position};
use chancery_events::observation::{IncarnationExit, ProcessStatus, RetryClass};
use chancery_events::protocol::{CommandStatus, IncarnationSpec, RunLabels};

use super::super::incarnation_dir::{ProcessEnd, StartedProcess};
use super::super::{OutputLimits, SupervisorProgram};
use super::*;
use crate::reconcile::ObjectTarget;

fn wanted(aim: TargetGoal, restart: RestartPolicy) -> SpecFile {
    let grace = Duration::ZERO;
    let spec = IncarnationSpec {
        replica: "web-1".parse().unwrap(),
        plan: "web".parse().unwrap(),
        node: "n1".parse().unwrap(),
        restart,
        labels: Box::new(RunLabels {
            namespace: "ns".parse().unwrap(),
            service: "web".parse().unwrap(),
            labels: std::collections::BTreeMap::new(),
            deployment: "d1".parse().unwrap(),
            domain: None,
            zone: None,
            node_labels: None,
        }),
        payloads: vec![],
    };
    SpecFile {
        incarnation: IncarnationId::issue(Lineage::from_random(42), Position::FIRST),
        order: ObjectTarget {
            revision: 3,
            attempt: 1,
            aim,
            is_reboot: false,
            status: CommandStatus::Pending,
            grace,
        },
        spec: Some(spec),
        program: SupervisorProgram { program: "x".into(), supervisor_args: vec![], trampoline_args: vec![] },
        output: OutputLimits::default(),
        cgroup: None,
        files: None,
        qemu: None,
        boot: None,
        volumes: "volumes".into(),
    }
}

fn record(
    boot: &str,
    machine: Option<&str>,
    phase: StartPhase,
    ends: &[Option<ProcessEndCause>],
) -> ProcessesFile {
    let started = |(index, cause): (usize, &Option<ProcessEndCause>)| StartedProcess {
        payload: "web".parse().unwrap(),
        index: index as u16,
        pid: 7,
        start_time: 7,
        group: None,
        addresses: vec![],
        guest: None,
        end: cause.map(|cause| ProcessEnd {
            status: ProcessStatus::Unknown,
            cause,
            hits: super::super::cgroup::LimitHits::default(),
        }),
    };
    let processes = ends.iter().enumerate().map(started).collect();
    let (boot, machine) = (boot.into(), machine.map(str::to_owned));
    let (pid_namespace, ancestors, group, directory) = (1, vec![], None, None);
    let started_before = None;
    ProcessesFile {
        boot,
        machine,
        directory,
        pid_namespace,
        ancestors,
        group,
        started_before,
        phase,
        processes,
    }
}

fn boot(machine: Option<&str>) -> BootId {
    BootId { id: "now".into(), machine: machine.map(str::to_owned) }
}

#[test]
fn what_was_cut_off_and_is_always_to_run_is_started_again_where_it_ran() {
    use ProcessEndCause::{Asked, GoingDown, Itself};
    use RestartPolicy::{Always, Never, OnFailure};
    use TargetGoal::{Down, Removed, Up};
    const RUNS: &[Option<ProcessEndCause>] = &[None, None];
    let ended = || StartPhase::Ended { exit: IncarnationExit::Clean };
    let failed = || StartPhase::Failed { message: "no".into(), retry: RetryClass::Retryable };
    let cases = [
        // Goal, rule, boot of the record, phase, ends, whether it is restarted, reason.
        (Up, Always, "then", StartPhase::Started, RUNS, true, "it ran, and the reboot alone ended it"),
        (Up, Always, "then", StartPhase::Recorded, RUNS, true, "it may have run"),
        (Up, Always, "then", StartPhase::Again, RUNS, true, "another reboot before the restart"),
        (Up, Always, "now", StartPhase::Again, RUNS, true, "a crash before the restart"),
        (Up, Always, "now", StartPhase::Started, RUNS, false, "there was no reboot"),
        (Up, Always, "now", StartPhase::Recorded, RUNS, false, "there was no reboot"),
        (Up, OnFailure, "then", StartPhase::Started, RUNS, false, "its plan has another rule"),
        (Up, Never, "then", StartPhase::Started, RUNS, false, "its plan has the rule never"),
        (Up, Never, "now", StartPhase::Again, RUNS, false, "its plan now has the rule never"),
        (Down, Always, "then", StartPhase::Started, RUNS, false, "it was being stopped"),
        (Removed, Always, "then", StartPhase::Started, RUNS, false, "it was being removed"),
        (Down, Always, "now", StartPhase::Again, RUNS, false, "it was stopped meanwhile"),
        (Up, Always, "then", ended(), RUNS, false, "it had ended"),
        (Up, Always, "then", failed(), RUNS, false, "it had never run"),
        (
            Up,
            Always,
            "then",
            StartPhase::Started,
            &[Some(Itself), None],
            false,
            "it was ending automatically",
        ),
        (
            Up,
            Always,
            "then",
            StartPhase::Started,
            &[Some(Itself), Some(Asked)],
            false,
            "it had ended automatically",
        ),
        (Up, Always, "then", StartPhase::Recorded, &[Some(Asked), None], false, "its start was failing"),
        (
            Up,
            Always,
            "then",
            StartPhase::Started,
            &[Some(GoingDown), None],
            true,
            "the machine was going down",
        ),
        (
            Up,
            Always,
            "then",
            StartPhase::Started,
            &[Some(Asked), Some(GoingDown)],
            true,
            "its sibling ended with the machine",
        ),
        (
            Up,
            Always,
            "then",
            StartPhase::Started,
            &[Some(GoingDown), Some(Itself)],
            false,
            "one process ended before the machine",
        ),
        (Up, Always, "now", StartPhase::Started, &[Some(GoingDown)], false, "the machine did not go down"),
    ];
    for (aim, rule, recorded, phase, ends, then, because) in cases {
        let record = record(recorded, Some("here"), phase, ends);
        let wanted = wanted(aim, rule);
        let is_restarted = must_restart(Some(&wanted), None, &record, &boot(Some("here")));
        assert_eq!(is_restarted, then, "{because}: {aim:?} {rule} {record:?}");
    }
    let wanted = wanted(Up, Always);
    let on = |tombstone: Option<u32>, from: Option<&str>, here: Option<&str>| {
        let record = record("then", from, StartPhase::Started, RUNS);
        must_restart(
            Some(&wanted),
            tombstone.map(|revision| TombstoneFile { revision }),
            &record,
            &boot(here),
        )
    };
    let here = Some("here");
    assert!(on(Some(2), here, here), "the tombstone covers lower revisions only");
    assert!(!on(Some(3), here, here), "the tombstone covers it");
    assert!(!on(None, Some("elsewhere"), here), "this is a copy: the original may run");
    assert!(!on(None, None, here), "the recorded machine is unknown");
    assert!(!on(None, None, None), "this may be any machine");
    let record = record("then", here, StartPhase::Started, RUNS);
    assert!(!must_restart(None, None, &record, &boot(here)), "the spec is unknown");
}
