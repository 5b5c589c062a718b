//! `GET …/incarnations/{id}/logs`: what processes have written, from files that somebody else keeps.
//!
//! One file comes as it is; several come one after the other, each with a line that names it, as `tail` shows them.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use chancery_events::id::IncarnationId;
use chancery_events::name::PayloadName;
use chancery_executor::process::Reader;

use super::App;
use super::edge::Call;
use super::problem::{BUSY, In, NOT_FOUND, Problem};
use super::query::Params;

/// Bytes read at one time.
const CHUNK: usize = 64 << 10;
/// How often files are looked at.
const POLL: Duration = Duration::from_millis(200);

/// Which of a process's outputs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl fmt::Display for LogStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogStream::Out => "out",
            LogStream::Err => "err",
        })
    }
}

/// What a process writes to an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogFile {
    /// Of which payload.
    pub payload: PayloadName,
    /// Of which of its processes, from 0.
    pub index: u16,
    /// Which output.
    pub stream: LogStream,
    /// Its files are this, a dot and a number: the oldest go as new ones come.
    pub base: PathBuf,
}

impl fmt::Display for LogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}.{}", self.payload, self.index, self.stream)
    }
}

/// Finds what the processes of an incarnation have written.
pub trait Logs: Send + Sync + 'static {
    /// Its outputs; none if nothing is kept of it. May block.
    fn files(&self, id: IncarnationId) -> io::Result<Vec<LogFile>>;
}

/// Where no process runs.
#[derive(Debug)]
pub struct NoLogs;

impl Logs for NoLogs {
    fn files(&self, _id: IncarnationId) -> io::Result<Vec<LogFile>> {
        Ok(Vec::new())
    }
}

/// Answers a request for logs.
pub(super) async fn read(app: &Arc<App>, call: &Call, mut params: Params) -> Result<Response<Body>, Problem> {
    let id = call.found.param("id").unwrap_or_default();
    let id: IncarnationId = id
        .parse()
        .map_err(|error: chancery_events::id::BadId| Problem::parameter(In::Path, "id", error.to_string()))?;
    let payload = params.take("payload")?.map(|text| text.parse::<PayloadName>());
    let payload =
        payload.transpose().map_err(|error| Problem::parameter(In::Query, "payload", error.to_string()))?;
    let process = params.number("process")?;
    let stream = match params.take("stream")?.as_deref() {
        None => None,
        Some("out") => Some(LogStream::Out),
        Some("err") => Some(LogStream::Err),
        Some(_) => return Err(Problem::parameter(In::Query, "stream", "write out or err")),
    };
    let tail = params.number("tail")?.unwrap_or(u64::MAX);
    let follow = params.flag("follow")?.unwrap_or(false);
    params.end(&["payload", "process", "stream", "tail", "follow"])?;
    let follower = if follow {
        let busy = || Problem::new(BUSY, format!("follow a log: {} streams are open", app.limits.followers));
        Some(app.hub.follow(app.limits.followers).ok_or_else(busy)?)
    } else {
        None
    };
    let logs = app.logs.clone();
    let files = tokio::task::spawn_blocking(move || logs.files(id)).await;
    let files = files.map_err(|error| Problem::internal("find logs", &error))?;
    let mut files = files.map_err(|error| Problem::internal("find logs", &error))?;
    files.retain(|file| {
        payload.as_ref().is_none_or(|payload| file.payload == *payload)
            && process.is_none_or(|process| u64::from(file.index) == process)
            && stream.is_none_or(|stream| file.stream == stream)
    });
    files.sort_by(|a, b| (&a.payload, a.index, a.stream).cmp(&(&b.payload, b.index, b.stream)));
    if files.is_empty() {
        return Err(Problem::new(
            NOT_FOUND,
            format!("read the logs of incarnation {id}: there are none like that here"),
        ));
    }
    let begun = tokio::task::spawn_blocking(move || {
        files.into_iter().map(|file| Open::begin(file, tail)).collect::<io::Result<Vec<_>>>()
    });
    let open = begun.await.map_err(|error| Problem::internal("open logs", &error))?;
    let open = open.map_err(|error| Problem::internal("open logs", &error))?;
    let mut closing = app.hub.closing();
    let body = async_stream::stream! {
        let _follower = follower;
        let mut files = Some(open);
        let names = files.as_ref().is_some_and(|files| files.len() > 1);
        let mut shown = None;
        loop {
            let Some(mut open) = files.take() else { return };
            let read = tokio::task::spawn_blocking(move || {
                let next = open.iter_mut().enumerate().find_map(|(at, file)| Some((at, file.more()?)));
                (open, next)
            });
            let Ok((open, next)) = read.await else { return };
            let label = next.as_ref().map(|(at, _)| open[*at].file.to_string());
            files = Some(open);
            match next {
                Some((at, Ok(bytes))) => {
                    if names && shown != Some(at) {
                        let gap = if shown.is_some() { "\n" } else { "" };
                        yield Ok(Bytes::from(format!("{gap}==> {} <==\n", label.unwrap_or_default())));
                        shown = Some(at);
                    }
                    yield Ok(bytes);
                }
                Some((_, Err(error))) => {
                    yield Err(error);
                    return;
                }
                None if !follow => return,
                None => tokio::select! {
                    _ = closing.wait_for(|closing| *closing) => return,
                    () = tokio::time::sleep(POLL) => {}
                },
            }
        }
    };
    let mut response = Response::new(Body::from_stream(body));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

/// An output, and how far it was read.
struct Open {
    file: LogFile,
    reader: Reader,
}

impl Open {
    fn begin(file: LogFile, lines: u64) -> io::Result<Open> {
        let reader = Reader::last(&file.base, lines)?;
        Ok(Open { file, reader })
    }

    /// What is new; `None` if nothing is.
    fn more(&mut self) -> Option<io::Result<Bytes>> {
        match self.reader.read(CHUNK) {
            Ok(bytes) if bytes.is_empty() => None,
            read => Some(read.map(Bytes::from)),
        }
    }
}
