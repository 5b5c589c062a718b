//! Flags of `executor`, and the exit code for each reason to stop.
#![expect(clippy::doc_markdown, reason = "the comments are the help, as people read it")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use chancery_cli::CliExit;
use chancery_events::name::{ClusterName, ExecutorName, FleetName, Namespace};
use chancery_executor::ExecutorStop;
use clap::Args;

use crate::config;
use crate::executors::{ExecutorIdentity, KubernetesAccess, RuntimeAccess};

/// Flags of an executor.
#[derive(Args, Debug)]
#[command(after_help = format!(
    "Stopping an executor leaves its processes running; the same command adopts them again.\n{}",
    CliExit::help()
))]
pub struct ExecutorArgs {
    /// Cluster of the executor
    #[arg(long, value_name = "NAME")]
    cluster: ClusterName,
    /// Name of the executor: unique, and the same at each start
    #[arg(long, value_name = "NAME")]
    name: ExecutorName,
    #[command(flatten)]
    drives: RuntimeArgs,
    /// Namespace of the executor's records in Kubernetes, as in the cluster's spec
    #[arg(long, value_name = "NAME")]
    namespace: Option<Namespace>,
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Directory of the executor store, which must be kept [default: ./chancery-executor/CLUSTER]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Continue from a copied directory instead of the original, which must never be used again
    #[arg(long)]
    pub adopt_copy: bool,
    /// Loopback address with its port at which /metrics is served [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = config::loopback)]
    pub metrics_listen: Option<SocketAddr>,
    /// Filter of log lines [env: CHANCERY_LOG_FILTER]
    #[arg(long, value_name = "FILTER")]
    pub(super) log_filter: Option<String>,
    /// Format of log lines: text or json [env: CHANCERY_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub(super) log_format: Option<String>,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each runtime")]
struct RuntimeArgs {
    /// Drive processes of this machine
    #[arg(long, conflicts_with_all = ["namespace", "CredentialArgs"])]
    process: bool,
    /// Drive virtual machines of this machine
    #[arg(long, conflicts_with_all = ["namespace", "CredentialArgs"])]
    qemu: bool,
    /// Drive simulated nodes, which exist only in memory
    #[arg(long, conflicts_with_all = ["namespace", "CredentialArgs"])]
    simulated: bool,
    /// Drive pods of a Kubernetes cluster; the executor needs no disk
    #[arg(long, requires = "namespace")]
    kubernetes: bool,
}

/// Flags with the credentials of a Kubernetes cluster.
#[derive(Args, Debug)]
pub struct CredentialArgs {
    /// File with the credentials of Kubernetes [default: as kubectl, or the service account of the pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the file with the credentials [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub kube_context: Option<String>,
}

impl ExecutorArgs {
    /// Returns the identity of the executor in a fleet.
    pub fn who(&self, fleet: &FleetName) -> ExecutorIdentity {
        let runtime = match &self.namespace {
            Some(namespace) => RuntimeAccess::Kubernetes(KubernetesAccess {
                namespace: namespace.clone(),
                kubeconfig: self.credentials.kubeconfig.clone(),
                context: self.credentials.kube_context.clone(),
            }),
            None if self.drives.process => RuntimeAccess::Process,
            None if self.drives.qemu => RuntimeAccess::Qemu,
            None => RuntimeAccess::Simulated,
        };
        let (executor, cluster) = (self.name.clone(), self.cluster.clone());
        ExecutorIdentity { fleet: fleet.clone(), executor, cluster, runtime }
    }

    /// Returns the directory of the executor.
    pub fn dir(&self) -> PathBuf {
        let usual = || PathBuf::from("chancery-executor").join(self.cluster.as_str());
        self.data_dir.clone().unwrap_or_else(usual)
    }

    /// Returns the exit code for a reason to stop.
    pub fn exit(stop: &ExecutorStop) -> ExitCode {
        match stop {
            ExecutorStop::StaleDecider(_) => CliExit::StaleDecider.into(),
            ExecutorStop::StoreTaken | ExecutorStop::TakenOver(_) | ExecutorStop::Copied(_) => {
                CliExit::Conflict.into()
            }
            ExecutorStop::Refused(_) | ExecutorStop::Diverged(_) => CliExit::Denied.into(),
            ExecutorStop::Storage(_) => CliExit::Failure.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{CliArgs, CliCommand, LocalCommand};
    use super::*;

    fn parsed(words: &str) -> Result<ExecutorArgs, clap::error::ErrorKind> {
        let cli = CliArgs::try_parse_from(words.split(' ')).map_err(|error| error.kind())?;
        match cli.command {
            CliCommand::Local(LocalCommand::Executor(executor)) => Ok(executor),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_drives_one_runtime_under_names() {
        let fleet = "main".parse().expect("a name");
        let executor = parsed("chancery executor --cluster edge --name e1 --process").expect("flags");
        assert_eq!(
            (executor.who(&fleet).runtime, executor.dir()),
            (RuntimeAccess::Process, "chancery-executor/edge".into())
        );
        let executor =
            parsed("chancery executor --cluster edge --name e1 --simulated --data-dir d").expect("flags");
        assert_eq!((executor.who(&fleet).runtime, executor.dir()), (RuntimeAccess::Simulated, "d".into()));
        let executor = parsed(
            "chancery executor --cluster edge --name e1 --kubernetes --namespace ops --kube-context prod",
        )
        .expect("flags");
        let (namespace, context) = ("ops".parse().expect("a name"), Some("prod".to_owned()));
        let access = KubernetesAccess { namespace, kubeconfig: None, context };
        assert_eq!(executor.who(&fleet).runtime, RuntimeAccess::Kubernetes(access));
        for words in [
            "chancery executor --cluster edge --name e1",
            "chancery executor --cluster edge --name e1 --process --simulated",
            "chancery executor --cluster edge --process",
            "chancery executor --cluster edge --name e1 --kubernetes",
            "chancery executor --cluster edge --name e1 --process --namespace ops",
            "chancery executor --cluster edge --name e1 --simulated --kubeconfig f",
            "chancery executor --cluster E! --name e1 --process",
        ] {
            assert!(parsed(words).is_err(), "{words}");
        }
    }
}
