//! Process as one line of text.

use chancery_events::observation::{ProcessInfo, ProcessStatus};

use super::table::add;

/// Formats a process: `web-0 ready pid 4711 http=127.0.0.1:8080`.
pub(super) fn line(process: &ProcessInfo) -> String {
    let mut text = format!("{} {}", process.name(), status(&process.status));
    if let Some(pid) = process.pid {
        add(&mut text, format_args!(" pid {pid}"));
    }
    if let Some(object) = &process.object {
        add(&mut text, format_args!(" object {}", object.name));
    }
    for address in &process.addresses {
        add(&mut text, format_args!(" {}={}", address.port, address.address));
    }
    text
}

fn status(status: &ProcessStatus) -> String {
    match status {
        ProcessStatus::Ready => "ready".into(),
        ProcessStatus::Starting => "starting".into(),
        ProcessStatus::Unready { error } => format!("unready ({error})"),
        ProcessStatus::Unresponsive { error } => format!("unresponsive ({error})"),
        ProcessStatus::Waiting { reason, .. } => format!("waiting ({reason})"),
        ProcessStatus::Unreachable => "unreachable".into(),
        ProcessStatus::Rebooting => "rebooting".into(),
        ProcessStatus::OomKilled => "out of memory".into(),
        ProcessStatus::Exited { code } => format!("exited {code}"),
        ProcessStatus::Signaled { signal } => format!("killed by signal {signal}"),
        ProcessStatus::Unknown => "ended, reason unknown".into(),
    }
}
