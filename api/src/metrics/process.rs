//! Metrics of this process, under the names that Prometheus clients share. Read from `/proc` at each scrape; a metric that cannot
//! be read is left out.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Collector of the metrics of this process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMetrics;

/// Values from `/proc/self/stat`.
#[derive(Clone, Copy, PartialEq, Debug)]
struct ProcessReading {
    /// Processor time, user and system, in clock ticks.
    cpu: u64,
    threads: u64,
    /// Start time in clock ticks after the boot.
    started: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessReading {
    fn parse(stat: &str) -> Option<ProcessReading> {
        // The name of the program may contain spaces and parentheses.
        let fields: Vec<_> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
        // The first of these fields is the third of the file.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(ProcessReading {
            cpu: number(14)? + number(15)?,
            threads: number(20)?,
            started: number(22)?,
            virtual_bytes: number(23)?,
            resident_pages: number(24)?,
        })
    }
}

/// Returns the time of the boot, in seconds since 1970.
fn boot_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Returns the number of open descriptors, without the descriptor that reads the directory.
fn open_descriptors() -> Option<usize> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut put = |name: &str, meaning: &str, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, meaning, None, metric.metric_type())?)
        };
        let stat = fs::read_to_string("/proc/self/stat").ok();
        if let Some(reading) = stat.as_deref().and_then(ProcessReading::parse) {
            let ticks = clock_ticks_per_second() as f64;
            let cpu = ConstCounter::new(reading.cpu as f64 / ticks);
            put("process_cpu_seconds", "Processor time of this process, user and system.", &cpu)?;
            let resident = ConstGauge::new(reading.resident_pages * page_size() as u64);
            put("process_resident_memory_bytes", "Memory of this process that is resident.", &resident)?;
            let virtual_memory = ConstGauge::new(reading.virtual_bytes);
            put("process_virtual_memory_bytes", "Virtual memory of this process.", &virtual_memory)?;
            put("process_threads", "Threads of this process.", &ConstGauge::new(reading.threads))?;
            if let Some(boot) = boot_time() {
                let started = ConstGauge::new(boot as f64 + reading.started as f64 / ticks);
                put("process_start_time_seconds", "Start of this process, in seconds since 1970.", &started)?;
            }
        }
        if let Some(open) = open_descriptors() {
            put("process_open_fds", "Open file descriptors of this process.", &ConstGauge::new(open as u64))?;
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            put("process_max_fds", "Maximum number of open file descriptors.", &ConstGauge::new(most))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_parentheses_moves_no_field() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 1234 8192 3 18446744073709551615 1";
        let reading =
            ProcessReading { cpu: 200, threads: 9, started: 1234, virtual_bytes: 8192, resident_pages: 3 };
        assert_eq!(ProcessReading::parse(stat), Some(reading));
        assert_eq!(ProcessReading::parse("7 (a) S 1"), None);
    }
}
