//! Output of real processes.

use std::num::{NonZeroU16, NonZeroU64};
use std::path::PathBuf;

use chancery_events::fact::CommandEffect;
use chancery_events::id::IncarnationId;
use chancery_events::protocol::IncarnationSpec;
use chancery_executor::Orchestrator;
use chancery_executor::logs::LogStream;
use chancery_executor::process::{OutputLimits, OutputReader, ProcessOrchestrator, log_files};
use rustix::process::Signal;

use crate::world::{
    TestRoot, command, config, id, is_ended, is_ready, kill, payload, spec, until, wait_until,
};

async fn open(root: &TestRoot, file_bytes: u64, files: u16) -> ProcessOrchestrator {
    let output = OutputLimits {
        max_file_bytes: NonZeroU64::new(file_bytes).unwrap(),
        max_files: NonZeroU16::new(files).unwrap(),
    };
    ProcessOrchestrator::open(chancery_executor::process::ProcessConfig { output, ..config(root.path()) })
        .await
        .unwrap()
}

fn shell(script: &str) -> IncarnationSpec {
    spec(vec![payload("web", 1, &["sh", "-c", &script.replace('$', "$$")])])
}

fn base(root: &TestRoot, id: IncarnationId, stream: LogStream) -> PathBuf {
    let logs = log_files(root.path(), id).unwrap();
    logs.into_iter().find(|log| log.name.stream == stream).expect("it has output").base
}

/// Returns numbers as `seq` writes them.
fn numbers(first: u32, last: u32) -> String {
    (first..=last).flat_map(|number| [number.to_string(), "\n".to_owned()]).collect()
}

fn rest(reader: &mut OutputReader, text: &mut String) {
    loop {
        let bytes = reader.read(1 << 20).unwrap();
        if bytes.is_empty() {
            return;
        }
        text.push_str(std::str::from_utf8(&bytes).unwrap());
    }
}

fn bytes_in(root: &TestRoot, id: IncarnationId) -> u64 {
    let entries = std::fs::read_dir(root.incarnation_directory(id)).unwrap();
    let outputs =
        entries.map(|entry| entry.unwrap()).filter(|e| e.file_name().to_str().unwrap().starts_with("web-0."));
    outputs.map(|entry| entry.metadata().unwrap().len()).sum()
}

pub(crate) async fn a_flood_is_bounded_and_its_end_is_kept() {
    let root = TestRoot::new();
    let processes = open(&root, 64 << 10, 3).await;
    let spec = shell("seq 1 1000000; echo the end >&2");
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &spec)).await;
    until(&processes, id(1), "it has written and ended", is_ended).await;
    let mut text = String::new();
    rest(&mut OutputReader::last(&base(&root, id(1), LogStream::Out), u64::MAX).unwrap(), &mut text);
    let numbers: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.last(), Some(&1_000_000), "the output is complete when the end is reported");
    assert!(numbers.is_sorted_by(|a, b| b - a == 1), "whole lines, none missing in between");
    assert!(text.len() > 2 * (64 << 10) - 16, "at least two files are full, {} bytes", text.len());
    assert!(bytes_in(&root, id(1)) <= 3 * (64 << 10) + 16, "{} bytes", bytes_in(&root, id(1)));
    let mut error_output = String::new();
    rest(&mut OutputReader::last(&base(&root, id(1), LogStream::Err), 1).unwrap(), &mut error_output);
    assert_eq!(error_output, "the end\n");
}

pub(crate) async fn a_follower_reads_every_line_across_files() {
    let root = TestRoot::new();
    let processes = open(&root, 4 << 10, 1000).await;
    let script = "echo 0; while [ ! -e go ]; do sleep 0.01; done; seq 1 100000; exec sleep 3600";
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &shell(script))).await;
    until(&processes, id(1), "it is ready", is_ready).await;
    wait_until("it has written", || !log_files(root.path(), id(1)).unwrap().is_empty());
    let mut reader = OutputReader::last(&base(&root, id(1), LogStream::Out), u64::MAX).unwrap();
    std::fs::write(root.incarnation_directory(id(1)).join("web-0/work/go"), "").unwrap();
    let mut text = String::new();
    wait_until("the last line is read", || {
        rest(&mut reader, &mut text);
        text.ends_with("\n100000\n")
    });
    let wanted = numbers(0, 100_000);
    assert!(text == wanted, "each line occurs once");
}

pub(crate) async fn output_outlives_a_crash_while_its_directory_is_removed() {
    let root = TestRoot::new();
    let processes = open(&root, 64 << 10, 3).await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &shell("echo last words"))).await;
    until(&processes, id(1), "it has ended", is_ended).await;
    drop(processes);
    wait_until("its supervisor has exited", || root.supervisors().is_empty());
    // The directory was moved, and then the executor was killed. tidy: allow(forgotten)
    let forgotten = root.path().join("forgotten");
    std::fs::create_dir(&forgotten).unwrap();
    std::fs::rename(root.incarnation_directory(id(1)), forgotten.join(id(1).to_string())).unwrap();
    let processes = open(&root, 64 << 10, 3).await;
    assert!(processes.list().await.unwrap().is_empty());
    let mut text = String::new();
    rest(&mut OutputReader::last(&base(&root, id(1), LogStream::Out), u64::MAX).unwrap(), &mut text);
    assert_eq!(text, "last words\n");
    wait_until("the rest is removed", || !forgotten.join(id(1).to_string()).exists());
    let mut kept = String::new();
    rest(&mut OutputReader::last(&base(&root, id(1), LogStream::Out), u64::MAX).unwrap(), &mut kept);
    assert_eq!(kept, "last words\n");
}

pub(crate) async fn a_process_outlives_the_supervisor_that_captures_its_output() {
    let root = TestRoot::new();
    let processes = open(&root, 4 << 10, 1000).await;
    // Each step writes more than a pipe's capacity.
    let script = "for step in 1 2; do while [ ! -e go-$step ]; do sleep 0.01; done; seq 1 30000; touch did-$step; \
                  done; exec sleep 3600";
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &shell(script))).await;
    let before = until(&processes, id(1), "it is ready", is_ready).await;
    let work = root.incarnation_directory(id(1)).join("web-0/work");
    drop(processes);
    std::fs::write(work.join("go-1"), "").unwrap();
    wait_until("its supervisor copies output without an executor", || work.join("did-1").exists());
    let out = || {
        let mut text = String::new();
        rest(&mut OutputReader::last(&base(&root, id(1), LogStream::Out), u64::MAX).unwrap(), &mut text);
        text
    };
    let once = numbers(1, 30_000);
    let pipe = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(root.incarnation_directory(id(1)).join("web-0.out.pipe"));
    wait_until("the whole output is copied", || out() == once);
    for supervisor in root.supervisors() {
        kill(supervisor, Signal::KILL);
    }
    wait_until("the supervisor is dead", || root.supervisors().is_empty());
    std::fs::write(work.join("go-2"), "").unwrap();
    let pipe = pipe.unwrap();
    wait_until("the pipe is full", || rustix::io::ioctl_fionread(&pipe).unwrap() > 60_000);
    drop(pipe);
    assert!(out() == once, "without a reader, the process waits");
    assert!(!work.join("did-2").exists());
    let processes = open(&root, 4 << 10, 1000).await;
    let after = until(&processes, id(1), "it is adopted", is_ready).await;
    assert_eq!(after, before);
    wait_until("the process continues", || work.join("did-2").exists());
    wait_until("the whole output is copied", || out() == once.repeat(2));
    processes.carry_out(command(id(1), 2, CommandEffect::Stop, &shell(script))).await;
    until(&processes, id(1), "it is ended", is_ended).await;
    drop(processes);
    wait_until("nothing is left", || root.payloads().is_empty());
}
