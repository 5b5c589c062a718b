//! A process in a few words.

use chancery_events::observation::{Process, ProcessStatus};

/// `web/0 online pid 4711 http=127.0.0.1:8080`.
pub(super) fn line(process: &Process) -> String {
    let mut text = format!("{}/{} {}", process.payload, process.index, status(&process.status));
    if let Some(pid) = process.pid {
        text.push_str(&format!(" pid {pid}"));
    }
    for address in &process.addresses {
        text.push_str(&format!(" {}={}", address.port, address.address));
    }
    text
}

fn status(status: &ProcessStatus) -> String {
    match status {
        ProcessStatus::Online => "online".into(),
        ProcessStatus::Initializing => "initializing".into(),
        ProcessStatus::OomKilled => "out of memory".into(),
        ProcessStatus::Exited { code } => format!("exited {code}"),
        ProcessStatus::Signaled { signal } => format!("killed by signal {signal}"),
        ProcessStatus::Unknown => "ended unseen".into(),
    }
}
