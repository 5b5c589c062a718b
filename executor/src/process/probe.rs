//! Readiness and liveness of processes, probed from outside.
//!
//! | probe | attempts | success threshold reached | failure threshold reached |
//! |---|---|---|---|
//! | `ready` | from the start; without delay if ready before | process ready | unready, with the error |
//! | `alive` | from the first readiness | not unresponsive | unresponsive, with the error |
//!
//! A failed attempt proves nothing: a status changes only at a threshold. Another error replaces the reported
//! one after as many failures in a row. So neither a starting program nor an alternating error causes one
//! report per attempt. A restarted executor counts from zero. An attempt that the executor could not make or
//! follow does not count.
//!
//! Consequences of a status are decided elsewhere: an executor ends nothing unrequested.

use std::io;
use std::time::{Duration, Instant};

use chancery_events::observation::{ProbeError, ProcessStatus};
use chancery_events::protocol::IncarnationSpec;
use chancery_events::spec::{ProbeTiming, ReadinessProbe};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::incarnation_dir::ProcessesFile;
use crate::reconcile::ReadyHistory;

/// Delay of a timeout above which the executor could not follow the attempt.
const LATE: Duration = Duration::from_millis(250);
/// Maximum time between two attempts of a readiness probe that does not pass.
const EAGER: Duration = Duration::from_millis(200);

/// Maximum bytes of an answer that are read after its status.
const MAX_REST: u64 = 64 << 10;
/// Maximum time in which the rest of an answer is read, within the timeout of the probe.
const MAX_READ: Duration = Duration::from_secs(1);

/// Probes of one incarnation. They end when this is dropped.
#[derive(Debug)]
pub(super) struct ProbeSet {
    seen: watch::Receiver<Vec<ProbedStatus>>,
    shown: watch::Sender<Vec<ProbedStatus>>,
    tasks: JoinSet<()>,
    /// Liveness probes that were not started yet.
    alive: Vec<(usize, ProbeTarget, ProbeTiming)>,
    /// Number of resets of all guests when the probes were started.
    pub(super) resets: u32,
}

/// Findings of the probes of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ProbedStatus {
    ready: ProbeOutcome,
    /// Error of the liveness probe, if that fails.
    hung: Option<ProbeError>,
}

/// Finding of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum ProbeOutcome {
    /// Too few attempts.
    #[default]
    Unknown,
    /// Passing probe.
    Passes,
    /// Failing probe.
    Fails(ProbeError),
}

/// Target of a probe.
#[derive(Clone, Debug)]
struct ProbeTarget {
    address: String,
    path: Option<String>,
}

impl ProbeSet {
    /// Starts the readiness probes. A process without one is ready. The initial delay of a probe is for
    /// starting programs: it does not delay reports of an incarnation that was ready.
    pub(super) fn begin(spec: &IncarnationSpec, record: &ProcessesFile, before: ReadyHistory) -> ProbeSet {
        let (mut seen, mut ready, mut alive) = (Vec::new(), Vec::new(), Vec::new());
        for (number, process) in record.processes.iter().enumerate() {
            let payload = spec.payloads.iter().find(|payload| payload.name == process.payload);
            let probe = payload.and_then(|payload| payload.ready.as_ref());
            // The record has whether a line was seen on a serial port.
            let is_probed = probe.is_some_and(|probe| probe.port().is_some());
            let outcome = if is_probed { ProbeOutcome::Unknown } else { ProbeOutcome::Passes };
            seen.push(ProbedStatus { ready: outcome, hung: None });
            // A port that the payload does not have never answers.
            let target = |probe: &ReadinessProbe| {
                let port = probe.port()?;
                let address = process.addresses.iter().find(|address| address.port == *port)?;
                Some(ProbeTarget { address: address.address.clone(), path: probe.path().map(str::to_owned) })
            };
            let job = |probe: &ReadinessProbe| Some((number, target(probe)?, probe.timing()));
            ready.extend(probe.and_then(job));
            alive.extend(payload.and_then(|payload| payload.alive.as_ref()).and_then(job));
        }
        let (shown, seen) = watch::channel(seen);
        let mut probes = ProbeSet { seen, shown, tasks: JoinSet::new(), alive, resets: record.resets() };
        for (number, target, timing) in ready {
            let shown = probes.shown.clone();
            probes.tasks.spawn(async move {
                if before == ReadyHistory::NeverReady {
                    sleep(timing.initial_delay()).await;
                }
                watch_readiness(&target, timing, |outcome| show(&shown, number, |seen| seen.ready = outcome))
                    .await;
            });
        }
        probes
    }

    /// Starts the liveness probes, unless they were started: the incarnation was ready.
    pub(super) fn watch_liveness(&mut self) {
        for (number, target, timing) in std::mem::take(&mut self.alive) {
            let shown = self.shown.clone();
            self.tasks.spawn(async move {
                watch_liveness(&target, timing, |hung| show(&shown, number, |seen| seen.hung = hung)).await;
            });
        }
    }

    /// Returns the status of a process that has not ended.
    pub(super) fn status(&self, number: usize) -> ProcessStatus {
        match self.seen.borrow().get(number) {
            Some(ProbedStatus { hung: Some(error), .. }) => ProcessStatus::Unresponsive { error: *error },
            Some(ProbedStatus { ready: ProbeOutcome::Passes, .. }) => ProcessStatus::Ready,
            Some(ProbedStatus { ready: ProbeOutcome::Fails(error), .. }) => {
                ProcessStatus::Unready { error: *error }
            }
            Some(ProbedStatus { ready: ProbeOutcome::Unknown, .. }) | None => ProcessStatus::Starting,
        }
    }

    /// Waits for a change. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            // There are no probes.
            std::future::pending::<()>().await;
        }
    }
}

fn show(shown: &watch::Sender<Vec<ProbedStatus>>, number: usize, change: impl FnOnce(&mut ProbedStatus)) {
    shown.send_if_modified(|all| {
        let Some(seen) = all.get_mut(number) else { return false };
        let before = *seen;
        change(seen);
        *seen != before
    });
}

async fn watch_readiness(target: &ProbeTarget, timing: ProbeTiming, show: impl Fn(ProbeOutcome)) {
    let mut count = AttemptCount::new(timing);
    loop {
        let (attempt, rest) = target.attempt(timing.timeout()).await;
        if let Some(outcome) = count.add(&attempt) {
            show(outcome);
        }
        let failed = matches!(attempt, Err(AttemptFailure::OfProcess(_)));
        let calm = count.outcome == ProbeOutcome::Passes && !failed;
        let pause = if calm { timing.period() } else { timing.period().min(EAGER) };
        tokio::join!(sleep(pause), discard(rest));
    }
}

/// Probes liveness. Continues after a failure: without a session the process is not ended, and it may
/// recover.
async fn watch_liveness(target: &ProbeTarget, timing: ProbeTiming, show: impl Fn(Option<ProbeError>)) {
    let mut count = AttemptCount::new(timing);
    sleep(timing.initial_delay()).await;
    loop {
        let (attempt, rest) = target.attempt(timing.timeout()).await;
        match count.add(&attempt) {
            Some(ProbeOutcome::Fails(error)) => show(Some(error)),
            Some(ProbeOutcome::Passes) => show(None),
            Some(ProbeOutcome::Unknown) | None => {}
        }
        tokio::join!(sleep(timing.period()), discard(rest));
    }
}

/// Cause of a failed attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
enum AttemptFailure {
    /// Failure of the process.
    OfProcess(ProbeError),
    /// Failure of the executor or its host, for this reason: the attempt proves nothing about the process.
    OfExecutor(String),
}

/// Consecutive attempts, and their outcome.
#[derive(Default, Debug)]
struct AttemptCount {
    timing: ProbeTiming,
    outcome: ProbeOutcome,
    successes: u32,
    failures: u32,
    /// Error of the last failures, and how many in a row had it.
    error: Option<(ProbeError, u32)>,
    /// Whether the last attempt failed because of the executor, which was logged.
    is_held_up: bool,
}

impl AttemptCount {
    fn new(timing: ProbeTiming) -> AttemptCount {
        AttemptCount { timing, ..AttemptCount::default() }
    }

    /// Counts an attempt; returns the outcome if it has changed.
    fn add(&mut self, attempt: &Result<(), AttemptFailure>) -> Option<ProbeOutcome> {
        let before = self.outcome;
        let was_held_up = std::mem::take(&mut self.is_held_up);
        match attempt {
            Err(AttemptFailure::OfExecutor(why)) => {
                if !was_held_up {
                    tracing::warn!(why, "cannot probe process");
                }
                self.is_held_up = true;
            }
            Ok(()) => {
                (self.failures, self.error) = (0, None);
                self.successes = self.successes.saturating_add(1);
                if self.successes >= self.timing.success_threshold {
                    self.outcome = ProbeOutcome::Passes;
                }
            }
            Err(AttemptFailure::OfProcess(error)) => {
                let error = *error;
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                let alike = self.error.filter(|(last, _)| *last == error).map_or(0, |(_, count)| count);
                let alike = alike.saturating_add(1);
                self.error = Some((error, alike));
                let has_failed = matches!(self.outcome, ProbeOutcome::Fails(_));
                let enough = if has_failed { alike } else { self.failures };
                if enough >= self.timing.failure_threshold {
                    self.outcome = ProbeOutcome::Fails(error);
                }
            }
        }
        (self.outcome != before).then_some(self.outcome)
    }
}

/// Connection whose answer was read as far as its status. To close it before it is read would be an error in the server.
#[derive(Debug)]
struct UnreadAnswer {
    stream: TcpStream,
    /// Time left to read the rest.
    patience: Duration,
}

/// Reads the rest of an answer, so that the server can send all of it. The outcome of the attempt is known: an answer that
/// is long, late or cut off is closed without an error.
async fn discard(rest: Option<UnreadAnswer>) {
    let Some(UnreadAnswer { stream, patience }) = rest else { return };
    let mut rest = stream.take(MAX_REST);
    let _ = timeout(patience, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
}

impl ProbeTarget {
    /// Makes an attempt. The rest of the answer, if any, is for [`discard`].
    async fn attempt(&self, patience: Duration) -> (Result<(), AttemptFailure>, Option<UnreadAnswer>) {
        let began = Instant::now();
        match timeout(patience, self.answers()).await {
            Ok(Ok((outcome, stream))) => {
                let patience = patience.saturating_sub(began.elapsed()).min(MAX_READ);
                (outcome, stream.map(|stream| UnreadAnswer { stream, patience }))
            }
            Ok(Err(failure)) => (Err(failure), None),
            Err(_) if began.elapsed() <= patience + LATE => {
                (Err(AttemptFailure::OfProcess(ProbeError::Timeout)), None)
            }
            Err(_) => (Err(AttemptFailure::OfExecutor("the executor was delayed".to_owned())), None),
        }
    }

    /// Returns the outcome by the status of the answer, and the connection with the rest of it. An error is a failure before
    /// the status.
    async fn answers(&self) -> Result<(Result<(), AttemptFailure>, Option<TcpStream>), AttemptFailure> {
        let of_connect = |error: io::Error| failure(&error, unconnected(error.kind()));
        let cut = |error: io::Error| failure(&error, ProbeError::Closed);
        let mut stream = TcpStream::connect(&self.address).await.map_err(of_connect)?;
        let Some(path) = &self.path else { return Ok((Ok(()), None)) };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await.map_err(cut)?;
        // Twelve bytes suffice: `HTTP/1.1 200`.
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.map_err(cut)?;
        let code = head.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(1..)?.strip_prefix(b" "));
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u16>().ok());
        match code {
            Some(200..=299) => Ok((Ok(()), Some(stream))),
            Some(code) => Ok((Err(AttemptFailure::OfProcess(ProbeError::Status { code })), Some(stream))),
            None => Err(AttemptFailure::OfProcess(ProbeError::NotHttp)),
        }
    }
}

/// Returns whose failure it is: the host may have no descriptor, memory or port left for an attempt.
fn failure(error: &io::Error, of_process: ProbeError) -> AttemptFailure {
    match Errno::from_io_error(error) {
        Some(
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL | Errno::AGAIN,
        ) => AttemptFailure::OfExecutor(error.to_string()),
        Some(_) | None => AttemptFailure::OfProcess(of_process),
    }
}

fn unconnected(kind: io::ErrorKind) -> ProbeError {
    match kind {
        io::ErrorKind::ConnectionRefused => ProbeError::Refused,
        io::ErrorKind::TimedOut => ProbeError::Timeout,
        io::ErrorKind::ConnectionReset => ProbeError::Closed,
        _ => ProbeError::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Result<(), AttemptFailure> = Err(AttemptFailure::OfProcess(ProbeError::Refused));
    const LATE: Result<(), AttemptFailure> = Err(AttemptFailure::OfProcess(ProbeError::Timeout));
    const HELD: Result<(), AttemptFailure> = Err(AttemptFailure::OfExecutor(String::new()));

    fn count(timing: ProbeTiming, attempts: &[Result<(), AttemptFailure>]) -> Vec<Option<ProbeOutcome>> {
        let mut count = AttemptCount::new(timing);
        attempts.iter().map(|attempt| count.add(attempt)).collect()
    }

    /// Reason, attempts, and the outcome after each.
    type Row<'a> = (&'a str, &'a [Result<(), AttemptFailure>], &'a [Option<ProbeOutcome>]);

    #[test]
    fn a_status_changes_at_its_threshold_alone_and_another_error_is_shown_when_it_stays() {
        let (passes, refused) = (Some(ProbeOutcome::Passes), Some(ProbeOutcome::Fails(ProbeError::Refused)));
        let late = Some(ProbeOutcome::Fails(ProbeError::Timeout));
        let usual = ProbeTiming::default();
        let table: &[Row<'_>] = &[
            ("a slow start is no failure", &[REFUSED, REFUSED, Ok(())], &[None, None, passes]),
            ("the third failure in a row is one", &[REFUSED, REFUSED, REFUSED], &[None, None, refused]),
            (
                "a success in between resets the count",
                &[Ok(()), LATE, LATE, Ok(()), LATE],
                &[passes, None, None, None, None],
            ),
            ("the last error is reported", &[LATE, LATE, REFUSED], &[None, None, refused]),
            (
                "alternating errors are reported once",
                &[LATE, LATE, LATE, REFUSED, LATE, REFUSED, REFUSED, LATE],
                &[None, None, late, None, None, None, None, None],
            ),
            (
                "a lasting error is reported",
                &[LATE, LATE, LATE, REFUSED, REFUSED, REFUSED],
                &[None, None, late, None, None, refused],
            ),
            (
                "a failure of the executor does not count",
                &[Ok(()), HELD, HELD, HELD],
                &[passes, None, None, None],
            ),
            (
                "a failure of the executor is no success",
                &[REFUSED, REFUSED, HELD, REFUSED],
                &[None, None, None, refused],
            ),
            ("ready again", &[LATE, LATE, LATE, Ok(()), Ok(())], &[None, None, late, passes, None]),
        ];
        for (why, attempts, expected) in table {
            assert_eq!(count(usual, attempts), *expected, "{why}");
        }
        let strict = ProbeTiming { failure_threshold: 1, success_threshold: 2, ..usual };
        assert_eq!(count(strict, &[Ok(()), REFUSED, Ok(()), Ok(())]), [None, refused, None, passes]);
    }

    #[tokio::test]
    async fn an_attempt_that_the_executor_could_not_follow_proves_nothing_about_the_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = ProbeTarget { address, path: Some("/".into()) };
        let patience = Duration::from_millis(50);
        assert_eq!(target.attempt(patience).await.0, LATE, "the server does not respond");
        let ((attempt, _), ()) = tokio::join!(target.attempt(patience), async {
            std::thread::sleep(patience + super::LATE * 2);
        });
        assert!(matches!(attempt, Err(AttemptFailure::OfExecutor(_))), "the thread was delayed: {attempt:?}");
    }

    #[tokio::test]
    async fn the_answer_is_read_before_its_connection_is_closed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = ProbeTarget { address, path: Some("/".into()) };
        let patience = Duration::from_mins(1);
        for (status, wanted) in [("200 OK", None), ("503 Busy", Some(ProbeError::Status { code: 503 }))] {
            let serve = async {
                let (mut stream, _) = listener.accept().await?;
                let mut bytes = [0; 1024];
                let _ = stream.read(&mut bytes).await?;
                stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await?;
                stream.write_all(&vec![b'x'; 60_000]).await?;
                stream.shutdown().await?;
                // A connection that is closed with unread bytes is reset.
                stream.read(&mut bytes).await
            };
            let probe = async {
                let (attempt, rest) = target.attempt(patience).await;
                discard(rest).await;
                attempt
            };
            let (served, attempt) = tokio::join!(serve, probe);
            assert_eq!(served.expect("an orderly end"), 0, "{status}");
            assert_eq!(attempt, wanted.map_or(Ok(()), |error| Err(AttemptFailure::OfProcess(error))));
        }
    }

    #[tokio::test]
    async fn an_answer_without_an_end_passes_and_is_not_read_forever() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = ProbeTarget { address, path: Some("/".into()) };
        for (why, body, patience) in [
            ("it has more bytes than are read", &[b'x'; 1024][..], Duration::from_mins(1)),
            ("its connection stays open", &[][..], Duration::from_millis(200)),
        ] {
            let serve = async {
                let (mut stream, _) = listener.accept().await?;
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
                while !body.is_empty() {
                    stream.write_all(body).await?;
                }
                // The request, and the end of the connection.
                while stream.read(&mut [0; 1024]).await? > 0 {}
                Ok::<_, io::Error>(())
            };
            let probe = async {
                let (attempt, rest) = target.attempt(patience).await;
                assert!(rest.is_some(), "{why}");
                discard(rest).await;
                attempt
            };
            // The server may find its connection reset.
            let (_, attempt) = tokio::join!(serve, probe);
            assert_eq!(attempt, Ok(()), "{why}");
        }
    }

    #[test]
    fn a_host_without_descriptors_or_ports_proves_nothing_about_the_process() {
        for (errno, wanted) in [
            (Errno::MFILE, None),
            (Errno::NFILE, None),
            (Errno::NOBUFS, None),
            (Errno::NOMEM, None),
            (Errno::ADDRNOTAVAIL, None),
            (Errno::CONNREFUSED, Some(ProbeError::Refused)),
            (Errno::CONNRESET, Some(ProbeError::Closed)),
            (Errno::TIMEDOUT, Some(ProbeError::Timeout)),
            (Errno::HOSTUNREACH, Some(ProbeError::Unreachable)),
            (Errno::PERM, Some(ProbeError::Unreachable)),
        ] {
            let error = io::Error::from(errno);
            let of_process = match failure(&error, unconnected(error.kind())) {
                AttemptFailure::OfProcess(error) => Some(error),
                AttemptFailure::OfExecutor(_) => None,
            };
            assert_eq!(of_process, wanted, "{errno}");
        }
    }
}
