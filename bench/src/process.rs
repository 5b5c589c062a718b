//! Resource usage of a process, read from `/proc`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Process whose usage is measured over a round.
pub(crate) struct MeasuredProcess {
    process: u32,
    cpu: Duration,
    since: Instant,
}

impl MeasuredProcess {
    /// Starts the measurement.
    pub(crate) fn begin(process: u32) -> Result<MeasuredProcess> {
        Ok(MeasuredProcess { process, cpu: cpu(process)?, since: Instant::now() })
    }

    /// Returns the average number of busy cores since the start.
    pub(crate) fn cores(&self) -> Result<f64> {
        let used = cpu(self.process)?.saturating_sub(self.cpu);
        Ok(used.as_secs_f64() / self.since.elapsed().as_secs_f64())
    }
}

/// Returns the peak memory of a process, in MiB.
pub(crate) fn peak_mib(process: u32) -> Result<f64> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("VmHWM")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// Returns the memory of a process that is resident, in MiB.
pub(crate) fn resident_mib(process: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).context("read statm")?;
    let pages: f64 = text.split_whitespace().nth(1).context("pages")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64 / f64::from(1 << 20))
}

/// Returns the memory of a process in MiB: its own pages, and of each page that it shares a share. The amounts of processes
/// can be added.
pub(crate) fn proportional_mib(process: u32) -> Result<f64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let rollup = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("Pss")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// Returns the processor time of a process whose threads do not end, to the nanosecond.
pub(crate) fn thread_times(process: u32) -> Result<Duration> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let path = thread?.path().join("schedstat");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        nanoseconds += text.split_whitespace().next().context("a time")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Returns how often the first thread of a process has waited.
pub(crate) fn waits(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.context("voluntary_ctxt_switches")?.trim().parse()?)
}

/// Returns the processor time of this thread.
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the processor time of a process, of all its threads.
fn cpu(process: u32) -> Result<Duration> {
    let path = format!("/proc/{process}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // proc(5): the name is in parentheses; user and system time are the 14th and 15th field, in ticks.
    let (_, fields) = stat.rsplit_once(')').context("the name")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_time() {
        let us = std::process::id();
        assert!(peak_mib(us).expect("read") > 0.5);
        // The kernel batches its counters of resident pages: a peak may be a little below the exact share.
        let memory = proportional_mib(us).expect("read");
        assert!((0.1..1024.0).contains(&memory), "{memory} MiB");
        // Threads of other tests end.
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        while thread_times(other.id()).expect("read") == Duration::ZERO {
            std::hint::spin_loop();
        }
        other.kill().and_then(|()| other.wait()).expect("ended");
        assert!(waits(us).is_ok());
        let before = cpu(us).expect("read");
        while cpu(us).expect("read") == before {
            std::hint::spin_loop();
        }
    }
}
