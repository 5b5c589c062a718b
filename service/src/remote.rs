//! Executor as a program of its own, near its machines, which reaches the server by requests.

use std::path::Path;

use anyhow::{Context as _, Result};
use chancery_events::name::FleetName;
use chancery_executor::ExecutorStop;
use chancery_executor::remote::DeciderEndpoints;

use crate::executors::{self, ExecutorIdentity, ProcessLimits, RuntimeAccess};
use crate::server::stop_signal;

/// Reason why the program ended.
#[derive(Debug)]
pub enum ExecutorExit {
    /// Stop was requested. The executor's incarnations continue.
    Asked,
    /// Executor must not act, or cannot.
    Stopped(ExecutorStop),
}

/// Runs an executor until it is asked to stop, or must stop.
pub async fn run(
    server: &str,
    fleet: &FleetName,
    who: ExecutorIdentity,
    root: &Path,
    means: &ProcessLimits,
) -> Result<ExecutorExit> {
    let remote = DeciderEndpoints::new(server, fleet)?;
    let mut stop = stop_signal()?;
    // The store of a Kubernetes cluster is in its API.
    if !matches!(who.runtime, RuntimeAccess::Kubernetes(_)) {
        chancery_journal::private::create_dir_all(root)
            .with_context(|| format!("cannot create directory {}", root.display()))?;
    }
    tracing::info!(executor = %who.executor, cluster = %who.cluster, server, dir = %root.display(), "executor started");
    let ended = executors::drive(who, root, means, None, || remote.connect(), stop.comes()).await;
    Ok(match ended {
        Ok(()) => ExecutorExit::Asked,
        Err(stop) => ExecutorExit::Stopped(stop),
    })
}
