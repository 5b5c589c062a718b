//! Observer that continuously asks the processes of this machine for their identity, and compares the answers
//! with the promise. Chancery is not asked.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};

use crate::payloads;

/// Maximum time for an answer; slower processes do not serve.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two samples.
const PERIOD: Duration = Duration::from_millis(10);

/// Process that serves, by its own answer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ServingProcess {
    /// Name of the replica.
    pub(super) replica: String,
    /// Version of the process.
    pub(super) version: String,
    /// Node of the process.
    pub(super) node: String,
}

impl ServingProcess {
    /// Reads `REPLICA version VERSION here, on NODE, process PID` after the head of a 200 answer.
    fn read(answer: &str) -> Option<ServingProcess> {
        let (head, body) = answer.split_once("\r\n\r\n")?;
        if head.split(' ').nth(1) != Some("200") {
            return None;
        }
        let (replica, rest) = body.split_once(" version ")?;
        let (version, rest) = rest.split_once(" here, on ")?;
        let (node, _) = rest.split_once(", process ")?;
        Some(ServingProcess {
            replica: replica.to_owned(),
            version: version.to_owned(),
            node: node.to_owned(),
        })
    }
}

/// Asks all payload processes under the directory. Returns those that serve.
pub(super) fn serving(data: &Path) -> Vec<ServingProcess> {
    payloads(data).into_iter().filter_map(|payload| ask(payload.pid)).collect()
}

fn ask(pid: u32) -> Option<ServingProcess> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut pairs = environ.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
    let port: u16 = pairs.find_map(|pair| pair.strip_prefix("PORT_HTTP="))?.parse().ok()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    ServingProcess::read(&answer)
}

/// Condition for every moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct ServingPromise {
    /// Versions whose replicas count.
    pub(super) good: BTreeSet<String>,
    /// Minimum number of replicas that serve such a version.
    pub(super) least: usize,
}

impl ServingPromise {
    /// Replicas that count.
    fn counted(&self, serving: &[ServingProcess]) -> BTreeSet<String> {
        let good = serving.iter().filter(|serving| self.good.contains(&serving.version));
        good.map(|serving| serving.replica.clone()).collect()
    }
}

/// Observer thread; see the module.
pub(super) struct ServingObserver {
    shared: Arc<ObserverShared>,
    thread: JoinHandle<()>,
}

struct ObserverShared {
    data: PathBuf,
    stop: AtomicBool,
    samples: AtomicU64,
    /// Current promise and its number of changes.
    promise: Mutex<(u64, ServingPromise)>,
    /// First sample that broke the promise.
    broken: OnceLock<String>,
}

impl ServingObserver {
    /// Starts to observe the processes under the directory.
    pub(super) fn begin(data: &Path, promise: ServingPromise) -> ServingObserver {
        let shared = Arc::new(ObserverShared {
            data: data.to_owned(),
            stop: AtomicBool::new(false),
            samples: AtomicU64::new(0),
            promise: Mutex::new((0, promise)),
            broken: OnceLock::new(),
        });
        let looks = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !looks.stop.load(Ordering::Relaxed) && looks.broken.get().is_none() {
                looks.sample();
                std::thread::sleep(PERIOD);
            }
        });
        ServingObserver { shared, thread }
    }

    /// Changes the promise. A weaker promise is set before its cause can happen, a stronger one afterwards.
    pub(super) fn promise(&self, promise: ServingPromise) {
        let mut now = self.shared.promise.lock().unwrap_or_else(PoisonError::into_inner);
        if now.1 != promise {
            *now = (now.0 + 1, promise);
        }
    }

    /// Fails if a sample broke the promise.
    pub(super) fn check(&self) -> Result<()> {
        self.shared.broken.get().map_or(Ok(()), |broken| Err(anyhow!("{broken}")))
    }

    /// Stops the observer. Returns the number of samples, or the broken promise as an error.
    pub(super) fn end(self) -> Result<u64> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the observer panicked"))?;
        self.shared.broken.get().map_or(Ok(()), |broken| Err(anyhow!("{broken}")))?;
        Ok(self.shared.samples.load(Ordering::Relaxed))
    }
}

impl ObserverShared {
    fn promised(&self) -> (u64, ServingPromise) {
        self.promise.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a sample. Processes start and end while they are asked one by one, so a pass may find too few
    /// although enough serve at every moment. Then a second pass follows. A process that serves between both
    /// is found by one of them. The exception is a start behind the first pass and an end before the second,
    /// within milliseconds.
    fn sample(&self) {
        let (change, promise) = self.promised();
        let first = serving(&self.data);
        let mut counted = promise.counted(&first);
        if counted.len() < promise.least {
            let second = serving(&self.data);
            counted.extend(promise.counted(&second));
            if counted.len() < promise.least && self.promised().0 == change {
                let (count, ServingPromise { good, least }) = (counted.len(), promise);
                let _ = self.broken.set(format!(
                    "{count} replicas serve, and {least} are promised of the versions {good:?}: one sample \
                     found {first:?}, the next one {second:?}"
                ));
            }
        }
        self.samples.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::until;

    #[test]
    fn a_sample_of_less_than_what_is_promised_is_found() {
        let data = tempfile::tempdir().expect("a temporary directory");
        let observer = ServingObserver::begin(data.path(), ServingPromise::default());
        until("nothing is promised, and that is observed", || {
            (observer.shared.samples.load(Ordering::Relaxed) > 2).then_some(())
        });
        observer.check().expect("nothing was promised");
        observer.promise(ServingPromise { good: BTreeSet::from(["good-1".to_owned()]), least: 1 });
        let found = until("no process serves", || observer.check().err());
        assert!(found.to_string().starts_with("0 replicas serve, and 1 are promised"), "{found}");
    }

    #[test]
    fn a_process_that_answers_that_it_is_not_ready_does_not_serve() {
        let answer = "web-0100 version good-1 here, on node-2, process 7\n";
        let serving = ServingProcess::read(&format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{answer}"));
        let (replica, version, node) = ("web-0100".into(), "good-1".into(), "node-2".into());
        assert_eq!(serving, Some(ServingProcess { replica, version, node }));
        assert_eq!(ServingProcess::read(&format!("HTTP/1.1 503 Service Unavailable\r\n\r\n{answer}")), None);
        assert_eq!(ServingProcess::read("HTTP/1.1 200 OK\r\n\r\nweb-01"), None);
    }
}
