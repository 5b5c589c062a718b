//! Metrics of the executors of this process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use chancery_events::name::{ClusterName, ExecutorName, FleetName};
use chancery_executor::{ExecutorStatus, StatusReading};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Labels of an executor, and its status while it runs.
type ExecutorEntry = (Vec<(&'static str, String)>, Weak<ExecutorStatus>);

/// Exposes the status of each executor of this process, until it ends.
#[derive(Default, Debug)]
pub(super) struct ExecutorCollector(Mutex<Vec<ExecutorEntry>>);

impl ExecutorCollector {
    pub(super) fn add(
        &self,
        fleet: &FleetName,
        cluster: &ClusterName,
        executor: &ExecutorName,
        status: &Arc<ExecutorStatus>,
    ) {
        let labels = vec![
            ("fleet", fleet.to_string()),
            ("cluster", cluster.to_string()),
            ("executor", executor.to_string()),
        ];
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, status)| *other != labels && status.strong_count() > 0);
        all.push((labels, Arc::downgrade(status)));
    }
}

/// Name, meaning, and the value of one executor.
type StatusMetric = (&'static str, &'static str, fn(&StatusReading) -> Option<Box<dyn EncodeMetric>>);

fn gauge(value: f64) -> Box<dyn EncodeMetric> {
    Box::new(ConstGauge::new(value))
}

fn counter(value: u64) -> Box<dyn EncodeMetric> {
    Box::new(ConstCounter::new(value))
}

/// Metrics of an executor.
const METRICS: &[StatusMetric] = &[
    (
        "executor_attached",
        "Whether the executor has a session, and the decider has its full report: 1, or 0.",
        |status| Some(gauge(f64::from(u8::from(status.is_attached)))),
    ),
    (
        "executor_own_lease_seconds",
        "Time until the lease of the executor ends, as the executor counts it; 0 when it has ended.",
        |status| status.lease_left.map(|left| gauge(left.as_secs_f64())),
    ),
    ("executor_work_running", "Work on objects that has not ended.", |status| {
        Some(gauge(status.running as f64))
    }),
    ("executor_work_started", "Work on objects that was started.", |status| Some(counter(status.started))),
    ("executor_connection_attempts", "Attempts to connect to a server.", |status| {
        Some(counter(status.connects))
    }),
    (
        "executor_connection_losses",
        "Attempts to connect that failed, and connections that ended.",
        |status| Some(counter(status.losses)),
    ),
];

impl Collector for ExecutorCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let live: Vec<_> =
            all.iter().filter_map(|(labels, status)| Some((labels, status.upgrade()?.read()))).collect();
        for (name, meaning, value) in METRICS {
            let values: Vec<_> =
                live.iter().filter_map(|(labels, status)| Some((labels, value(status)?))).collect();
            let Some((_, first)) = values.first() else { continue };
            let mut metric = encoder.encode_descriptor(name, meaning, None, first.metric_type())?;
            for (labels, value) in values {
                value.encode(metric.encode_family(*labels)?)?;
            }
        }
        Ok(())
    }
}
