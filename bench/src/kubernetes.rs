//! Real Kubernetes API, as in the tests, with an audit log that counts its requests.

use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::server::BenchmarkServer;

/// Namespaces of executors' records.
pub(crate) const CONTROL: [&str; 2] = ["control-1", "control-2"];
/// Namespace of the pods.
pub(crate) const PODS: &str = "bench";
/// Time limit of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// Audit policy: each answered request, except those that only kubelets and controllers make.
const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  resources:
  - {group: coordination.k8s.io}
  - {group: events.k8s.io}
  - {group: "", resources: [events, nodes, nodes/status, pods/status]}
- level: Metadata
"#;

/// Kubernetes API of one benchmark, which is removed on drop.
pub(crate) struct BenchmarkKubernetes {
    dir: PathBuf,
    kubeconfig: PathBuf,
    holder: Child,
    /// Removed after the API.
    directory: tempfile::TempDir,
}

/// Answered request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditedRequest {
    pub(crate) verb: String,
    user_agent: Option<String>,
    object_ref: Option<AuditedObject>,
}

/// Object of an answered request.
#[derive(Debug, Deserialize)]
struct AuditedObject {
    resource: String,
    name: Option<String>,
}

impl AuditedRequest {
    /// Returns the resource and the name of the object.
    pub(crate) fn object(&self) -> (&str, &str) {
        let of = self.object_ref.as_ref();
        let name = of.and_then(|of| of.name.as_deref());
        (of.map_or("", |of| &of.resource), name.unwrap_or_default())
    }
}

fn script(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kubernetes").join(name))
}

fn run(command: &mut Command) -> Result<()> {
    // The workload's results are on the standard output.
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

impl BenchmarkKubernetes {
    /// Starts an API with these nodes, and with the namespaces of executors and pods.
    pub(crate) fn start(nodes: &[String]) -> Result<BenchmarkKubernetes> {
        let directory = crate::directory()?;
        let dir = directory.path().join("kubernetes");
        let policy = directory.path().join("policy.yaml");
        std::fs::write(&policy, POLICY)?;
        let log = directory.path().join("audit");
        let flags = format!("--audit-policy-file={}\n--audit-log-path={}", policy.display(), log.display());
        let mut holder = script("hold")
            .arg(&dir)
            .env("CHANCERY_TEST_KUBERNETES_API_FLAGS", flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start Kubernetes")?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().context("its output")?).read_line(&mut line)?;
        let kubeconfig = PathBuf::from(line.trim_end());
        let api = BenchmarkKubernetes { dir, kubeconfig, holder, directory };
        ensure!(api.kubeconfig.is_file(), "Kubernetes did not start: see above");
        for node in nodes {
            run(script("node").arg(&api.dir).arg(node))?;
        }
        for namespace in CONTROL.into_iter().chain([PODS]) {
            run(script("kubectl").arg(&api.dir).args(["create", "namespace", namespace]))?;
        }
        Ok(api)
    }

    /// File with the credentials of an administrator.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Starts a server whose embedded executors use this API.
    pub(crate) fn server(&self, embedded: &str) -> Result<BenchmarkServer> {
        let kubeconfig = self.kubeconfig.to_str().context("a path in UTF-8")?;
        BenchmarkServer::start_with(&[("KUBECONFIG", kubeconfig), ("CHANCERY_EMBEDDED_EXECUTORS", embedded)])
    }

    /// Returns the end of the audit log.
    pub(crate) fn audited(&self) -> Result<u64> {
        Ok(std::fs::metadata(self.directory.path().join("audit"))?.len())
    }

    /// Returns the requests after `from` in the audit log that an executor or the bare client made: the client of both
    /// states no name.
    pub(crate) fn requests(&self, from: u64) -> Result<Vec<AuditedRequest>> {
        let mut log = std::fs::File::open(self.directory.path().join("audit"))?;
        log.seek(SeekFrom::Start(from))?;
        let mut all = Vec::new();
        let mut lines = BufReader::new(log);
        let mut line = String::new();
        // The last line may be incomplete.
        while lines.read_line(&mut line)? > 0 && line.ends_with('\n') {
            let request: AuditedRequest = serde_json::from_str(&line)?;
            if request.user_agent.is_none() {
                all.push(request);
            }
            line.clear();
        }
        Ok(all)
    }

    /// Waits until the requests after `from` meet a condition.
    pub(crate) fn until(
        &self,
        from: u64,
        what: &str,
        is_met: impl Fn(&[AuditedRequest]) -> bool,
    ) -> Result<()> {
        let began = Instant::now();
        while !is_met(&self.requests(from)?) {
            ensure!(began.elapsed() < PATIENCE, "{what} did not happen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for BenchmarkKubernetes {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // The script removes the instance; its result has no receiver.
        let _ = self.holder.wait();
    }
}
