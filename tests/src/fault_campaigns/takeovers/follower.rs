//! Reader of the event stream that switches between servers, and resumes after its last event.

use std::io::{BufRead as _, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::until;

/// Maximum time per server.
const STAY: Duration = Duration::from_secs(3);

/// Reader of the stream on its own thread.
pub(super) struct StreamFollower {
    shared: Arc<FollowerProgress>,
    thread: JoinHandle<Result<u64>>,
}

#[derive(Default)]
struct FollowerProgress {
    stop: AtomicBool,
    position: AtomicU64,
}

impl StreamFollower {
    /// Starts to read from the first event on, from each server in turn.
    pub(super) fn begin(urls: Vec<String>) -> StreamFollower {
        let shared = Arc::new(FollowerProgress::default());
        let seen = Arc::clone(&shared);
        StreamFollower { shared, thread: std::thread::spawn(move || seen.follow(&urls)) }
    }

    /// Waits until the reader has reached `head`. Returns the number of opened streams.
    pub(super) fn end(self, head: u64) -> Result<u64> {
        until("the reader of the stream has everything", || {
            let is_there = self.shared.position.load(Ordering::Acquire) >= head;
            (is_there || self.thread.is_finished()).then_some(())
        });
        self.shared.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| anyhow!("the reader of the stream panicked"))?
    }
}

impl FollowerProgress {
    fn follow(&self, urls: &[String]) -> Result<u64> {
        let config =
            ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(STAY)).build();
        let agent: ureq::Agent = config.into();
        let (mut last, mut resumed) = (None::<String>, 0);
        for url in urls.iter().cycle() {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let mut request = agent.get(format!("{url}/v1/fleets/default/events"));
            request = request.header("accept", "text/event-stream");
            if let Some(last) = &last {
                request = request.header("last-event-id", last);
            }
            // A server that is down, paused or behind is retried later.
            let Ok(answer) = request.call() else { continue };
            match answer.status().as_u16() {
                200 => resumed += 1,
                status @ (410 | 400) => {
                    bail!("{url} answers {status} to an id that another server gave: {last:?}")
                }
                _ => continue,
            }
            let (mut id, mut is_control) = (String::new(), false);
            for line in BufReader::new(answer.into_body().into_reader()).lines() {
                // The server's end or the request's timeout cut the stream off.
                let Ok(line) = line else { break };
                if let Some(is) = line.strip_prefix("id:") {
                    is.trim().clone_into(&mut id);
                }
                // Control events with the id of the last event sent.
                is_control |= matches!(line.as_str(), "event: closed" | "event: bookmark");
                // An empty line completes an event.
                if !line.is_empty() || id.is_empty() {
                    continue;
                }
                let position: u64 = id
                    .split('.')
                    .next()
                    .unwrap_or_default()
                    .parse()
                    .context("an id starts with a position")?;
                let expected = self.position.load(Ordering::Acquire) + u64::from(!is_control);
                ensure!(position == expected, "{url} gives event {position} where {expected} is the next");
                self.position.store(position, Ordering::Release);
                (last, is_control) = (Some(std::mem::take(&mut id)), false);
            }
        }
        Ok(resumed)
    }
}
