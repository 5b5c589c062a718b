//! Unwritable logs, which end nothing.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::Path;

use chancery_events::fact::CommandEffect;
use chancery_events::observation::{IncarnationExit, ObservedState, ProcessStatus};
use chancery_executor::Orchestrator as _;
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::Signal;

use crate::world::{
    TestRoot, command, id, is_ended, is_ready, kill, payload, sleeper, spec, until, wait_until,
};

/// Replaces a supervisor's log by one on which every write fails, at the latest when the result is dropped.
fn break_log(log: &Path, is_full: bool) -> Option<File> {
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    if is_full {
        symlink("/dev/full", log).unwrap();
        return None;
    }
    mkfifoat(CWD, log, Mode::RUSR | Mode::WUSR).unwrap();
    Some(OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(log).unwrap())
}

pub(crate) async fn what_replaces_its_log_keeps_no_supervisor_from_its_work() {
    let root = TestRoot::new();
    let processes = root.open().await;
    for position in 1..=2 {
        let log = root.incarnation_directory(id(position)).join("supervisor.log");
        if position == 1 {
            // The pipe has no reader.
            drop(break_log(&log, false));
        } else {
            std::fs::create_dir_all(&log).unwrap();
        }
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &sleeper(1))).await;
        until(&processes, id(position), "it is ready", is_ready).await;
    }
}

pub(crate) async fn a_supervisor_whose_log_cannot_be_written_continues_and_reports_the_end() {
    let root = TestRoot::new();
    let processes = root.open().await;
    let job = spec(vec![payload("web", 1, &["sh", "-c", "while [ ! -e go ]; do sleep 0.01; done"])]);
    // A full file system, and a pipe without a reader; a job that ends, and a process that is killed.
    for position in 1..=4 {
        let directory = root.incarnation_directory(id(position));
        let reader = break_log(&directory.join("supervisor.log"), position % 2 == 1);
        processes.carry_out(command(id(position), 1, CommandEffect::Ensure, &job)).await;
        let ready = until(&processes, id(position), "it is ready", is_ready).await;
        let ObservedState::Ready { processes: running } = ready.observed else { unreachable!() };
        drop(reader);
        let socket = directory.join("supervisor.sock");
        std::fs::remove_file(&socket).unwrap();
        let supervisors = || {
            let named = format!("{}", id(position));
            root.supervisors().into_iter().filter(move |pid| {
                std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains(&named)
            })
        };
        wait_until("the supervisor has written to its log", || socket.exists() || supervisors().count() == 0);
        assert_eq!(supervisors().count(), 1, "it continues without a log");
        let wanted = if position <= 2 {
            std::fs::write(directory.join("web-0/work/go"), "").unwrap();
            ProcessStatus::Exited { code: 0 }
        } else {
            // The process itself, not a child, whose pid may be lower.
            kill(running[0].pid.unwrap().cast_signed(), Signal::KILL);
            ProcessStatus::Signaled { signal: 9 }
        };
        let ended = until(&processes, id(position), "its end is reported", is_ended).await;
        let ObservedState::Ended { exit, processes: ended } = ended.observed else { unreachable!() };
        assert_eq!(ended[0].status, wanted);
        assert_eq!(exit == IncarnationExit::Clean, position <= 2, "{exit:?}");
    }
}
