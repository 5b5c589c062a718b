//! Requirements of orchestrators for the output of processes.

use std::time::{Duration, SystemTime};

use chancery_events::fact::CommandEffect;
use chancery_events::id::IncarnationId;
use tokio::task::block_in_place;

use super::reader::{OrchestratorClient, PATIENCE};
use super::{OrchestratorUnderTest, OutputAccess, TestBehaviour, is_ready};
use chancery_executor::logs::{LogOutput, LogReader, LogSource, LogStart, LogStream};
use chancery_executor::orchestrator::Orchestrator as _;

pub(super) async fn what_is_written_is_read<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
    never: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Writes, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.until(id, 1, "it is ready", is_ready).await;
    let logs = reader.orchestrator.logs();
    assert!(outputs(&*logs, never).is_empty(), "an incarnation that never ran has no output");
    match subject.output() {
        OutputAccess::None => assert!(outputs(&*logs, id).is_empty(), "there is no output"),
        OutputAccess::Console => a_console_is_followed(&*logs, id).await,
        access @ (OutputAccess::Kept | OutputAccess::UntilEnd) => {
            let all = LogStart::default();
            let mut followed = until_open(&*logs, id, LogStream::Out, all).await;
            read_until(&mut *followed, "one\ntwo\n").await;
            assert_eq!(rest(&mut *followed), "", "a reader at the end returns nothing");
            let names: Vec<_> = outputs(&*logs, id).iter().map(|output| output.name().clone()).collect();
            let count = if access == OutputAccess::Kept { 2 } else { 1 };
            assert!(names.is_sorted() && names.len() == count, "{names:?}");
            if access == OutputAccess::Kept {
                read_until(&mut *until_open(&*logs, id, LogStream::Err, all).await, "oh\n").await;
            }
            let future = SystemTime::now() + Duration::from_hours(1);
            for (start, wanted) in [
                (LogStart { tail: Some(0), since: None }, ""),
                (LogStart { tail: Some(1), since: None }, "two\n"),
                (LogStart { tail: Some(9), since: Some(SystemTime::UNIX_EPOCH) }, "one\ntwo\n"),
                (LogStart { tail: None, since: Some(future) }, ""),
                (LogStart { tail: Some(9), since: Some(future) }, ""),
            ] {
                let text = rest(&mut *until_open(&*logs, id, LogStream::Out, start).await);
                assert_eq!(text, wanted, "{start:?}");
            }
        }
    }
    reader.end(id, 2, &spec).await;
    let reader = reader.restart(subject).await;
    let logs = reader.orchestrator.logs();
    match subject.output() {
        OutputAccess::None | OutputAccess::UntilEnd => {
            assert!(outputs(&*logs, id).is_empty(), "no output was kept");
        }
        OutputAccess::Kept => {
            let mut kept = until_open(&*logs, id, LogStream::Out, LogStart::default()).await;
            read_until(&mut *kept, "one\ntwo\n").await;
        }
        OutputAccess::Console => {
            let mut kept = until_open(&*logs, id, LogStream::Out, LogStart::default()).await;
            let text = rest(&mut *kept);
            assert!(text.starts_with("READY"), "the output was kept: {text}");
        }
    }
}

/// A console is read while the guest writes.
async fn a_console_is_followed(logs: &dyn LogSource, id: IncarnationId) {
    let mut followed = until_open(logs, id, LogStream::Out, LogStart::default()).await;
    let mut text = String::new();
    let followed = async {
        // A whole line after the first one.
        while text.matches('\n').count() < 2 {
            text += &rest(&mut *followed);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, followed).await;
    assert!(text.starts_with("READY"), "{text:?}, {in_time:?}");
    let last = LogStart { tail: Some(1), since: None };
    let last = rest(&mut *until_open(logs, id, LogStream::Out, last).await);
    assert!(!last.starts_with("READY"), "the last line alone: {last:?}");
    let future = SystemTime::now() + Duration::from_hours(1);
    let future = LogStart { tail: None, since: Some(future) };
    assert_eq!(rest(&mut *until_open(logs, id, LogStream::Out, future).await), "");
}

fn outputs(logs: &dyn LogSource, id: IncarnationId) -> Vec<Box<dyn LogOutput>> {
    block_in_place(|| logs.outputs(id)).expect("outputs can be listed")
}

async fn until_open(
    logs: &dyn LogSource,
    id: IncarnationId,
    stream: LogStream,
    start: LogStart,
) -> Box<dyn LogReader> {
    let opened = async {
        loop {
            let all = outputs(logs, id);
            if let Some(output) = all.iter().find(|output| output.name().stream == stream) {
                return output.open(start).expect("an output can be opened");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, opened).await.expect("there is an output")
}

/// Reads until exactly `wanted` was written.
async fn read_until(reader: &mut dyn LogReader, wanted: &str) {
    let mut text = String::new();
    let written = async {
        while text.len() < wanted.len() {
            text += &rest(reader);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, written).await;
    assert_eq!(text, wanted, "{in_time:?}");
}

/// Reads the output available now.
fn rest(reader: &mut dyn LogReader) -> String {
    let mut text = String::new();
    while block_in_place(|| reader.next_time()).expect("it can be read").is_some() {
        let (_, bytes) = block_in_place(|| reader.read_block(3)).expect("it can be read");
        text += str::from_utf8(&bytes).expect("text");
    }
    text
}
