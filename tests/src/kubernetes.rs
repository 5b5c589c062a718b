//! Real Kubernetes API on free ports of the loopback, whose nodes are simulated: see `tests/kubernetes`.
//!
//! Its components belong to a script, `tests/kubernetes/hold`, which lives as long as a pipe from here. When the pipe
//! is closed, by `Drop` or any end of this process, the script kills every component and removes the directory.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use chancery_executor::kubernetes::KubernetesConfig;
use hyper::Request;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::until;

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

/// Returns an API without nodes, which this binary's tests use one after another. They may harm it, and know all of its nodes.
/// A start of an API of their own would take as much processor time as they do.
pub fn exclusive() -> MutexGuard<'static, KubernetesApi> {
    static EXCLUSIVE: OnceLock<Mutex<KubernetesApi>> = OnceLock::new();
    let api = EXCLUSIVE.get_or_init(|| Mutex::new(KubernetesApi::start(&[])));
    let api = api.lock().unwrap_or_else(PoisonError::into_inner);
    for node in api.list("nodes", "") {
        api.delete(&format!("nodes/{}", node["metadata"]["name"].as_str().expect("a name")));
    }
    until("no node is left", || api.list("nodes", "").is_empty().then_some(()));
    api
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
        // The script removes the directory too: that of an API in a static variable is not dropped.
        let dir = directory.path().to_owned();
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
            api.node(node);
        }
        api
    }

    /// Creates a node as `tests/kubernetes/node` does without options, and waits until it is ready.
    pub fn node(&self, name: &str) {
        let amounts = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
        self.create(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            }},
            "status": {"capacity": amounts, "allocatable": amounts},
        }));
        until("the node is ready", || {
            let node = self.get(&format!("nodes/{name}"));
            let conditions = node["status"]["conditions"].as_array()?;
            conditions.iter().any(|of| of["type"] == "Ready" && of["status"] == "True").then_some(())
        });
    }

    /// Creates a node with these options of `tests/kubernetes/node`, and waits until it is ready.
    pub fn node_with(&self, name: &str, options: &[&str]) {
        let mut command = script("node");
        command.arg(&self.dir).arg(name).args(options);
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

    /// Makes a request: `/api/v1/pods`, or `/apis/apps/v1/namespaces/demo/deployments/web`. Returns the body of the answer.
    fn try_request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, kube::Error> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(body.into_bytes()).expect("a request");
        self.runtime.block_on(self.client.request(request))
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.try_request(method, path, body);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Makes a request that changes an object of the core API; false if it does not exist, or is being deleted and therefore
    /// cannot get what is requested.
    fn change(&self, method: &str, path: &str, body: Option<&Value>) -> bool {
        match self.try_request(method, &format!("/api/v1/{path}"), body) {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if [404, 422].contains(&status.code) => false,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// Returns an object: `nodes/node-1`, or `namespaces/demo/configmaps/web`.
    pub fn get(&self, path: &str) -> Value {
        self.request("GET", &format!("/api/v1/{path}"), None)
    }

    /// Returns the objects with these labels: `pods` of every namespace, or `namespaces/demo/pods`.
    pub fn list(&self, path: &str, labels: &str) -> Vec<Value> {
        let mut list = self.request("GET", &format!("/api/v1/{path}?labelSelector={labels}"), None);
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
        self.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }

    /// Sets labels of a pod, or removes those that are null.
    pub fn label(&self, pod: &Value, labels: &Value) {
        let text = |field: &str| pod["metadata"][field].as_str().expect("text").to_owned();
        let path = format!("namespaces/{}/pods/{}", text("namespace"), text("name"));
        assert!(self.patch(&path, &json!({"metadata": {"labels": labels}})), "the pod exists");
    }

    /// Merges a patch into an object of the core API; false if it is missing, or is being deleted and cannot get that.
    pub fn patch(&self, path: &str, change: &Value) -> bool {
        self.change("PATCH", path, Some(change))
    }

    /// Deletes an object of the core API; false if there is none.
    pub fn delete(&self, path: &str) -> bool {
        self.change("DELETE", path, None)
    }

    /// Creates an object.
    pub fn create(&self, object: &Value) {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]).to_lowercase());
        let root = if version.contains('/') { "apis" } else { "api" };
        let namespace = object["metadata"].get("namespace");
        let namespace = namespace.map(|name| format!("namespaces/{}/", text(name))).unwrap_or_default();
        let ending = if kind.ends_with('s') { "es" } else { "s" };
        self.request("POST", &format!("/{root}/{version}/{namespace}{kind}{ending}"), Some(object));
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
