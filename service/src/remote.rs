//! Executor as a program of its own, near its machines, which reaches the server by requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use chancery_api::{AllowedHosts, ApiShared, ApiState};
use chancery_events::name::{ClusterName, Namespace};
use chancery_events::spec::ClusterRuntime;
use chancery_executor::ExecutorStop;
use chancery_executor::console::ConsoleHub;
use chancery_executor::process::ProcessLogs;
use chancery_executor::remote::DeciderEndpoints;
use tokio::net::TcpListener;

use crate::config::ServiceConfig;
use crate::executors::{self, ExecutorIdentity, ProcessLimits, RuntimeAccess};
use crate::server::{no_port, stop_signal};

/// Time before the spec of a cluster is read again.
const PAUSE: Duration = Duration::from_secs(2);

/// Compares the namespace of an executor with that of the cluster's spec, before the executor writes there. Waits until a server
/// has the cluster.
async fn check_namespace(
    remote: &DeciderEndpoints,
    cluster: &ClusterName,
    namespace: &Namespace,
) -> Result<(), ExecutorStop> {
    loop {
        match remote.row(&format!("clusters/{cluster}")).await {
            Ok(Some(row)) => {
                let wanted = row["kubernetes"]["namespace"].as_str();
                // The decider refuses the executor of another runtime.
                return match wanted.filter(|wanted| *wanted != namespace.as_str()) {
                    None => Ok(()),
                    Some(wanted) => Err(ExecutorStop::Refused(format!(
                        "namespace {namespace} of the executor is not that of the cluster's spec, {wanted}"
                    ))),
                };
            }
            Ok(None) => tracing::warn!(%cluster, "cluster does not exist, retrying"),
            Err(error) => tracing::warn!(%cluster, %error, "cannot read cluster, retrying"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Serves the metrics of an executor, at the routes and with the limits of a server without fleets.
async fn serve_metrics(config: &ServiceConfig, listen: SocketAddr, common: Arc<ApiShared>) -> Result<()> {
    let listener = TcpListener::bind(listen).await.map_err(|error| no_port(listen, error))?;
    let address = listener.local_addr().context("cannot read listening address")?;
    tracing::info!(%address, hosts = ?config.allowed_hosts, "metrics served");
    let api = ApiState { fleets: BTreeMap::new(), common };
    tokio::spawn(async move {
        if let Err(error) = chancery_api::serve(api, listener, std::future::pending()).await {
            tracing::error!(%error, "cannot serve metrics");
        }
    });
    Ok(())
}

/// Runs an executor until it is asked to stop, or must stop, which is the inner error: it must not act, or cannot. Its incarnations
/// continue. Serves its metrics if an address is given.
pub async fn run(
    config: &ServiceConfig,
    who: ExecutorIdentity,
    root: &Path,
    means: &ProcessLimits,
    metrics: Option<SocketAddr>,
) -> Result<Result<(), ExecutorStop>> {
    let (server, fleet) = (config.server.as_str(), &config.fleet);
    let hosts = AllowedHosts::new(&config.allowed_hosts, None);
    let common = Arc::new(ApiShared::new(config.limits.clone(), hosts));
    let status = who.status(&common.metrics);
    if let Some(listen) = metrics {
        serve_metrics(config, listen, common).await?;
    }
    let mut remote = DeciderEndpoints::new(server, fleet)?;
    if who.runtime.runtime() == ClusterRuntime::Qemu {
        let source = ProcessLogs { root: root.to_owned() };
        remote = remote.with_consoles(ConsoleHub::new(Arc::new(source)));
    }
    let mut stop = stop_signal()?;
    // The store of a Kubernetes cluster is in its API.
    if !matches!(who.runtime, RuntimeAccess::Kubernetes(_)) {
        chancery_journal::private::create_dir_all(root)
            .with_context(|| format!("cannot create directory {}", root.display()))?;
    }
    tracing::info!(executor = %who.executor, cluster = %who.cluster, server, dir = %root.display(), "executor started");
    let mut stop = std::pin::pin!(stop.comes());
    if let RuntimeAccess::Kubernetes(access) = &who.runtime {
        let checked = tokio::select! {
            checked = check_namespace(&remote, &who.cluster, &access.namespace) => checked,
            () = &mut stop => return Ok(Ok(())),
        };
        if checked.is_err() {
            return Ok(checked);
        }
    }
    Ok(executors::drive((who, status), root, means, None, || remote.connect(), stop).await)
}
