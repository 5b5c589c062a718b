//! W14: starts of process incarnations with a control group each, and without: from the command to the first
//! report that all processes are ready. Both alternate, and each incarnation is a single process.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_events::fact::CommandEffect;
use chancery_events::id::{IncarnationId, Lineage, Position};
use chancery_events::observation::ObservedState;
use chancery_events::protocol::{Command, CommandStatus, IncarnationSpec};
use chancery_executor::Orchestrator as _;
use chancery_executor::process::{
    CgroupSetting, CgroupSupport, EndProof, OutputLimits, ProcessConfig, ProcessOrchestrator,
    SupervisorProgram,
};
use serde_json::json;

use crate::table::{CellResult, ResultRow, ValueBar};

/// Number of starts of each kind.
const STARTS: usize = 200;
/// Maximum additional time of a start with a group, in milliseconds at the median.
const MORE_MS: f64 = 2.0;

fn config(root: PathBuf, cgroup: CgroupSetting) -> Result<ProcessConfig> {
    let program =
        std::env::var_os("CHANCERY_BIN").context("CHANCERY_BIN names the program: use bench/run")?;
    let program = SupervisorProgram {
        program: program.into(),
        supervisor_args: vec!["supervisor".into()],
        trampoline_args: vec!["trampoline".into()],
    };
    Ok(ProcessConfig {
        root,
        program,
        output: OutputLimits::default(),
        cgroup,
        files: None,
        qemu: None,
        boot: None,
    })
}

fn command(id: IncarnationId, revision: u32, effect: CommandEffect, spec: &IncarnationSpec) -> Command {
    Command {
        object: id.into(),
        revision,
        attempt: 1,
        status: CommandStatus::Pending,
        effect,
        grace: Duration::from_secs(5),
        spec: spec.clone().into(),
        traceparent: None,
    }
}

/// Sends a command, and waits for the report of its completion.
async fn carried_out(
    processes: &ProcessOrchestrator,
    command: Command,
    is_done: impl Fn(&ObservedState) -> bool,
) -> Result<Duration> {
    let (object, began) = (command.object, Instant::now());
    processes.carry_out(command).await;
    loop {
        let changes = tokio::time::timeout(Duration::from_secs(30), processes.changes(100));
        for report in changes.await.context("no report")??.into_iter().filter(|r| r.object == object) {
            match report.observed {
                ObservedState::Failed { message, .. } => bail!("{message}"),
                observed if is_done(&observed) => return Ok(began.elapsed()),
                _ => {}
            }
        }
    }
}

async fn starts() -> Result<ResultRow> {
    ensure!(
        matches!(CgroupSupport::detect(&CgroupSetting::Detect)?.proof, EndProof::Cgroup(_)),
        "this host has no control group that can be used"
    );
    let payload = json!({
        "name": "web", "processes": 1, "memory": null, "ports": [], "coordinates": {}, "ready": null, "mounts": [],
        "run": {"argv": ["sleep", "3600"], "env": {}},
    });
    let spec = json!({
        "replica": "web-1", "plan": "web", "node": "n1", "restart": "never", "payloads": [payload],
        "labels": {"namespace": "bench", "deployment": "d1"},
    });
    let spec: IncarnationSpec = serde_json::from_value(spec)?;
    let directory = crate::directory()?;
    let kinds = [("with", CgroupSetting::Detect), ("without", CgroupSetting::Off)];
    let mut opened = Vec::new();
    for (name, cgroup) in kinds {
        opened.push(ProcessOrchestrator::open(config(directory.path().join(name), cgroup)?).await?);
    }
    let mut took = [Vec::with_capacity(STARTS), Vec::with_capacity(STARTS)];
    for position in 1..=STARTS {
        for (processes, took) in opened.iter().zip(&mut took) {
            let id = IncarnationId::issue(Lineage::from_random(14), Position::new(position as u64));
            let start = command(id, 1, CommandEffect::Ensure, &spec);
            took.push(
                carried_out(processes, start, |observed| matches!(observed, ObservedState::Ready { .. }))
                    .await?,
            );
            let kill = command(id, 2, CommandEffect::Kill, &spec);
            carried_out(processes, kill, |observed| matches!(observed, ObservedState::Ended { .. })).await?;
            processes.forget(id.into()).await;
        }
    }
    let [with, without] = took.map(|took| {
        let all = took.iter().sum();
        CellResult::of(took, all)
    });
    let more = with.p50_ms - without.p50_ms;
    let row = ResultRow::new("W14", format!("{STARTS} starts, each with a group"), with)
        .compared_with("without", without);
    Ok(row.check("milliseconds more, p50", more, ValueBar::Below(MORE_MS)))
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(vec![runtime.block_on(starts())?])
}
