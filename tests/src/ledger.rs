//! Ledger of long executions: `tests/ledger.json`, to which each adds its counts, as evidence for the page of
//! guarantees. Counts only grow, and no decision depends on them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Total counts of all executions of one kind.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountMap {
    /// Seeds: executions that may differ.
    pub seeds: u64,
    /// Rounds: faults were injected and their effects checked.
    pub rounds: u64,
    /// Seconds of simulated time; zero where time was real.
    pub simulated_seconds: u64,
    /// Faults, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Comparisons with the past, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checks: BTreeMap<String, u64>,
    /// Events in the journals.
    pub events: u64,
    /// Intents whose verdict was received.
    pub acknowledged: u64,
    /// Intents whose sender did not learn the outcome.
    pub unanswered: u64,
    /// Verdicts that were received and are not in the journal.
    pub lost: u64,
    /// Intents with two verdicts in the journal.
    pub decided_twice: u64,
    /// Executions in which an invariant was broken.
    pub violations: u64,
    /// Rounds after which the host was checked: processes, cgroups and files.
    #[serde(default)]
    pub host_checks: u64,
    /// Processes of incarnations that were started twice.
    #[serde(default)]
    pub started_twice: u64,
    /// Incarnations that got a volume which another one used.
    #[serde(default)]
    pub volumes_with_two_users: u64,
    /// Files outside of every data directory that were touched.
    #[serde(default)]
    pub files_touched: u64,
}

impl CountMap {
    /// Counts a fault.
    pub fn fault(&mut self, kind: &str) {
        *self.faults.entry(kind.to_owned()).or_default() += 1;
    }

    /// Adds comparisons of a kind.
    pub fn check(&mut self, kind: &str, count: u64) {
        *self.checks.entry(kind.to_owned()).or_default() += count;
    }
}

impl AddAssign for CountMap {
    fn add_assign(&mut self, other: CountMap) {
        self.seeds += other.seeds;
        self.rounds += other.rounds;
        self.simulated_seconds += other.simulated_seconds;
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (kind, count) in other.checks {
            *self.checks.entry(kind).or_default() += count;
        }
        self.events += other.events;
        self.acknowledged += other.acknowledged;
        self.unanswered += other.unanswered;
        self.lost += other.lost;
        self.decided_twice += other.decided_twice;
        self.violations += other.violations;
        self.host_checks += other.host_checks;
        self.started_twice += other.started_twice;
        self.volumes_with_two_users += other.volumes_with_two_users;
        self.files_touched += other.files_touched;
    }
}

/// Counts of every kind.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReliabilityLedger(BTreeMap<String, CountMap>);

impl ReliabilityLedger {
    /// Returns the path of this source tree's ledger.
    pub fn path() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("ledger.json")
    }

    /// Reads a ledger; a missing file is an empty ledger.
    pub fn read(path: &Path) -> Result<ReliabilityLedger> {
        match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).with_context(|| format!("read {}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(ReliabilityLedger::default()),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    /// Adds the counts of an execution. Several programs may add concurrently.
    pub fn add(path: &Path, kind: &str, tally: CountMap) -> Result<()> {
        let doing = || format!("add to {}", path.display());
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).with_context(doing)?;
        }
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.with_context(doing)?;
        file.lock().with_context(doing)?;
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(doing)?;
        let mut ledger: ReliabilityLedger = if text.is_empty() {
            ReliabilityLedger::default()
        } else {
            serde_json::from_str(&text).with_context(doing)?
        };
        *ledger.0.entry(kind.to_owned()).or_default() += tally;
        let mut text = serde_json::to_string_pretty(&ledger).with_context(doing)?;
        text.push('\n');
        file.seek(SeekFrom::Start(0)).with_context(doing)?;
        file.set_len(0).with_context(doing)?;
        file.write_all(text.as_bytes()).with_context(doing)
    }

    /// Returns the counts of a kind.
    pub fn of(&self, kind: &str) -> CountMap {
        self.0.get(kind).cloned().unwrap_or_default()
    }

    /// Returns the table for the page of guarantees.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "| run | seeds | rounds | faults | events | acknowledged | unanswered | lost | decided twice | started twice | \
             volumes with two users | files outside touched | violations |\n\
             |---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        );
        for (kind, t) in &self.0 {
            let faults: Vec<_> =
                t.faults.iter().map(|(kind, count)| format!("{} {kind}", grouped(*count))).collect();
            let faults = if faults.len() > 6 {
                format!("{} of {} kinds", grouped(t.faults.values().sum()), faults.len())
            } else {
                faults.join(", ")
            };
            let hours = t.simulated_seconds / 3600;
            let kind =
                if hours == 0 { kind.clone() } else { format!("{kind}, {} h of its time", grouped(hours)) };
            let _ = write!(text, "| {kind} | {} | {} | {} |", grouped(t.seeds), grouped(t.rounds), faults);
            for number in [t.events, t.acknowledged, t.unanswered, t.lost, t.decided_twice] {
                let _ = write!(text, " {} |", grouped(number));
            }
            // Where no check of the host ran, zero would claim too much.
            for number in [t.started_twice, t.volumes_with_two_users, t.files_touched] {
                let shown = if t.host_checks == 0 { "–".to_owned() } else { grouped(number) };
                let _ = write!(text, " {shown} |");
            }
            let _ = writeln!(text, " {} |", grouped(t.violations));
        }
        text
    }
}

/// Returns a number with thousands separators.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_from_many_sides_is_the_sum() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("new/ledger.json");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let mut tally =
                            CountMap { seeds: 1, events: 1234, host_checks: 1, ..CountMap::default() };
                        tally.fault("kill");
                        ReliabilityLedger::add(&path, "kills", tally).expect("it is added");
                    }
                });
            }
        });
        let ledger = ReliabilityLedger::read(&path).expect("a ledger");
        let row = ledger.table().lines().last().map(ToOwned::to_owned);
        assert_eq!(
            row.as_deref(),
            Some("| kills | 100 | 0 | 100 kill | 123,400 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |")
        );
        assert_eq!(
            ReliabilityLedger::read(&dir.path().join("none")).expect("none"),
            ReliabilityLedger::default()
        );
    }

    #[test]
    fn thousands_are_separated() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")] {
            assert_eq!(grouped(number), text);
        }
    }
}
