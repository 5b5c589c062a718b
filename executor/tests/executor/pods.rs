//! Pods of a real Kubernetes API.

use std::io::{BufRead as _, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use chancery_events::id::{IncarnationId, ObjectId, VolumeId};
use chancery_events::protocol::{Command, IncarnationSpec};
use chancery_events::spec::{ContainerSpec, ProbeTiming, ReadinessProbe};
use chancery_executor::kubernetes::{KubernetesConfig, KubernetesOrchestrator};
use chancery_executor::reconcile::ObjectTarget;
use serde_json::{Value, json};

use crate::conformance::{self, ApiAccess, GuestSupport, OrchestratorUnderTest, OutputAccess, TestBehaviour};
use crate::world::{payload, spec};

/// Connection between the executor and the API, which can be cut: kubectl uses another one.
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
    dir: PathBuf,
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

fn run(mut program: Program) -> String {
    let output = program.output().expect("the script can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

impl RealCluster {
    fn start() -> RealCluster {
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
        let cluster = RealCluster { dir, holder, connection, temporary, foreign: Mutex::default() };
        let mut node = script("node");
        node.arg(&cluster.dir).arg("n1");
        run(node);
        for namespace in ["ns", "control"] {
            cluster.kubectl(&["create", "namespace", namespace]);
        }
        cluster.apply(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disk"},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
        }));
        // Nothing provisions volumes here: the controller binds claims to these.
        for i in 0..12 {
            cluster.apply(&json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("volume-{i}")},
                "spec": {
                    "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "disk",
                    "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": format!("/none/{i}")},
                },
            }));
        }
        cluster
    }

    fn kubectl(&self, args: &[&str]) -> String {
        let mut program = script("kubectl");
        program.arg(&self.dir).args(args);
        run(program)
    }

    fn get(&self, args: &[&str]) -> Value {
        let text = self.kubectl(&[&["get", "-o", "json"], args].concat());
        serde_json::from_str(&text).expect("kubectl prints JSON")
    }

    fn apply(&self, object: &Value) {
        let file = self.temporary.path().join("object.json");
        std::fs::write(&file, object.to_string()).expect("written");
        self.kubectl(&["apply", "-f", file.to_str().expect("text")]);
    }

    fn config(&self) -> KubernetesConfig {
        KubernetesConfig {
            kubeconfig: Some(self.temporary.path().join("kubeconfig")),
            context: None,
            namespace: "control".parse().expect("a name"),
            fleet: "main".parse().expect("a name"),
            cluster: "pods".parse().expect("a name"),
        }
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
        let label = format!("chancery.dev/incarnation={incarnation}");
        let pods = self.get(&["pods", "-A", "-l", &label]);
        pods["items"].as_array().expect("items").len()
    }

    fn holds(&self, volume: VolumeId) -> bool {
        let label = format!("chancery.dev/volume={volume}");
        !self.get(&["pvc", "-A", "-l", &label])["items"].as_array().expect("items").is_empty()
    }

    fn lose(&self, volume: VolumeId) {
        let label = format!("chancery.dev/volume={volume}");
        self.kubectl(&["delete", "pvc", "-n", "ns", "-l", &label]);
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
        self.apply(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "control", "labels": {
                "chancery.dev/fleet": "main", "chancery.dev/cluster": "pods", "chancery.dev/epoch": "1",
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
        self.apply(&pod("unlabeled", json!({})));
        let other_fleet = json!({
            "chancery.dev/fleet": "other", "chancery.dev/cluster": "pods", "chancery.dev/epoch": "7",
            "chancery.dev/incarnation": crate::world::id(1_000_000).to_string(),
        });
        self.apply(&pod("of-another-fleet", other_fleet));
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
        let pod = self.get(&["pod", "-n", "ns", pod]);
        let metadata = &pod["metadata"];
        json!([metadata["uid"], metadata["labels"], metadata["deletionTimestamp"], pod["spec"]["containers"]])
    }
}

pub(crate) async fn pods_of_kubernetes_conform() {
    conformance::check(&RealCluster::start()).await;
}
