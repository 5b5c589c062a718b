//! Real Kubernetes API on free ports of the loopback, whose nodes are simulated: see `tests/kubernetes`.
//!
//! Its components belong to a script, `tests/kubernetes/hold`, which lives as long as a pipe from here. When the pipe
//! is closed, by `Drop` or any end of this process, the script kills every component and removes the directory.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use chancery_executor::kubernetes::KubernetesConfig;
use hyper::Request;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Separate Kubernetes API, which ends when this value is dropped.
pub struct KubernetesApi {
    dir: PathBuf,
    kubeconfig: PathBuf,
    /// Client of the administrator, and where it runs. A start of kubectl takes much more processor time than a request.
    client: kube::Client,
    runtime: Runtime,
    holder: Child,
    directory: tempfile::TempDir,
}

/// Returns the API that this binary's tests share, and must not harm. Each test has nodes, namespaces and a Chancery cluster of
/// its own in it, and only one writes output.
pub fn shared() -> &'static KubernetesApi {
    static SHARED: OnceLock<KubernetesApi> = OnceLock::new();
    SHARED.get_or_init(|| KubernetesApi::start(&[]))
}

fn script(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes").join(name))
}

fn run(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the script can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

impl KubernetesApi {
    /// Starts an API with these nodes, and waits until all are ready.
    pub fn start(nodes: &[&str]) -> KubernetesApi {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path().join("kubernetes");
        let mut holder = script("hold")
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script can be run");
        let mut line = String::new();
        let output = holder.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let kubeconfig = PathBuf::from(line.trim_end());
        assert!(kubeconfig.is_file(), "the API of Kubernetes did not start");
        let config = KubernetesConfig {
            kubeconfig: Some(kubeconfig.clone()),
            context: None,
            namespace: "default".parse().expect("a name"),
            fleet: "default".parse().expect("a name"),
            cluster: "default".parse().expect("a name"),
        };
        // Its thread notices that a connection is closed while no request is made.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let client = runtime.block_on(config.client()).expect("credentials");
        let api = KubernetesApi { dir, kubeconfig, client, runtime, holder, directory };
        for node in nodes {
            api.node(&[node]);
        }
        api
    }

    /// Creates a node with this name and these options of `tests/kubernetes/node`, and waits until it is ready.
    pub fn node(&self, name_and_options: &[&str]) {
        let mut command = script("node");
        command.arg(&self.dir).args(name_and_options);
        run(command);
    }

    /// Replaces the output of every container in the API. Each line has its time, its stream, `F` and its text.
    pub fn write_output(&self, lines: &str) {
        std::fs::write(self.dir.join("output.log"), lines).expect("written");
    }

    /// File with the credentials of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Port of the API.
    pub fn port(&self) -> u16 {
        let port = std::fs::read_to_string(self.dir.join("kube-apiserver/port")).expect("a file");
        port.trim().parse().expect("a port")
    }

    /// Temporary directory that is removed with the API.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs kubectl, and returns what it prints. Panics if it fails.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let mut command = script("kubectl");
        command.arg(&self.dir).args(args);
        run(command)
    }

    /// Runs kubectl, and returns what it prints; its errors if it fails.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let output = script("kubectl").arg(&self.dir).args(args).stdin(Stdio::null()).output();
        let output = output.expect("the script can be run");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Lets the kubelet of a node die (`kill`) or start again (`restart`).
    pub fn kubelet(&self, action: &str, node: &str) {
        let mut command = script("kubelet");
        command.arg(action).arg(&self.dir).arg(node);
        run(command);
    }

    /// Makes a request of the core API: `pods`, or `namespaces/demo/pods/web`. Returns the body of the answer.
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request =
            Request::builder().method(method).uri(format!("/api/v1/{path}")).header("content-type", kind);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(body.into_bytes()).expect("a request");
        let answer = self.runtime.block_on(self.client.request(request));
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Returns an object: `nodes/node-1`, or `namespaces/demo/configmaps/web`.
    pub fn get(&self, path: &str) -> Value {
        self.request("GET", path, None)
    }

    /// Returns the objects with these labels: `pods` of every namespace, or `namespaces/demo/pods`.
    pub fn list(&self, path: &str, labels: &str) -> Vec<Value> {
        let mut list = self.request("GET", &format!("{path}?labelSelector={labels}"), None);
        let kind = list["kind"].as_str().expect("a kind").trim_end_matches("List").to_owned();
        let mut items = list["items"].take().as_array().cloned().expect("items");
        for item in &mut items {
            // Those of a list are without.
            item["apiVersion"] = list["apiVersion"].clone();
            item["kind"] = json!(kind);
        }
        items
    }

    /// Returns all pods with these labels, in every namespace.
    pub fn pods(&self, labels: &str) -> Vec<Value> {
        self.list("pods", labels)
    }

    /// Creates a namespace.
    pub fn namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.request("POST", "namespaces", Some(&namespace));
    }

    /// Sets labels of a pod, or removes those that are null.
    pub fn label(&self, pod: &Value, labels: &Value) {
        let text = |field: &str| pod["metadata"][field].as_str().expect("text").to_owned();
        let path = format!("namespaces/{}/pods/{}", text("namespace"), text("name"));
        self.request("PATCH", &path, Some(&json!({"metadata": {"labels": labels}})));
    }

    /// Creates or changes an object.
    pub fn apply(&self, object: &Value) {
        let mut file = tempfile::NamedTempFile::new_in(self.directory.path()).expect("a file");
        file.write_all(object.to_string().as_bytes()).expect("written");
        self.kubectl(&["apply", "-f", file.path().to_str().expect("text")]);
    }

    /// Returns the log of a component since its last start.
    pub fn log_of(&self, component: &str) -> String {
        std::fs::read_to_string(self.dir.join(component).join("log"))
            .unwrap_or_else(|error| error.to_string())
    }

    /// Kills, pauses, resumes or restarts a component.
    pub fn component(&self, action: &str, component: &str) {
        let mut command = script("component");
        command.arg(action).arg(&self.dir).arg(component);
        run(command);
    }
}

impl Drop for KubernetesApi {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
