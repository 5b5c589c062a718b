//! `GET …/incarnations/{id}/logs`: output of processes, as returned by the orchestrators that ran them.
//!
//! Several outputs are merged by time, as precisely as the index of times allows. A line names the output
//! where it changes, as in `tail`, or on request each line is marked. A single output is unchanged.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::Response;
use chancery_events::id::IncarnationId;
use chancery_events::name::{ClusterName, PayloadName};
use chancery_events::spec::ClusterRuntime;
use chancery_events::text::counted;
use chancery_events::time::{Time, parse_span};
use chancery_executor::console::ConsoleSource;
use chancery_executor::logs::{
    LogOutput, LogReader, LogSource, LogStart, LogStream, NoLogSource, OutputName,
};
use chancery_projector::RowKey;
use chancery_projector::rows::{ClusterRow, IncarnationRow, IncarnationStatus, Reachability};

use super::FleetApi;
use super::budget::SMALL;
use super::follower::admit;
use super::middleware::{RoutedRequest, TEXT, with_type};
use super::problem::{BUSY, GONE, NOT_FOUND, ProblemDetails, ProblemKind, RequestPart, parsed};
use super::query::QueryParams;
use super::read::{in_turn, missing};

/// Bytes read at one time.
const CHUNK: usize = 64 << 10;
/// Maximum number of outputs that a request reads.
const OUTPUTS: usize = 256;
/// Maximum bytes of a line that is marked as one; the rest of a longer line is marked as another.
const LINE: usize = 16 << 10;
/// Interval at which outputs are checked.
const POLL: Duration = Duration::from_millis(200);

/// Source of the output of incarnations' processes, and of their consoles.
pub trait ClusterLogSource: LogSource + ConsoleSource {
    /// Whether the output of the cluster's processes is stored here.
    fn keeps(&self, cluster: &ClusterName) -> bool;
}

impl ClusterLogSource for NoLogSource {
    fn keeps(&self, _cluster: &ClusterName) -> bool {
        false
    }
}

/// Answers a request for logs.
pub(super) async fn read(
    app: &Arc<FleetApi>,
    call: &RoutedRequest,
    mut params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    let id = parsed(RequestPart::Path, "id", call.found.param("id").unwrap_or_default())?;
    let payload = params.parsed::<PayloadName>("payload")?;
    let process = params.number("process")?;
    let stream = match params.take("stream")?.as_deref() {
        None => None,
        Some("out") => Some(LogStream::Out),
        Some("err") => Some(LogStream::Err),
        Some(_) => return Err(ProblemDetails::query("stream", "must be out or err")),
    };
    let tail = params.number("tail")?;
    let since = params.take("since")?.map(|text| read_since(&text)).transpose()?;
    let follow = params.flag("follow")?.unwrap_or(false);
    let marks = if params.flag("marked")?.unwrap_or(false) { LogMarks::Lines } else { LogMarks::Changes };
    params.end(&["payload", "process", "stream", "tail", "since", "follow", "marked"])?;
    let follower = follow.then(|| admit(app, "follow log")).transpose()?;
    let logs = app.logs.clone();
    let outputs = in_turn(&app.hub.readers, "find logs", move || logs.outputs(id)).await?;
    let mut outputs = outputs.map_err(|error| ProblemDetails::internal("find logs", &error))?;
    let kept: Vec<_> = outputs.iter().map(|output| output.name().clone()).collect();
    outputs.retain(|output| {
        let name = output.name();
        payload.as_ref().is_none_or(|payload| name.payload == *payload)
            && process.is_none_or(|process| u64::from(name.index) == process)
            && stream.is_none_or(|stream| name.stream == stream)
    });
    if outputs.is_empty() {
        return Err(silence(app, call, id, &kept).await);
    }
    if outputs.len() > OUTPUTS {
        let detail = format!(
            "{} outputs match, at most {OUTPUTS} allowed: name a payload or a process",
            outputs.len()
        );
        return Err(ProblemDetails::query("payload", detail));
    }
    // Lines without an end yet are kept.
    let kept = if marks == LogMarks::Lines { outputs.len() * LINE } else { 0 };
    let busy = || {
        ProblemDetails::new(
            BUSY,
            format!("cannot read {}: too many answers are being sent", counted(outputs.len(), "output")),
        )
    };
    let reserved =
        if kept > SMALL { Some(app.common.answers.try_reserve(kept).ok_or_else(busy)?) } else { None };
    let open = in_turn(&app.hub.readers, "open logs", move || {
        let start = LogStart { tail, since };
        let labels = labels(&outputs, marks);
        let last = if follow { OpenLine::Waits } else { OpenLine::Ends };
        let open = outputs.iter().zip(labels);
        let open = open.map(|(output, label)| OpenLog::begin(output.as_ref(), label, start, marks)).collect();
        OpenOutputs { open, last, looked: Instant::now() }
    });
    let open = open.await?;
    if let Some(error) = open.nothing_can_be_read() {
        return Err(ProblemDetails::internal("open logs", error));
    }
    Ok(response(app, open, marks, (follower, reserved)))
}

/// Returns the answer; `held` lives as long as the answer.
fn response(app: &FleetApi, open: OpenOutputs, marks: LogMarks, held: impl Send + 'static) -> Response<Body> {
    let mut closing = app.hub.closing();
    let body = async_stream::stream! {
        let _held = held;
        let follow = open.last == OpenLine::Waits;
        let names = marks == LogMarks::Changes && open.open.len() > 1;
        let mut files = Some(open);
        let mut shown = None;
        loop {
            let Some(mut open) = files.take() else { return };
            let read = tokio::task::spawn_blocking(move || {
                let next = open.next();
                (open, next)
            });
            let Ok((open, next)) = read.await else { return };
            let label = next.as_ref().map(|(at, _)| open.open[*at].label.clone());
            files = Some(open);
            match next {
                Some((at, bytes)) => {
                    if names && shown != Some(at) {
                        let gap = if shown.is_some() { "\n" } else { "" };
                        yield Ok(Bytes::from(format!("{gap}==> {} <==\n", label.unwrap_or_default())));
                        shown = Some(at);
                    }
                    yield Ok::<_, io::Error>(bytes);
                    if follow && *closing.borrow() {
                        return;
                    }
                }
                None if !follow => return,
                None => tokio::select! {
                    _ = closing.wait_for(|closing| *closing) => return,
                    () = tokio::time::sleep(POLL) => {}
                },
            }
        }
    };
    with_type(TEXT, Body::from_stream(body))
}

/// Returns the problem of missing output. `kept` lists the incarnation's other outputs.
async fn silence(
    app: &FleetApi,
    call: &RoutedRequest,
    id: IncarnationId,
    kept: &[OutputName],
) -> ProblemDetails {
    if !kept.is_empty() {
        let names: Vec<_> = kept.iter().map(ToString::to_string).collect();
        return ProblemDetails::new(
            NOT_FOUND,
            format!("no such output\nhint: available: {}", names.join(", ")),
        );
    }
    let row = match app.reader.get::<IncarnationRow>(&id) {
        Ok(Some(row)) => row,
        Ok(None) => return missing(app, &RowKey::Incarnation(id), call.parts.uri.path()).await,
        Err(error) => return ProblemDetails::internal("read rows", &error),
    };
    let cluster = match app.reader.get::<ClusterRow>(&row.cluster) {
        Ok(cluster) => cluster,
        Err(error) => return ProblemDetails::internal("read rows", &error),
    };
    let (kind, why) = why_silent(&row, cluster.as_ref(), app.logs.keeps(&row.cluster));
    ProblemDetails::new(kind, why)
}

/// Returns the kind and reason of missing output.
///
/// | incarnation | nothing is stored because |
/// |---|---|
/// | reserved | the incarnation was never started |
/// | on simulated nodes | no process runs there |
/// | in a cluster of another server's executor | the output is there; the detail states whether a session is live |
/// | ended, in a Kubernetes cluster | the output was deleted with the pods |
/// | in a Kubernetes cluster of another server's executor | the output is in that cluster: the detail names the pods |
/// | ended | the output was deleted, or never existed |
/// | any other, in a cluster without session | the session must be restored first |
/// | any other | the processes have not been started yet |
fn why_silent(
    row: &IncarnationRow,
    cluster: Option<&ClusterRow>,
    keeps: bool,
) -> (&'static ProblemKind, String) {
    let IncarnationRow { cluster: name, node, state, .. } = row;
    let is_unreachable = row.reachability == Reachability::Unknown;
    let runtime = cluster.map(|cluster| cluster.runtime);
    let why = match state {
        IncarnationStatus::Reserved => {
            format!("the incarnation has not been started yet: it is reserved on node {node}")
        }
        _ if runtime == Some(ClusterRuntime::Simulated) => {
            format!("cluster {name} is simulated: no process on node {node} writes output")
        }
        _ if state.is_over() && runtime == Some(ClusterRuntime::Kubernetes) => {
            let text = format!(
                "the incarnation is {state}, and Kubernetes deletes the output of a pod with the pod"
            );
            return (GONE, text);
        }
        _ if runtime == Some(ClusterRuntime::Kubernetes) && !keeps => {
            let pods: Vec<_> = row.processes.iter().filter_map(|process| process.object.as_ref()).collect();
            let names: Vec<_> = pods.iter().map(|pod| pod.name.as_str()).collect();
            let of = if names.is_empty() { String::new() } else { format!(" of {}", names.join(", ")) };
            format!(
                "cluster {name} is driven by an executor elsewhere: read the output{of} with kubectl logs"
            )
        }
        _ if !keeps && is_unreachable => format!(
            "cluster {name} is driven by an executor elsewhere, which stores the output there and is not connected"
        ),
        _ if !keeps => {
            let executor = cluster.and_then(|cluster| cluster.executor.as_ref());
            let executor =
                executor.map_or_else(|| "an executor".to_owned(), |name| format!("executor {name}"));
            format!(
                "cluster {name} is driven by {executor} elsewhere: the output is stored in the directory of that executor"
            )
        }
        IncarnationStatus::Unwound => {
            "the incarnation is unwound: it has not run, and its message has the reason".to_owned()
        }
        _ if state.is_over() => {
            let text = format!(
                "the incarnation is {state}, and its output is deleted: only that of the newest ended incarnation is kept"
            );
            return (GONE, text);
        }
        _ if is_unreachable => format!(
            "node {node} cannot be reached: no executor of cluster {name} is connected; the server's log has the reason"
        ),
        _ => format!("the processes on node {node} have not been started yet: the incarnation is {state}"),
    };
    (NOT_FOUND, why)
}

/// Distinction between lines of different outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogMarks {
    /// By a line where the output changes.
    Changes,
    /// By a mark on each line.
    Lines,
}

/// Handling of a line that has no end yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenLine {
    /// The line waits for the rest.
    Waits,
    /// The line is complete as it is.
    Ends,
}

/// Parses a duration before now, or a time.
fn read_since(text: &str) -> Result<SystemTime, ProblemDetails> {
    let bad = || {
        ProblemDetails::query("since", "must be a duration as in 5m, or a time as in 2026-11-21T09:00:00Z")
    };
    if let Ok(span) = parse_span(text) {
        return SystemTime::now().checked_sub(span).ok_or_else(bad);
    }
    let time: Time = text.parse().map_err(|_| bad())?;
    let micros = u64::try_from(time.micros()).map_err(|_| bad())?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros)).ok_or_else(bad)
}

/// Returns the marks of the outputs, no longer than needed to distinguish them.
fn labels(outputs: &[Box<dyn LogOutput>], marks: LogMarks) -> Vec<String> {
    let names = || outputs.iter().map(|output| output.name());
    let processes: BTreeSet<_> = names().map(|name| (&name.payload, name.index)).collect();
    let label = |name: &OutputName| match marks {
        LogMarks::Changes => name.to_string(),
        LogMarks::Lines if processes.len() == 1 => format!("{} | ", name.stream),
        LogMarks::Lines => format!("{}-{} {} | ", name.payload, name.index, name.stream),
    };
    names().map(label).collect()
}

/// Open outputs of an answer.
struct OpenOutputs {
    open: Vec<OpenLog>,
    last: OpenLine,
    /// Time at which outputs without new data were last checked.
    looked: Instant,
}

impl OpenOutputs {
    /// Returns the oldest new data with the index of its output; `None` if there is none.
    fn next(&mut self) -> Option<(usize, Bytes)> {
        if self.last == OpenLine::Waits && self.looked.elapsed() >= POLL {
            self.looked = Instant::now();
            self.open.iter_mut().for_each(|open| open.is_at_end = false);
        }
        loop {
            let mut oldest: Option<(u64, usize)> = None;
            for (at, open) in self.open.iter_mut().enumerate() {
                if let Some(time) = open.next_time()
                    && oldest.is_none_or(|(least, _)| time < least)
                {
                    oldest = Some((time, at));
                }
            }
            let Some((_, at)) = oldest else { break };
            if let Some(bytes) = self.open[at].read() {
                return Some((at, bytes));
            }
        }
        if self.last == OpenLine::Waits {
            return None;
        }
        // The line is complete as it is.
        let at = self.open.iter().position(|open| !open.rest.is_empty())?;
        let open = &mut self.open[at];
        Some((at, marked(&open.label, &std::mem::take(&mut open.rest))))
    }

    /// Error of the last output, if no output can be read.
    fn nothing_can_be_read(&self) -> Option<&io::Error> {
        let mut errors = self.open.iter().map(|open| match &open.source {
            LogInput::Broken(error) => Some(error),
            LogInput::Reader(_) | LogInput::Over => None,
        });
        errors.next_back().filter(|_| errors.all(|error| error.is_some())).flatten()
    }
}

/// Input from which an output is read.
enum LogInput {
    Reader(Box<dyn LogReader>),
    /// Output cannot be read; the error will be sent to the client.
    Broken(io::Error),
    /// Output cannot be read; the error was sent to the client.
    Over,
}

/// Output, and the progress of reading it.
struct OpenLog {
    label: String,
    source: LogInput,
    marks: LogMarks,
    /// Time at which the next data was written, if known.
    time: Option<u64>,
    /// Whether there was no new data at the last check.
    is_at_end: bool,
    /// Start of a line whose end was not read yet.
    rest: Vec<u8>,
}

impl OpenLog {
    fn begin(output: &dyn LogOutput, label: String, start: LogStart, marks: LogMarks) -> OpenLog {
        let source = output.open(start).map_or_else(LogInput::Broken, LogInput::Reader);
        OpenLog { label, source, marks, time: None, is_at_end: false, rest: Vec::new() }
    }

    fn next_time(&mut self) -> Option<u64> {
        if self.time.is_none() && !self.is_at_end {
            self.time = match &mut self.source {
                LogInput::Over => None,
                LogInput::Broken(_) => Some(0),
                LogInput::Reader(reader) => reader.next_time().unwrap_or_else(|error| {
                    self.source = LogInput::Broken(error);
                    Some(0)
                }),
            };
            self.is_at_end = self.time.is_none();
        }
        self.time
    }

    /// Returns new data to send; `None` if there is no whole line.
    fn read(&mut self) -> Option<Bytes> {
        self.time = None;
        let read = match std::mem::replace(&mut self.source, LogInput::Over) {
            LogInput::Over => return None,
            LogInput::Broken(error) => Err(error),
            LogInput::Reader(mut reader) => {
                let read = reader.read_block(CHUNK);
                self.source = LogInput::Reader(reader);
                read
            }
        };
        let bytes = match read {
            Ok((_, bytes)) => bytes,
            // Other outputs may be readable: the error of this output replaces its data.
            Err(error) => {
                self.source = LogInput::Over;
                format!("chancery: cannot read this output: {error}\n").into_bytes()
            }
        };
        if self.marks == LogMarks::Changes {
            return (!bytes.is_empty()).then(|| bytes.into());
        }
        self.rest.extend(bytes);
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let whole = if self.rest.len() - end > LINE { self.rest.len() } else { end };
        let rest = self.rest.split_off(whole);
        let lines = std::mem::replace(&mut self.rest, rest);
        (!lines.is_empty()).then(|| marked(&self.label, &lines))
    }
}

/// Returns the lines with a mark on each. The last line gets an end, even if its process wrote none.
fn marked(mark: &str, lines: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(lines.len() + mark.len());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        text.extend_from_slice(mark.as_bytes());
        text.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            text.push(b'\n');
        }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use chancery_executor::process::OutputFile;
    use serde_json::json;

    use super::*;

    fn row(state: &str, reachability: &str) -> IncarnationRow {
        let id = "00000000-0008-8801-8000-000000000007";
        serde_json::from_value(json!({
            "id": id, "replica": "web-0001", "plan": "web", "deployment": "d1", "node": "n1", "cluster": "edge",
            "state": state, "ready": false, "reachability": reachability,
            "resources": {"cpu": 1, "memory": 1, "disk": 0}, "reserved_storage": {}, "mounts": [], "processes": [], "revision": 1,
            "operation": "00000000-0008-8802-8000-000000000007", "starts_after": null, "affinity_violated": null, "unready_at": null, "message": "",
            "version": 1, "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z", "position": 1,
        }))
        .expect("a row")
    }

    fn cluster(runtime: &str) -> ClusterRow {
        serde_json::from_value(json!({
            "name": "edge", "runtime": runtime, "activity": "active", "executor": "e1", "session": null, "nodes": 1,
            "version": 1, "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z", "position": 1,
        }))
        .expect("a row")
    }

    fn output(directory: &std::path::Path, index: u16, stream: LogStream) -> Box<dyn LogOutput> {
        let name = OutputName { payload: "web".parse().expect("a name"), index, stream };
        let base = directory.join(name.to_string());
        Box::new(OutputFile { name, base })
    }

    fn outputs(files: &[Box<dyn LogOutput>], last: OpenLine) -> OpenOutputs {
        let (start, marks) = (LogStart::default(), LogMarks::Lines);
        let open = files.iter().zip(labels(files, marks));
        let open = open.map(|(file, label)| OpenLog::begin(file.as_ref(), label, start, marks)).collect();
        OpenOutputs { open, last, looked: Instant::now() }
    }

    #[test]
    fn each_line_has_a_mark_and_an_unfinished_line_waits_while_it_is_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |stream| output(directory.path(), 0, stream);
        let files = [file(LogStream::Out), file(LogStream::Err)];
        std::fs::write(directory.path().join("web-0.out.1"), "one\n\nthree").expect("a file");
        std::fs::write(directory.path().join("web-0.err.1"), "oh\n").expect("a file");
        for (last, wanted) in [
            (OpenLine::Waits, "err | oh\nout | one\nout | \n"),
            (OpenLine::Ends, "err | oh\nout | one\nout | \nout | three\n"),
        ] {
            let mut open = outputs(&files, last);
            let mut lines: Vec<String> = Vec::new();
            while let Some((_, bytes)) = open.next() {
                let text = String::from_utf8(bytes.to_vec()).expect("text");
                lines.extend(text.split_inclusive('\n').map(str::to_owned));
            }
            // The order of the two files does not matter here.
            lines.sort_by_key(|line| line.starts_with("out"));
            assert_eq!(lines.concat(), wanted);
        }
        let two = [0, 1].map(|index| output(directory.path(), index, LogStream::Out));
        assert_eq!(labels(&two, LogMarks::Lines), ["web-0 out | ", "web-1 out | "]);
    }

    #[test]
    fn an_output_that_cannot_be_read_is_reported_where_it_would_be_and_hides_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |stream| output(directory.path(), 0, stream);
        std::fs::write(directory.path().join("web-0.out.1"), "one\n").expect("a file");
        std::fs::create_dir(directory.path().join("web-0.err.1")).expect("a directory in place of a file");
        let mut open = outputs(&[file(LogStream::Out), file(LogStream::Err)], OpenLine::Ends);
        assert!(open.nothing_can_be_read().is_none());
        let mut lines = String::new();
        while let Some((_, bytes)) = open.next() {
            lines += std::str::from_utf8(&bytes).expect("text");
        }
        let text = lines.strip_prefix("err | chancery: cannot read this output: ");
        assert!(text.is_some_and(|text| text.ends_with(" is not a regular file\nout | one\n")), "{lines}");
        assert!(outputs(&[file(LogStream::Err)], OpenLine::Ends).nothing_can_be_read().is_some());
    }

    #[test]
    fn silence_has_its_reason() {
        for (state, executor, runtime, keeps, code, wanted) in [
            (
                "reserved",
                "known",
                "process",
                true,
                404,
                "the incarnation has not been started yet: it is reserved on node n1",
            ),
            ("running", "known", "simulated", true, 404, "cluster edge is simulated: no process on node n1"),
            ("running", "known", "process", false, 404, "cluster edge is driven by executor e1 elsewhere"),
            ("failed", "known", "process", false, 404, "cluster edge is driven by executor e1 elsewhere"),
            ("running", "unknown", "process", false, 404, "and is not connected"),
            ("failed", "known", "process", true, 410, "the incarnation is failed, and its output is deleted"),
            (
                "destroyed",
                "unknown",
                "process",
                true,
                410,
                "the incarnation is destroyed, and its output is deleted",
            ),
            (
                "running",
                "unknown",
                "process",
                true,
                404,
                "node n1 cannot be reached: no executor of cluster edge",
            ),
            ("starting", "known", "process", true, 404, "the processes on node n1 have not been started yet"),
            (
                "starting",
                "known",
                "kubernetes",
                true,
                404,
                "the processes on node n1 have not been started yet",
            ),
            ("running", "known", "kubernetes", false, 404, "read the output with kubectl logs"),
            (
                "destroyed",
                "known",
                "kubernetes",
                true,
                410,
                "Kubernetes deletes the output of a pod with the pod",
            ),
        ] {
            let (kind, why) = why_silent(&row(state, executor), Some(&cluster(runtime)), keeps);
            assert_eq!(kind.status, code, "{state} {executor} {runtime} {keeps}");
            assert!(why.contains(wanted), "{state} {executor} {runtime} {keeps}: {why}");
        }
    }
}
