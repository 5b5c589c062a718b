//! Pods of a real Kubernetes API.

use std::io::{BufRead as _, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chancery_events::id::{IncarnationId, ObjectId, VolumeId};
use chancery_events::protocol::{Command, IncarnationSpec};
use chancery_events::spec::{ContainerSpec, ProbeTiming, ReadinessProbe};
use chancery_executor::kubernetes::{KubernetesConfig, KubernetesOrchestrator};
use chancery_executor::reconcile::ObjectTarget;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::conformance::{self, ApiAccess, GuestSupport, OrchestratorUnderTest, OutputAccess, TestBehaviour};
use crate::world::{PATIENCE, payload, spec};

/// Connection between the executor and the API, which can be cut: the administrator uses another one.
struct ApiConnection {
    port: u16,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl ApiConnection {
    fn to(server: u16) -> ApiConnection {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (is_cut, open) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (cut, streams) = (is_cut.clone(), open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(api) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let ends = [(&client, &api), (&api, &client)].map(|(from, to)| {
                    (from.try_clone().expect("a handle"), to.try_clone().expect("a handle"))
                });
                streams.lock().expect("a lock").extend([client, api]);
                for (mut from, mut to) in ends {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        ApiConnection { port, is_cut, open }
    }

    fn set(&self, api: ApiAccess) {
        self.is_cut.store(api == ApiAccess::CutOff, Ordering::SeqCst);
        if api == ApiAccess::CutOff {
            for stream in self.open.lock().expect("a lock").drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Real API, and objects of other owners in it.
struct RealCluster {
    /// Client of the administrator. A start of kubectl takes much more processor time than a request.
    admin: kube::Client,
    holder: Child,
    connection: ApiConnection,
    temporary: tempfile::TempDir,
    foreign: Mutex<Vec<Value>>,
}

fn script(name: &str) -> Program {
    let mut program =
        Program::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kubernetes").join(name));
    program.stdin(Stdio::null());
    program
}

impl RealCluster {
    async fn start() -> RealCluster {
        let temporary = tempfile::tempdir().expect("a directory");
        let dir = temporary.path().join("kubernetes");
        // The script lives as long as its input, and removes everything at its end.
        let mut holder = script("hold");
        let mut holder = holder
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script can be run");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert!(Path::new(line.trim_end()).is_file(), "the API of Kubernetes did not start");
        // The executor's connection can be cut; the API has the same certificate on each port.
        let direct = std::fs::read_to_string(dir.join("kubeconfig")).expect("a file");
        let port = std::fs::read_to_string(dir.join("kube-apiserver/port")).expect("a file");
        let port = port.trim();
        let connection = ApiConnection::to(port.parse().expect("a port"));
        let cut = direct.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{}", connection.port));
        assert_ne!(cut, direct);
        std::fs::write(temporary.path().join("kubeconfig"), cut).expect("written");
        // Every container has this output.
        let lines = "2026-11-21T09:00:00.5Z stdout F one\n2026-11-21T09:00:00.75Z stderr F two\n";
        std::fs::write(dir.join("output.log"), lines).expect("written");
        let admin = config(dir.join("kubeconfig")).client().await.expect("credentials");
        let cluster = RealCluster { admin, holder, connection, temporary, foreign: Mutex::default() };
        cluster.create_node("n1");
        for namespace in ["ns", "control"] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            cluster.create("api/v1/namespaces", &object);
        }
        cluster.provide_storage();
        cluster.apply_policy(&dir).await;
        cluster
    }

    /// Creates a node as `tests/kubernetes/node` does, and waits until it is ready.
    fn create_node(&self, name: &str) {
        let amounts = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": amounts, "allocatable": amounts},
        });
        self.create("api/v1/nodes", &node);
        until("the node is ready", || {
            let node = self.get(&format!("api/v1/nodes/{name}"));
            let conditions = node["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|of| of["type"] == "Ready" && of["status"] == "True"))
        });
    }

    /// Creates volumes that the controller binds to claims: nothing provisions volumes here.
    fn provide_storage(&self) {
        self.create(
            "apis/storage.k8s.io/v1/storageclasses",
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disk"},
                "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
            }),
        );
        for i in 0..12 {
            self.create("api/v1/persistentvolumes", &json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("volume-{i}")},
                "spec": {
                    "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "disk",
                    "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": format!("/none/{i}")},
                },
            }));
        }
    }

    /// Applies the documented admission policy, and waits until it has an effect. Without the policy, each restart of an executor
    /// waits for half a second.
    async fn apply_policy(&self, dir: &Path) {
        // The policy refuses everything while there is no store.
        let config = self.config();
        let client = config.client().await.expect("credentials");
        config.open_store(client).await.expect("the store opens");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/epoch-policy.yaml");
        let mut text = std::fs::read_to_string(file).expect("a file");
        for (shown, own) in [
            ("namespace: chancery-system", "namespace: control"),
            ("name: chancery-default-pods", "name: chancery-main-pods"),
            ("chancery.dev/fleet: default", "chancery.dev/fleet: main"),
        ] {
            assert!(text.contains(shown), "{shown}");
            text = text.replace(shown, own);
        }
        let file = self.temporary.path().join("policy.yaml");
        std::fs::write(&file, text).expect("written");
        let mut kubectl = script("kubectl");
        let output =
            kubectl.arg(dir).args(["apply", "-f"]).arg(file).output().expect("the script can be run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let fenced = async {
            while config.check_access().await.expect("the API responds").fence != Ok(true) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, fenced).await.expect("the API refuses requests of earlier epochs");
    }

    /// Makes a request of the administrator: `api/v1/nodes/n1`. Returns the body of the answer.
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let request = hyper::Request::builder().method(method).uri(format!("/{path}"));
        let request = request.header("content-type", "application/json");
        let request = request.body(body.map(Value::to_string).unwrap_or_default().into_bytes());
        let answer = self.admin.request(request.expect("a request"));
        let answer = block_in_place(|| Handle::current().block_on(answer));
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn get(&self, path: &str) -> Value {
        self.request("GET", path, None)
    }

    fn create(&self, path: &str, object: &Value) {
        self.request("POST", path, Some(object));
    }

    /// Returns the objects with this label.
    fn list(&self, path: &str, label: &str) -> Vec<Value> {
        self.get(&format!("{path}?labelSelector={label}"))["items"].as_array().expect("items").clone()
    }

    fn claims(&self, volume: VolumeId) -> Vec<Value> {
        self.list("api/v1/persistentvolumeclaims", &format!("chancery.dev/volume={volume}"))
    }

    fn config(&self) -> KubernetesConfig {
        config(self.temporary.path().join("kubeconfig"))
    }
}

fn config(kubeconfig: PathBuf) -> KubernetesConfig {
    KubernetesConfig {
        kubeconfig: Some(kubeconfig),
        context: None,
        namespace: "control".parse().expect("a name"),
        fleet: "main".parse().expect("a name"),
        cluster: "pods".parse().expect("a name"),
    }
}

fn until(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for RealCluster {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

impl OrchestratorUnderTest for RealCluster {
    type Orchestrator = KubernetesOrchestrator;

    async fn open(&self) -> KubernetesOrchestrator {
        let config = self.config();
        let client = config.client().await.expect("credentials");
        let (store, _) = config.open_store(client.clone()).await.expect("the store opens");
        KubernetesOrchestrator::open(client, &config.namespace, &store).await
    }

    fn spec(&self, behaves: TestBehaviour, processes: u16) -> IncarnationSpec {
        let mut payload = payload("web", processes, &[]);
        payload.run = None;
        let image = if behaves == TestBehaviour::CannotStart { " " } else { "registry.test/web:1" };
        payload.container = Some(ContainerSpec {
            image: image.to_owned(),
            command: Vec::new(),
            args: Vec::new(),
            env: std::collections::BTreeMap::new(),
            init: Vec::new(),
        });
        let mut labels = Vec::new();
        match behaves {
            TestBehaviour::Stays | TestBehaviour::Writes | TestBehaviour::CannotStart => {}
            TestBehaviour::PowersOff | TestBehaviour::Resets => panic!("a pod is no guest"),
            TestBehaviour::EndsWith(code) => {
                labels = vec![
                    ("chancery.tests/failure", "exit".to_owned()),
                    ("chancery.tests/status", code.to_string()),
                ];
            }
            TestBehaviour::StopsAnswering => {
                labels = vec![("chancery.tests/failure", "unready".to_owned())];
                payload.ports = vec![chancery_events::spec::PayloadPort {
                    name: "http".parse().expect("a name"),
                    protocol: chancery_events::spec::PortProtocol::Tcp,
                    port: 80,
                }];
                let timing = ProbeTiming::default();
                payload.alive = Some(ReadinessProbe::Tcp { port: "http".parse().expect("a name"), timing });
            }
        }
        let mut spec = spec(vec![payload]);
        let labels = labels.into_iter().map(|(key, value)| (key.parse().expect("a key"), value));
        spec.labels.labels.extend(labels);
        spec
    }

    fn running(&self, incarnation: IncarnationId) -> usize {
        self.list("api/v1/pods", &format!("chancery.dev/incarnation={incarnation}")).len()
    }

    fn holds(&self, volume: VolumeId) -> bool {
        !self.claims(volume).is_empty()
    }

    fn lose(&self, volume: VolumeId) {
        for claim in self.claims(volume) {
            let name = claim["metadata"]["name"].as_str().expect("a name");
            self.request("DELETE", &format!("api/v1/namespaces/ns/persistentvolumeclaims/{name}"), None);
        }
        until("the claim is deleted", || self.claims(volume).is_empty());
    }

    fn output(&self) -> OutputAccess {
        OutputAccess::UntilEnd
    }

    fn guests(&self) -> GuestSupport {
        GuestSupport::None
    }

    fn crash_after_record(&self, command: &Command) {
        let object = command.object;
        let (name, kind) = match object {
            ObjectId::Incarnation(id) => (format!("chancery-incarnation-{id}"), "chancery.dev/incarnation"),
            ObjectId::Volume(id) => (format!("chancery-volume-{id}"), "chancery.dev/volume"),
        };
        let record = json!({
            "command": {"object": object, "order": ObjectTarget::of(command), "spec": command.spec},
            "start": "accepted", "end": null, "failure": null, "tombstone": null,
        });
        let store = self.get("api/v1/namespaces/control/configmaps/chancery-main-pods");
        self.create("api/v1/namespaces/control/configmaps", &json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "control", "labels": {
                "chancery.dev/fleet": "main", "chancery.dev/cluster": "pods", "chancery.dev/epoch": store["data"]["epoch"],
                "chancery.dev/lineage": object.lineage().to_string(), kind: object.to_string(),
            }},
            "data": {"record": record.to_string()},
        }));
    }

    fn set_api(&self, api: ApiAccess) -> bool {
        self.connection.set(api);
        true
    }

    fn plant_foreign_things(&self) {
        let pod = |name: &str, labels: Value| {
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": "ns", "labels": labels},
                "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "registry.test/other:1"}]},
            })
        };
        self.create("api/v1/namespaces/ns/pods", &pod("unlabeled", json!({})));
        let other_fleet = json!({
            "chancery.dev/fleet": "other", "chancery.dev/cluster": "pods", "chancery.dev/epoch": "7",
            "chancery.dev/incarnation": crate::world::id(1_000_000).to_string(),
        });
        self.create("api/v1/namespaces/ns/pods", &pod("of-another-fleet", other_fleet));
        let mut foreign = self.foreign.lock().expect("a lock");
        *foreign = ["unlabeled", "of-another-fleet"].map(|name| self.identity(name)).to_vec();
    }

    fn check_foreign_things(&self) {
        let now = ["unlabeled", "of-another-fleet"].map(|name| self.identity(name));
        assert_eq!(now.to_vec(), *self.foreign.lock().expect("a lock"));
    }
}

impl RealCluster {
    /// Parts of a pod that only its owner changes.
    fn identity(&self, pod: &str) -> Value {
        let pod = self.get(&format!("api/v1/namespaces/ns/pods/{pod}"));
        let metadata = &pod["metadata"];
        json!([metadata["uid"], metadata["labels"], metadata["deletionTimestamp"], pod["spec"]["containers"]])
    }
}

pub(crate) async fn pods_of_kubernetes_conform() {
    conformance::check(&RealCluster::start().await).await;
}
