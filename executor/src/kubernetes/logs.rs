//! Output of containers, read through the API.
//!
//! Kubernetes merges standard output and standard error: each container has one output, `PAYLOAD-NUMBER.out`, and each init
//! container one of its own name. The output exists as long as its pod.
//!
//! A reader has no position in the API but the time of a line. A reader that continues therefore requests the lines from the
//! second of its last line on, and skips those that it has returned.

use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chancery_events::id::{IncarnationId, ObjectId};
use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use k8s_openapi::jiff::Timestamp;
use kube::api::LogParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::runtime::Handle;

use super::api::{ApiFailure, answer};
use super::labels::{INDEX, ObjectOwner};
use super::objects::PodObject;
use super::watch::list;
use crate::logs::{LogOutput, LogReader, LogSource, LogStart, LogStream, OutputName};

/// Time limit of each read.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two requests of a reader that has reached the end.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum bytes that are returned at one time of a longer line.
const CHUNK: usize = 64 << 10;
/// Span of lines that are returned together, in microseconds.
const TOGETHER: u64 = 100_000;

/// Output of the containers of a cluster. Calls block, so they must be made on a thread that may block.
pub(super) struct KubernetesLogs {
    pub(super) client: Client,
    pub(super) owner: ObjectOwner,
    pub(super) runtime: Handle,
}

impl LogSource for KubernetesLogs {
    fn outputs(&self, incarnation: IncarnationId) -> io::Result<Vec<Box<dyn LogOutput>>> {
        let pods: Api<PodObject> = Api::all(self.client.clone());
        let selector = self.owner.selector_of(ObjectId::Incarnation(incarnation));
        let listed = list(&pods, &selector, |pod: &PodObject| Some(self.containers(pod)));
        let listed = self.runtime.block_on(listed).map_err(|failure| failed("list pods", &failure))?;
        let mut outputs: Vec<_> = listed.items.into_iter().flatten().collect();
        outputs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(outputs.into_iter().map(|output| Box::new(output) as Box<dyn LogOutput>).collect())
    }
}

impl KubernetesLogs {
    fn containers(&self, pod: &PodObject) -> Vec<ContainerOutput> {
        let (Some(spec), Some(namespace)) = (&pod.spec, pod.namespace()) else { return Vec::new() };
        let index = pod.labels().get(INDEX).and_then(|index| index.parse().ok()).unwrap_or_default();
        let containers = spec.init_containers.iter().chain(&spec.containers).flatten();
        let output = |container: &str| {
            // Another party may add a container of any name.
            let payload = container.parse().ok()?;
            Some(ContainerOutput {
                pods: Api::namespaced(self.client.clone(), &namespace),
                runtime: self.runtime.clone(),
                pod: pod.name_any(),
                container: container.to_owned(),
                name: OutputName { payload, index, stream: LogStream::Out },
            })
        };
        containers.filter_map(|container| output(&container.name)).collect()
    }
}

fn failed(what: &str, failure: &ApiFailure) -> io::Error {
    io::Error::other(format!("cannot {what}: {failure}"))
}

/// Output of one container.
#[derive(Clone)]
struct ContainerOutput {
    pods: Api<PodObject>,
    runtime: Handle,
    pod: String,
    container: String,
    name: OutputName,
}

impl LogOutput for ContainerOutput {
    fn name(&self) -> &OutputName {
        &self.name
    }

    fn open(&self, start: LogStart) -> io::Result<Box<dyn LogReader>> {
        Ok(Box::new(ContainerReader {
            output: self.clone(),
            source: LineSource { stream: None, position: StartPosition::of(start), next: NextBytes::Line },
            next: None,
            checked: None,
            is_gone: false,
        }))
    }
}

/// Lines from which the next request continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct StartPosition {
    /// Maximum number of lines before the end, in the first request that returns any.
    tail: Option<i64>,
    /// Whether the lines of `tail` are skipped: only later lines are of interest.
    skips_tail: bool,
    /// Earliest second of interest.
    since: Option<Timestamp>,
    /// Latest time of a line, and the number of lines with this time.
    last: Option<(Timestamp, u64)>,
    /// Time up to which earlier requests have returned the lines, and the number of their lines with this time that this
    /// request has not repeated yet.
    before: Option<(Timestamp, u64)>,
}

impl StartPosition {
    fn of(start: LogStart) -> StartPosition {
        let since = start.since.and_then(|since| {
            let seconds = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
        });
        StartPosition {
            // The last line shows where later lines start.
            tail: start.tail.map(|tail| i64::try_from(tail.max(1)).unwrap_or(i64::MAX)),
            skips_tail: start.tail == Some(0),
            since,
            last: None,
            before: None,
        }
    }

    /// Returns the request of the lines from here on.
    fn request(&mut self, container: &str) -> LogParams {
        self.before = self.last;
        let last = self.last.and_then(|(last, _)| Timestamp::from_second(last.as_second()).ok());
        LogParams {
            container: Some(container.to_owned()),
            timestamps: true,
            tail_lines: if last.is_none() { self.tail } else { None },
            since_time: last.or(self.since),
            ..LogParams::default()
        }
    }

    /// Whether a line with this time is new. Lines of one request need not be in the order of their times.
    fn accept(&mut self, time: Timestamp) -> bool {
        match &mut self.before {
            Some((before, _)) if time < *before => return false,
            Some((before, repeated)) if time == *before && *repeated > 0 => {
                *repeated -= 1;
                return false;
            }
            Some(_) | None => {}
        }
        match &mut self.last {
            Some((last, _)) if time < *last => {}
            Some((last, count)) if time == *last => *count += 1,
            Some(_) | None => self.last = Some((time, 1)),
        }
        !self.skips_tail
    }

    /// Notes the end of a request that was answered: whatever follows is new.
    fn reach_end(&mut self) {
        (self.tail, self.skips_tail) = (None, false);
    }
}

type LineStream = Pin<Box<dyn AsyncBufRead + Send>>;

struct LineSource {
    stream: Option<LineStream>,
    position: StartPosition,
    /// Kind of the next bytes.
    next: NextBytes,
}

/// Kind of the next bytes of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextBytes {
    /// A line, with its time.
    Line,
    /// The rest of a long line with this time, in microseconds since 1970.
    Rest(u64),
    /// The rest of a long line that was returned before.
    SkippedRest,
}

/// Answer to the request for the next line.
enum NextLine {
    /// Data of a line, with the time of the line in microseconds since 1970.
    Line(u64, Vec<u8>),
    /// Nothing more exists now.
    End,
    /// The pod or its output does not exist.
    Gone,
}

impl LineSource {
    /// Returns the next data of a line that was not returned yet.
    async fn next(&mut self, output: &ContainerOutput) -> io::Result<NextLine> {
        loop {
            let Some(stream) = &mut self.stream else {
                let params = self.position.request(&output.container);
                match answer(output.pods.log_stream(&output.pod, &params)).await {
                    Ok(stream) => self.stream = Some(Box::pin(stream)),
                    // The container has not started.
                    Err(ApiFailure::Refused(400, _)) => return Ok(NextLine::End),
                    Err(ApiFailure::NotFound(_)) => return Ok(NextLine::Gone),
                    Err(failure) => return Err(failed("read the output of the container", &failure)),
                }
                continue;
            };
            let mut line = Vec::new();
            let read = tokio::time::timeout(PATIENCE, read_part(stream, &mut line)).await;
            read.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the API returned no output in time"))??;
            if line.is_empty() {
                (self.stream, self.next) = (None, NextBytes::Line);
                self.position.reach_end();
                return Ok(NextLine::End);
            }
            let is_complete = line.ends_with(b"\n");
            let following = self.next;
            if following != NextBytes::Line {
                if is_complete {
                    self.next = NextBytes::Line;
                }
                if let NextBytes::Rest(time) = following {
                    return Ok(NextLine::Line(time, line));
                }
                continue;
            }
            let Some((time, text)) = split_time(&line) else {
                // Not a line of the container: the kubelet reports an error so.
                let text = String::from_utf8_lossy(&line);
                return Err(io::Error::other(format!(
                    "cannot read the output of the container: {}",
                    text.trim_end()
                )));
            };
            let is_new = self.position.accept(time);
            let micros = u64::try_from(time.as_microsecond()).unwrap_or_default();
            self.next = match (is_complete, is_new) {
                (true, _) => NextBytes::Line,
                (false, true) => NextBytes::Rest(micros),
                (false, false) => NextBytes::SkippedRest,
            };
            if is_new {
                return Ok(NextLine::Line(micros, text.to_vec()));
            }
        }
    }
}

/// Reads to the end of a line, or [`CHUNK`] bytes of it. Nothing is read at the end of the stream.
async fn read_part(stream: &mut LineStream, line: &mut Vec<u8>) -> io::Result<()> {
    while line.len() < CHUNK {
        let available = stream.fill_buf().await?;
        if available.is_empty() {
            return Ok(());
        }
        let most = available.len().min(CHUNK - line.len());
        let end = available[..most].iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(most, |end| end + 1);
        line.extend_from_slice(&available[..taken]);
        stream.as_mut().consume(taken);
        if end.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// Splits a line into its time and its text.
fn split_time(line: &[u8]) -> Option<(Timestamp, &[u8])> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    let time = str::from_utf8(&line[..end]).ok()?.parse().ok()?;
    Some((time, &line[end + 1..]))
}

/// Reader of one container's output.
struct ContainerReader {
    output: ContainerOutput,
    source: LineSource,
    /// Data that was read and not returned yet, with its time.
    next: Option<(u64, Vec<u8>)>,
    /// Time at which nothing more existed.
    checked: Option<Instant>,
    /// Whether the output does not exist any more.
    is_gone: bool,
}

impl ContainerReader {
    /// Reads the next data, unless it was read.
    fn fetch(&mut self) -> io::Result<()> {
        let is_waiting = self.checked.is_some_and(|checked| checked.elapsed() < PAUSE);
        if self.next.is_some() || self.is_gone || is_waiting {
            return Ok(());
        }
        match self.output.runtime.block_on(self.source.next(&self.output))? {
            NextLine::Line(time, text) => self.next = Some((time, text)),
            NextLine::End => self.checked = Some(Instant::now()),
            NextLine::Gone => self.is_gone = true,
        }
        Ok(())
    }
}

impl LogReader for ContainerReader {
    fn next_time(&mut self) -> io::Result<Option<u64>> {
        self.fetch()?;
        Ok(self.next.as_ref().map(|(time, _)| *time))
    }

    fn read_block(&mut self, most: usize) -> io::Result<(u64, Vec<u8>)> {
        self.fetch()?;
        let Some((time, mut block)) = self.next.take() else { return Ok((now(), Vec::new())) };
        while block.len() < most {
            self.fetch()?;
            match self.next.take() {
                Some((later, text)) if later.saturating_sub(time) <= TOGETHER => block.extend(text),
                other => {
                    self.next = other;
                    break;
                }
            }
        }
        if block.len() > most {
            let mut rest = block.split_off(most);
            if let Some((_, text)) = self.next.take() {
                rest.extend(text);
            }
            self.next = Some((time, rest));
        }
        Ok((time, block))
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    /// Returns the seconds of the lines that are returned, for a request that the API answers with these lines.
    fn returned(position: &mut StartPosition, lines: &[&str]) -> Vec<String> {
        position.request("web");
        let new = lines.iter().filter(|line| position.accept(at(&format!("2026-11-21T09:00:{line}Z"))));
        let new = new.map(|line| (*line).to_owned()).collect();
        position.reach_end();
        new
    }

    #[test]
    fn a_reader_that_continues_returns_each_line_once() {
        let mut position = StartPosition::of(LogStart::default());
        let first = ["01.5", "01.5", "02.25"];
        assert_eq!(returned(&mut position, &first), first);
        assert_eq!(position.request("web").since_time, Some(at("2026-11-21T09:00:02Z")));
        // The API repeats the whole second, and lines of one time.
        assert_eq!(returned(&mut position, &["02.1", "02.25"]), Vec::<String>::new());
        assert_eq!(returned(&mut position, &["02.1", "02.25", "02.25", "02.5"]), ["02.25", "02.5"]);
        assert_eq!(returned(&mut position, &["02.25", "02.25", "02.5", "03"]), ["03"]);
    }

    #[test]
    fn lines_of_one_request_need_no_order() {
        let mut position = StartPosition::of(LogStart::default());
        let lines = ["02.5", "02.4", "02.6", "02.5"];
        assert_eq!(returned(&mut position, &lines), lines);
        assert_eq!(returned(&mut position, &["02.5", "02.4", "02.6", "02.5", "02.7"]), ["02.7"]);
    }

    #[test]
    fn the_last_lines_are_requested_once_and_none_means_later_lines() {
        let mut position = StartPosition::of(LogStart { tail: Some(2), since: None });
        assert_eq!(position.request("web").tail_lines, Some(2));
        assert_eq!(returned(&mut position, &[]), Vec::<String>::new());
        assert_eq!(position.request("web").tail_lines, None, "every line is new now");
        let mut position = StartPosition::of(LogStart { tail: Some(0), since: None });
        assert_eq!(position.request("web").tail_lines, Some(1));
        assert_eq!(returned(&mut position, &["01"]), Vec::<String>::new());
        assert_eq!(returned(&mut position, &["01", "01.5"]), ["01.5"]);
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_251_600_900);
        let mut position = StartPosition::of(LogStart { tail: None, since: Some(since) });
        let second = Timestamp::from_second(1_795_251_600).expect("a time");
        assert_eq!(position.request("web").since_time, Some(second), "no line of the second is left out");
    }

    #[test]
    fn a_line_has_its_time_before_its_text() {
        let line = b"2026-11-21T09:00:01.123456789Z one two\n";
        assert_eq!(split_time(line), Some((at("2026-11-21T09:00:01.123456789Z"), &b"one two\n"[..])));
        assert_eq!(split_time(b"2026-11-21T09:00:01Z \n").map(|(_, text)| text), Some(&b"\n"[..]));
        assert_eq!(split_time(b"unable to retrieve container logs\n"), None);
    }

    #[test]
    fn a_long_line_is_read_in_parts() {
        let text = [b"x".repeat(CHUNK + 7), b"\nnext\n".to_vec()].concat();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let parts = runtime.block_on(async {
            let mut stream: LineStream = Box::pin(futures_util::io::Cursor::new(text));
            let mut parts = Vec::new();
            loop {
                let mut part = Vec::new();
                read_part(&mut stream, &mut part).await.expect("read");
                if part.is_empty() {
                    return parts;
                }
                parts.push(part.len());
            }
        });
        assert_eq!(parts, [CHUNK, 8, 5]);
    }
}
