//! Log of payloads, in which each process of a campaign reports about itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::HostProcess;

/// Kind of a log line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum LineKind {
    Start,
    End,
    Twice,
    TwoUsers,
    Mounted,
}

/// Line of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LogLine {
    pub(super) kind: LineKind,
    pub(super) incarnation: String,
    pub(super) role: String,
    /// Process id in the process's own PID namespace.
    pub(super) pid: u32,
    pub(super) start_time: u64,
}

/// Parsed log.
#[derive(Debug)]
pub(super) struct PayloadLog {
    lines: Vec<LogLine>,
    /// Incarnation and role of each process that has started, by pid and start time.
    started: BTreeMap<(u32, u64), (String, String)>,
}

impl PayloadLog {
    pub(super) fn read(path: &Path) -> Result<PayloadLog> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = text.lines().map(line).collect::<Result<Vec<_>>>()?;
        let starts = lines.iter().filter(|line| line.kind == LineKind::Start);
        let started = starts
            .map(|line| ((line.pid, line.start_time), (line.incarnation.clone(), line.role.clone())))
            .collect();
        Ok(PayloadLog { lines, started })
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &LogLine> {
        self.lines.iter()
    }

    /// Incarnation and role of a process that has logged its start.
    pub(super) fn role(&self, process: &HostProcess) -> Option<(&str, &str)> {
        let (incarnation, role) = self.started.get(&(process.inner_pid, process.start_time))?;
        Some((incarnation, role))
    }

    /// Incarnations that have started a process.
    pub(super) fn incarnations(&self) -> BTreeSet<&str> {
        self.started.values().map(|(incarnation, _)| incarnation.as_str()).collect()
    }

    /// Lines of this kind as text.
    pub(super) fn incarnations_with(&self, word: LineKind) -> Vec<String> {
        let lines = self.lines.iter().filter(|line| line.kind == word);
        lines.map(|line| format!("incarnation {}, {} {}", line.incarnation, line.role, line.pid)).collect()
    }

    /// Main processes that were started although their incarnation already had one, alive or ended.
    pub(super) fn started_twice(&self) -> Vec<String> {
        let mut found = self.incarnations_with(LineKind::Twice);
        let mut first = BTreeMap::new();
        for line in self.lines.iter().filter(|line| line.kind == LineKind::Start && line.role == "main") {
            let before = *first.entry(&line.incarnation).or_insert(line.pid);
            if before != line.pid {
                found.push(format!("incarnation {}: processes {before} and {}", line.incarnation, line.pid));
            }
        }
        found
    }
}

fn line(text: &str) -> Result<LogLine> {
    let words: Vec<&str> = text.split(' ').collect();
    let [word, incarnation, role, pid, start_time] = words[..] else {
        bail!("invalid line of a payload {text:?}: must have five words");
    };
    let word = match word {
        "start" => LineKind::Start,
        "end" => LineKind::End,
        "twice" => LineKind::Twice,
        "two-users" => LineKind::TwoUsers,
        "mounted" => LineKind::Mounted,
        _ => bail!("invalid line of a payload {text:?}: unknown word"),
    };
    let number = || format!("invalid line of a payload {text:?}: must have numbers");
    Ok(LogLine {
        kind: word,
        incarnation: incarnation.to_owned(),
        role: role.to_owned(),
        pid: pid.parse().with_context(number)?,
        start_time: start_time.parse().with_context(number)?,
    })
}
