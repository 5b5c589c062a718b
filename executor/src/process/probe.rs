//! Whether processes are ready, seen from outside.

use std::sync::Arc;
use std::time::Duration;

use chancery_events::protocol::RunSpec;
use chancery_events::spec::Probe;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::folder::Record;

/// Between two probes of a process that is not ready.
const EAGER: Duration = Duration::from_millis(200);
/// Between two probes of one that is.
const CALM: Duration = Duration::from_secs(2);
/// How long a probe may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Failures in a row after which a ready process is not ready any more.
const FAILURES: u32 = 3;

/// The probes of one incarnation. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Probes {
    ready: watch::Receiver<Vec<bool>>,
    _tasks: JoinSet<()>,
}

impl Probes {
    /// Begins to probe. A process without a probe is ready.
    pub(super) fn begin(spec: &RunSpec, record: &Record) -> Probes {
        let mut probed = Vec::new();
        let mut ready = Vec::new();
        for (number, process) in record.processes.iter().enumerate() {
            let probe =
                spec.payloads.iter().find(|p| p.name == process.payload).and_then(|p| p.ready.as_ref());
            ready.push(probe.is_none());
            if let Some(probe) = probe {
                let (Probe::Tcp { port } | Probe::Http { port, .. }) = probe;
                // A port that the payload does not have never gets ready.
                let address = process.addresses.iter().find(|a| a.port == *port).map(|a| a.address.clone());
                let path = match probe {
                    Probe::Tcp { .. } => None,
                    Probe::Http { path, .. } => Some(path.clone()),
                };
                probed.extend(address.map(|address| (number, address, path)));
            }
        }
        let (says, ready) = watch::channel(ready);
        let says = Arc::new(says);
        let mut tasks = JoinSet::new();
        for (number, address, path) in probed {
            let says = says.clone();
            tasks.spawn(async move { watch_one(number, &address, path.as_deref(), &says).await });
        }
        Probes { ready, _tasks: tasks }
    }

    /// Whether a process is ready.
    pub(super) fn ready(&self, number: usize) -> bool {
        self.ready.borrow().get(number).copied().unwrap_or(false)
    }

    /// Waits for a change. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        if self.ready.changed().await.is_err() {
            // Nothing is probed.
            std::future::pending::<()>().await;
        }
    }
}

async fn watch_one(number: usize, address: &str, path: Option<&str>, says: &watch::Sender<Vec<bool>>) {
    let mut is_ready = false;
    let mut failures = 0;
    loop {
        let answers = timeout(PATIENCE, answers(address, path)).await.unwrap_or(false);
        failures = if answers { 0 } else { failures + 1 };
        let now_ready = answers || (is_ready && failures < FAILURES);
        if is_ready != now_ready {
            is_ready = now_ready;
            says.send_modify(|ready| ready[number] = is_ready);
        }
        sleep(if is_ready && failures == 0 { CALM } else { EAGER }).await;
    }
}

async fn answers(address: &str, path: Option<&str>) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else { return false };
    let Some(path) = path else { return true };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    // `HTTP/1.1 200`: twelve bytes tell.
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.is_ok() && head.starts_with(b"HTTP/1.") && head[8..].starts_with(b" 2")
}
