use std::time::Duration;

use chancery_events::id::{IncarnationId, Lineage, Position};
use chancery_events::observation::{Exit, Hope, ProcessStatus};
use chancery_events::protocol::{RunSpec, Standing};

use super::super::folder::{End, Started};
use super::super::{KeeperProgram, OutputLimits};
use super::*;
use crate::plan::Order;

fn wanted(aim: Aim, restart: Restart) -> Wanted {
    let grace = Duration::ZERO;
    let spec = RunSpec {
        replica: "web-1".parse().unwrap(),
        plan: "web".parse().unwrap(),
        node: "n1".parse().unwrap(),
        restart,
        labels: Box::default(),
        payloads: vec![],
    };
    Wanted {
        incarnation: IncarnationId::issue(Lineage::from_random(42), Position::FIRST),
        order: Order { revision: 3, attempt: 1, aim, standing: Standing::Open, grace },
        spec: Some(spec),
        program: KeeperProgram { program: "x".into(), keeper_args: vec![], trampoline_args: vec![] },
        output: OutputLimits::default(),
        cgroup: None,
        files: None,
        boot: None,
        volumes: None,
    }
}

fn record(boot: &str, machine: Option<&str>, phase: Phase, ends: &[Option<Cause>]) -> Record {
    let started = |(index, cause): (usize, &Option<Cause>)| Started {
        payload: "web".parse().unwrap(),
        index: index as u16,
        pid: 7,
        start_time: 7,
        group: None,
        addresses: vec![],
        end: cause.map(|cause| End {
            status: ProcessStatus::Unknown,
            cause,
            hits: super::super::group::LimitHits::default(),
        }),
    };
    let processes = ends.iter().enumerate().map(started).collect();
    let (boot, machine) = (boot.into(), machine.map(str::to_owned));
    let (pid_namespace, ancestors, group, directory) = (1, vec![], None, None);
    let started_before = None;
    Record { boot, machine, directory, pid_namespace, ancestors, group, started_before, phase, processes }
}

fn boot(machine: Option<&str>) -> Boot {
    Boot { id: "now".into(), machine: machine.map(str::to_owned) }
}

#[test]
fn what_was_cut_off_and_is_always_to_run_is_started_again_where_it_ran() {
    use Aim::{Down, Removed, Up};
    use Cause::{Asked, GoingDown, Itself};
    use Next::{Again, LookAfter};
    use Restart::{Always, BestEffort, Never};
    const RUNS: &[Option<Cause>] = &[None, None];
    let ended = || Phase::Ended { exit: Exit::Clean };
    let failed = || Phase::Failed { message: "no".into(), hope: Hope::Retry };
    let cases = [
        // Goal, rule, boot of the record, phase, ends, action, reason.
        (Up, Always, "then", Phase::Started, RUNS, Again, "it ran, and the reboot alone ended it"),
        (Up, Always, "then", Phase::Recorded, RUNS, Again, "it may have run"),
        (Up, Always, "then", Phase::Again, RUNS, Again, "another reboot came before it was started"),
        (Up, Always, "now", Phase::Again, RUNS, Again, "a crash came before it was started"),
        (Up, Always, "now", Phase::Started, RUNS, LookAfter, "there was no reboot"),
        (Up, Always, "now", Phase::Recorded, RUNS, LookAfter, "there was no reboot"),
        (Up, BestEffort, "then", Phase::Started, RUNS, LookAfter, "its plan does not say always"),
        (Up, Never, "then", Phase::Started, RUNS, LookAfter, "its plan says never"),
        (Up, Never, "now", Phase::Again, RUNS, LookAfter, "nor does it any more"),
        (Down, Always, "then", Phase::Started, RUNS, LookAfter, "it was being stopped"),
        (Removed, Always, "then", Phase::Started, RUNS, LookAfter, "it was being removed"),
        (Down, Always, "now", Phase::Again, RUNS, LookAfter, "it was stopped meanwhile"),
        (Up, Always, "then", ended(), RUNS, LookAfter, "it had ended"),
        (Up, Always, "then", failed(), RUNS, LookAfter, "it had never run"),
        (Up, Always, "then", Phase::Started, &[Some(Itself), None], LookAfter, "it was ending by itself"),
        (
            Up,
            Always,
            "then",
            Phase::Started,
            &[Some(Itself), Some(Asked)],
            LookAfter,
            "it had ended by itself",
        ),
        (Up, Always, "then", Phase::Recorded, &[Some(Asked), None], LookAfter, "its start was failing"),
        (Up, Always, "then", Phase::Started, &[Some(GoingDown), None], Again, "the machine was going down"),
        (
            Up,
            Always,
            "then",
            Phase::Started,
            &[Some(Asked), Some(GoingDown)],
            Again,
            "and its sibling with it",
        ),
        (
            Up,
            Always,
            "then",
            Phase::Started,
            &[Some(GoingDown), Some(Itself)],
            LookAfter,
            "not all went down with it",
        ),
        (Up, Always, "now", Phase::Started, &[Some(GoingDown)], LookAfter, "the machine did not go down"),
    ];
    for (aim, rule, recorded, phase, ends, then, because) in cases {
        let record = record(recorded, Some("here"), phase, ends);
        let wanted = wanted(aim, rule);
        let told = next(Some(&wanted), None, &record, &boot(Some("here")));
        assert_eq!(told, then, "{because}: {aim:?} {rule} {record:?}");
    }
    let wanted = wanted(Up, Always);
    let on = |tombstone: Option<u32>, from: Option<&str>, here: Option<&str>| {
        let record = record("then", from, Phase::Started, RUNS);
        next(Some(&wanted), tombstone.map(|revision| Tombstone { revision }), &record, &boot(here))
    };
    let here = Some("here");
    assert_eq!(on(Some(2), here, here), Again, "the tombstone speaks of lower revisions");
    assert_eq!(on(Some(3), here, here), LookAfter, "it is buried");
    assert_eq!(on(None, Some("elsewhere"), here), LookAfter, "it may run there: this is a copy");
    assert_eq!(on(None, None, here), LookAfter, "an earlier build did not say where it ran");
    assert_eq!(on(None, None, None), LookAfter, "this may be any machine");
    let record = record("then", here, Phase::Started, RUNS);
    assert_eq!(next(None, None, &record, &boot(here)), LookAfter, "nobody knows what it was");
}
