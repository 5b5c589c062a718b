//! Simulated nodes: fast, and faulty on demand.

use std::collections::BTreeSet;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::{ObservedState, ProcessStatus, RetryClass};
use chancery_executor::Orchestrator;
use chancery_executor::simulated::{FaultRules, SimulatedOrchestrator, SimulatedWorld};

use crate::world::{command, id, sleeper, until};

pub(crate) async fn a_hundred_thousand_ensures_are_all_reported_ready() {
    let simulated = SimulatedOrchestrator::new(SimulatedWorld::shared(FaultRules::default()));
    let spec = sleeper(1);
    for position in 1..=100_000 {
        simulated.carry_out(command(id(position), 1, CommandEffect::Ensure, &spec)).await;
    }
    let mut ready = BTreeSet::new();
    while ready.len() < 100_000 {
        let reports = simulated.changes(1000).await.unwrap();
        assert!(!reports.is_empty(), "{} are ready, and nothing changes", ready.len());
        let are_ready =
            reports.iter().filter(|report| matches!(report.observed, ObservedState::Ready { .. }));
        ready.extend(are_ready.map(|report| report.object));
    }
}

type StateCheck = fn(&ObservedState) -> bool;

pub(crate) async fn coordinates_select_behaviour() {
    let simulated = SimulatedOrchestrator::new(SimulatedWorld::shared(FaultRules::default()));
    let cases: [(&str, StateCheck); 8] = [
        ("delay:30ms", |observed| matches!(observed, ObservedState::Ready { .. })),
        ("fail", |observed| matches!(observed, ObservedState::Failed { retry: RetryClass::Permanent, .. })),
        ("fail:retry", |observed| {
            matches!(observed, ObservedState::Failed { retry: RetryClass::Retryable, .. })
        }),
        (
            "crash:3@20ms",
            |observed| matches!(observed, ObservedState::Ended { processes, .. } if processes[0].status == ProcessStatus::Exited { code: 3 }),
        ),
        ("never-ready", |observed| matches!(observed, ObservedState::Started { .. })),
        (
            "partial",
            |observed| matches!(observed, ObservedState::Started { processes } if processes[0].status == ProcessStatus::Ready),
        ),
        ("late", |observed| matches!(observed, ObservedState::Failed { retry: RetryClass::Retryable, .. })),
        (
            "nonsense",
            |observed| matches!(observed, ObservedState::Failed { message, .. } if message.contains("nonsense")),
        ),
    ];
    for (position, (behaviour, then)) in (1..).zip(cases) {
        let mut spec = sleeper(2);
        spec.payloads[0].coordinates.insert("simulate".parse().unwrap(), behaviour.to_owned());
        simulated.carry_out(command(id(position), 1, CommandEffect::Ensure, &spec)).await;
        let first = simulated.changes(1);
        if behaviour == "late" {
            let reports = first.await.unwrap();
            assert!(then(&reports[0].observed), "{behaviour}: {reports:?}");
            let again = chancery_events::protocol::Command {
                attempt: 2,
                ..command(id(position), 1, CommandEffect::Ensure, &spec)
            };
            simulated.carry_out(again).await;
            until(&simulated, id(position), "it had succeeded", |r| {
                matches!(r.observed, ObservedState::Ready { .. })
            })
            .await;
        } else {
            drop(first);
            until(&simulated, id(position), behaviour, |report| then(&report.observed)).await;
        }
    }
}
