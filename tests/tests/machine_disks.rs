//! Disks of guests of the real QEMU, driven by the real program.
//!
//! | case | test |
//! |---|---|
//! | stop and start, SIGKILL of QEMU, of server and of supervisor, update, relocate | `content_of_a_disk_outlives_each_end_of_its_guest` |
//! | a second incarnation, a second plan, a second QEMU | `a_disk_has_one_user` |
//! | another number of processors, other memory, other volumes | `a_change_of_a_machine_replaces_its_guest_and_keeps_its_disks` |
//! | the most disks, on each board | the same |
//! | no space on the host | `a_host_without_space_is_an_error_of_the_guest_and_nothing_else` |
//! | changes to an image | `changes_to_an_image_are_discarded_with_their_incarnation` |
//! | a disk that was resized or removed, an image that QEMU refuses | `a_start_that_cannot_use_a_file_names_it` |

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};

use chancery_tests::qemu::{GuestPort, build_guest, build_image, build_qemu_without_space};
use chancery_tests::{ServerProcess, TestClient, payloads, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Number of tests of this file that may run now: each has one or two machines.
static FREE: (Mutex<u32>, Condvar) = (Mutex::new(2), Condvar::new());

/// Permit of a test to run.
pub(super) struct TestPermit;

impl TestPermit {
    pub(super) fn take() -> TestPermit {
        let free = FREE.0.lock().unwrap_or_else(PoisonError::into_inner);
        *FREE.1.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner) -= 1;
        TestPermit
    }
}

impl Drop for TestPermit {
    fn drop(&mut self) {
        *FREE.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREE.1.notify_one();
    }
}

/// Returns a server whose cluster `machines` runs virtual machines on two nodes.
pub(super) fn machines(set: impl FnOnce(&mut ServerProcess)) -> ServerProcess {
    let mut server = ServerProcess::new();
    let images = images(&server);
    std::fs::create_dir(&images).expect("a directory");
    build_guest(&images);
    build_image(&images);
    server.set("CHANCERY_QEMU_IMAGES", &images.display().to_string());
    set(&mut server);
    server.start_again();
    let client = server.client();
    client.must("cluster.apply", &json!({"name": "machines", "spec": {"runtime": "qemu"}}));
    for node in ["node-1", "node-2"] {
        let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
        let storage = json!([{"class": "ssd", "capacity": 1 << 30}]);
        let spec = json!({"domain": "a", "resources": total, "storage": storage});
        client.must("node.apply", &json!({"name": node, "cluster": "machines", "spec": spec}));
    }
    server
}

fn images(server: &ServerProcess) -> PathBuf {
    server.directory().join("images")
}

/// Returns the payload of a machine of 16 MiB with these disks: name and capacity.
pub(super) fn machine(disks: &[(&str, u64)]) -> Value {
    let disk = |(name, capacity): &(&str, u64)| json!({"class": "ssd", "capacity": capacity, "mount": format!("/{name}")});
    let disks: Vec<_> = disks.iter().map(disk).collect();
    json!({
        "name": "app", "resources": {"cpu": 100, "memory": 112 << 20}, "vm": {"kernel": "guest"}, "volumes": disks,
    })
}

/// Deploys one replica of a plan with this payload.
pub(super) fn deploy(client: &TestClient, plan: &str, deployment: &str, payload: &Value) {
    let automatic = json!({
        "create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
        "start": "automatic", "stop": "automatic", "delete": "automatic",
    });
    let spec = json!({
        "namespace": "tests", "service": plan, "payloads": [payload], "approval": automatic, "sharing": "allowed",
        "restart": "on_failure", "restart_delay": 100, "timeouts": {"stop": 2000},
    });
    client.must("plan.apply", &json!({"name": plan, "spec": spec}));
    client.must("deployment.create", &json!({"plan": plan, "name": deployment, "spec": {"count": 1}}));
}

/// Guest of a plan's only replica, which runs.
pub(super) struct RunningGuest {
    plan: String,
    pub(super) replica: String,
    pub(super) incarnation: String,
    port: GuestPort,
}

impl RunningGuest {
    /// Waits until the plan's replica runs in an incarnation that meets a condition, and its guest reads commands.
    pub(super) fn wait(server: &ServerProcess, plan: &str, is_right: impl Fn(&str) -> bool) -> RunningGuest {
        let (replica, incarnation) = until(&format!("a guest of {plan} runs"), || {
            let row = server.client().items(&format!("replicas?plan={plan}&phase=running")).pop()?;
            let text = |field: &str| row[field].as_str().map(str::to_owned);
            text("name").zip(text("incarnation")).filter(|(_, incarnation)| is_right(incarnation))
        });
        let directory = until("its directory is found", || {
            let nodes = std::fs::read_dir(executor(server).join("nodes")).ok()?;
            nodes.flatten().map(|node| node.path().join(&incarnation)).find(|directory| directory.exists())
        });
        until("it has started", || {
            let output = std::fs::read_to_string(directory.join("app-0.out.1")).unwrap_or_default();
            output.contains("READY").then_some(())
        });
        let port = GuestPort::open(&directory.join("app-0")).expect("a second port");
        RunningGuest { plan: plan.to_owned(), replica, incarnation, port }
    }

    /// Waits for the guest of the next incarnation.
    pub(super) fn next(self, server: &ServerProcess) -> RunningGuest {
        RunningGuest::wait(server, &self.plan, |incarnation| incarnation != self.incarnation)
    }

    /// Waits for the guest again, in the same incarnation.
    fn again(self, server: &ServerProcess) -> RunningGuest {
        let RunningGuest { plan, incarnation, port, .. } = self;
        drop(port);
        RunningGuest::wait(server, &plan, |now| now == incarnation)
    }

    /// Sends a command that has no answer.
    pub(super) fn send(&mut self, command: &str) {
        self.port.send(command).expect("a second port");
    }

    pub(super) fn must(&mut self, command: &str, answer: &str) {
        assert_eq!(self.port.ask(command).expect("an answer"), answer, "{} of {}", command, self.incarnation);
    }

    pub(super) fn qemu(&self, server: &ServerProcess) -> Option<Pid> {
        let all = payloads(server.data());
        let process = all.into_iter().find(|process| process.incarnation == self.incarnation)?;
        Pid::from_raw(i32::try_from(process.pid).ok()?)
    }

    /// Kills QEMU, or its supervisor.
    pub(super) fn kill(&self, server: &ServerProcess, whose: fn(Pid) -> Pid) {
        kill_process(whose(self.qemu(server).expect("it runs")), Signal::KILL).expect("a signal");
    }
}

pub(super) fn executor(server: &ServerProcess) -> PathBuf {
    server.data().join("executors/default/machines")
}

/// Returns the disk of the volume with this capacity.
fn disk(server: &ServerProcess, capacity: u64) -> PathBuf {
    let volumes = server.client().items("volumes");
    let volume = volumes.iter().find(|volume| volume["capacity"] == capacity).expect("a volume");
    executor(server).join("volumes").join(volume["id"].as_str().expect("an id")).join("data/disk")
}

pub(super) fn parent_of(process: Pid) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).expect("it runs");
    let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
    parent.and_then(|parent| Pid::from_raw(parent.parse().ok()?)).expect("a parent")
}

/// Starts a replica that has stopped, once nothing of its last incarnation is left.
pub(super) fn start(client: &TestClient, replica: &str) {
    until(&format!("{replica} can be started"), || {
        let key = uuid::Uuid::new_v4().to_string();
        let answer = client.decided(&key, "replica.start", &json!({"name": replica}));
        (200..300).contains(&answer.status).then_some(())
    });
}

/// Returns the message of the last operation of a kind, once it has failed.
fn failure(client: &TestClient, replica: &str, kind: &str) -> String {
    let row = until(&format!("a {kind} of {replica} has failed"), || {
        let failed = client.items(&format!("operations?kind={kind}&state=failed&limit=100"));
        failed.into_iter().find(|row| row["replica"] == replica)
    });
    row["message"].as_str().unwrap_or_default().to_owned()
}

/// Step between two checks of a guest; returns the guest that runs after it.
type DiskStep = fn(&mut ServerProcess, RunningGuest) -> RunningGuest;

#[test]
fn content_of_a_disk_outlives_each_end_of_its_guest() {
    let _permit = TestPermit::take();
    let mut server = machines(|_| {});
    let disks = [("data", 4 << 20), ("log", 1 << 20)];
    deploy(&server.client(), "db", "d1", &machine(&disks));
    let mut guest = RunningGuest::wait(&server, "db", |_| true);
    for (command, answer) in [("s data", "ok 8192"), ("s log", "ok 2048"), ("s other", "absent")] {
        guest.must(command, answer);
    }
    let found = disk(&server, 4 << 20).metadata().expect("a disk");
    assert_eq!((found.len(), found.mode() & 0o777, found.blocks()), (4 << 20, 0o600, 0), "it is sparse");
    let steps: [(&str, DiskStep); 7] = [
        ("a stop and a start", |server, guest| {
            server.client().must("replica.stop", &json!({"name": guest.replica}));
            server.client().wait_for("db", "stopped", 1);
            start(&server.client(), &guest.replica);
            guest.next(server)
        }),
        ("SIGKILL of QEMU", |server, guest| {
            guest.kill(server, |qemu| qemu);
            guest.next(server)
        }),
        ("SIGKILL of the server", |server, guest| {
            server.kill();
            server.start_again();
            guest.again(server)
        }),
        ("SIGKILL of the supervisor", |server, guest| {
            guest.kill(server, parent_of);
            guest.again(server)
        }),
        ("SIGKILL of server, supervisor and QEMU", |server, guest| {
            let qemu = guest.qemu(server).expect("it runs");
            server.kill();
            if parent_of(qemu) != Pid::INIT {
                kill_process(parent_of(qemu), Signal::KILL).expect("a signal");
            }
            kill_process(qemu, Signal::KILL).expect("a signal");
            server.start_again();
            guest.next(server)
        }),
        ("an update", |server, guest| {
            let mut payload = machine(&[("data", 4 << 20), ("log", 1 << 20)]);
            payload["vm"]["cmdline"] = json!("version=2");
            deploy(&server.client(), "db", "d2", &payload);
            guest.next(server)
        }),
        ("a relocate", |server, guest| {
            let node = |server: &ServerProcess| server.client().items("replicas?plan=db")[0]["node"].clone();
            let before = node(server);
            server.client().must("replica.relocate", &json!({"name": guest.replica}));
            let guest = guest.next(server);
            assert_ne!(node(server), before);
            guest
        }),
    ];
    for (number, (step, act)) in steps.into_iter().enumerate() {
        // The last sectors of both disks change with each step.
        guest.must(&format!("w data {} 100 {number}", number * 100), "ok");
        guest.must(&format!("w data 8191 1 {number}"), "ok");
        guest.must(&format!("w log 2047 1 {number}"), "ok");
        guest.must("f data", "ok");
        guest = act(&mut server, guest);
        println!("{step}: {}", guest.incarnation);
        for earlier in 0..=number {
            guest.must(&format!("v data {} 100 {earlier}", earlier * 100), "ok");
        }
        guest.must(&format!("v data 8191 1 {number}"), "ok");
        guest.must(&format!("v log 2047 1 {number}"), "ok");
        guest.must("v log 0 1 7", "other");
    }
    // Discarded sectors free the space of the host.
    let blocks = || disk(&server, 4 << 20).metadata().expect("a disk").blocks();
    let before = blocks();
    guest.must("d data 0 64", "ok");
    guest.must("v data 0 1 0", "other");
    guest.must("v data 100 100 1", "ok");
    assert!(blocks() < before, "{before} blocks before, {} after", blocks());
    assert_eq!(disk(&server, 4 << 20).metadata().expect("a disk").len(), 4 << 20);
}

#[test]
fn a_disk_has_one_user() {
    let _permit = TestPermit::take();
    let server = machines(|_| {});
    let client = server.client();
    let mut payload = machine(&[("data", 1 << 20)]);
    payload["volumes"][0]["volume"] = json!("shared");
    payload["vm"]["cmdline"] = json!("do=i after=1");
    deploy(&client, "one", "d1", &payload);
    let mut guest = RunningGuest::wait(&server, "one", |_| true);
    guest.must("w data 0 2048 1", "ok");
    // A second QEMU, which knows nothing of Chancery. It takes its lock when a device uses the disk.
    let node = json!({"driver": "file", "node-name": "disk", "filename": disk(&server, 1 << 20)});
    let second = Command::new("timeout")
        .args(["30", "qemu-system-x86_64", "-machine", "q35", "-display", "none", "-nodefaults", "-S"])
        .args(["-blockdev", &node.to_string(), "-device", "virtio-blk-pci,drive=disk"])
        .output()
        .expect("QEMU");
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(1) && error.contains("Failed to get \"write\" lock"), "{error}");
    // The old guest ignores the power button: the next one waits until QEMU was killed.
    client.must("replica.restart", &json!({"name": guest.replica}));
    let old = guest.incarnation.clone();
    let mut has_overlapped = false;
    until("the next incarnation runs", || {
        has_overlapped |= payloads(server.data()).len() > 1;
        let row = client.items("replicas?plan=one&phase=running").pop()?;
        (row["incarnation"] != *old).then_some(())
    });
    assert!(!has_overlapped, "the old guest has ended before the new one started");
    let mut guest = guest.next(&server);
    guest.must("v data 0 2048 1", "ok");
    // Another plan waits for the volume.
    payload["vm"]["cmdline"] = json!("plan=two");
    deploy(&client, "two", "d1", &payload);
    until("it waits for the volume", || {
        let row = client.items("incarnations?plan=two").pop()?;
        row["message"].as_str()?.contains("waits for volumes: shared").then_some(())
    });
    assert_eq!(payloads(server.data()).len(), 1);
    guest.must("v data 0 2048 1", "ok");
    client.must("replica.stop", &json!({"name": guest.replica}));
    let mut guest = RunningGuest::wait(&server, "two", |_| true);
    guest.must("v data 0 2048 1", "ok");
}

#[test]
fn a_change_of_a_machine_replaces_its_guest_and_keeps_its_disks() {
    let _permit = TestPermit::take();
    let server = machines(|_| {});
    let client = server.client();
    let data = ("data", 1 << 20);
    let change = |payload: &Value, pointer: &str, value: Value| {
        let mut payload = payload.clone();
        *payload.pointer_mut(pointer).expect("a field") = value;
        payload
    };
    let first = machine(&[data]);
    let with_log = machine(&[("log", 2 << 20), data]);
    let names: Vec<_> = (0..15).map(|number| format!("disk-{number}")).collect();
    let mut most: Vec<_> = names.iter().map(|name| (name.as_str(), 512)).collect();
    most.push(data);
    let mut most = machine(&most);
    let mut cpus = first.clone();
    cpus["vm"]["cpus"] = json!(2);
    most["vm"]["machine"] = json!("q35");
    let mut most_on_pc = most.clone();
    most_on_pc["vm"]["machine"] = json!("pc");
    let changes = [
        ("d2", cpus.clone(), "-smp\0", "2"),
        ("d3", change(&cpus, "/resources/memory", json!(128 << 20)), "-m\0", "32M"),
        ("d4", with_log.clone(), "-m\0", "16M"),
        ("d5", first.clone(), "-smp\0", "1"),
        ("d6", with_log, "-machine\0", "q35"),
        ("d7", most, "-machine\0", "q35"),
        ("d8", most_on_pc, "-machine\0", "pc"),
    ];
    deploy(&client, "db", "d1", &first);
    let mut guest = RunningGuest::wait(&server, "db", |_| true);
    guest.must("w data 0 2048 1", "ok");
    for (deployment, payload, option, value) in changes {
        deploy(&client, "db", deployment, &payload);
        guest = guest.next(&server);
        let qemu = guest.qemu(&server).expect("it runs").as_raw_nonzero();
        let arguments = std::fs::read_to_string(format!("/proc/{qemu}/cmdline")).expect("arguments");
        assert!(arguments.contains(&format!("\0{option}{value}\0")), "{deployment}: {arguments}");
        guest.must("v data 0 2048 1", "ok");
        let volumes = payload["volumes"].as_array().expect("volumes");
        for volume in volumes {
            let (name, sectors) = (&volume["mount"].as_str().expect("a mount")[1..], &volume["capacity"]);
            let answer = format!("ok {}", sectors.as_u64().expect("a capacity") / 512);
            guest.must(&format!("s {name}"), &answer);
        }
        match deployment {
            "d4" => guest.must("w log 0 4096 4", "ok"),
            // A volume that is not attached keeps its content.
            "d5" => guest.must("s log", "absent"),
            "d6" => guest.must("v log 0 4096 4", "ok"),
            _ => {}
        }
    }
    // Each incarnation has started after the end of the one before it.
    let types = "incarnation.start_requested.v1,incarnation.ended.v1";
    let events = client.get(&format!("/v1/fleets/default/events?types={types}&follow=false")).text;
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let order: Vec<_> = events.map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect();
    let (start, end) = ("dev.chancery.incarnation.start_requested.v1", "dev.chancery.incarnation.ended.v1");
    let wanted: Vec<_> = [start, end].into_iter().cycle().take(15).collect();
    assert_eq!(order, wanted);
    // A volume does not grow. The guest runs on, unchanged.
    deploy(&client, "db", "d9", &machine(&[("data", 2 << 20)]));
    until("the reason is shown", || {
        let row = client.read("plans/db").to_string();
        row.contains("has 1048576 bytes, and 2097152 are requested").then_some(())
    });
    guest.must("v data 0 2048 1", "ok");
    let row = client.items("replicas?plan=db").pop().expect("a replica");
    assert_eq!((&row["phase"], &row["incarnation"]), (&json!("running"), &json!(guest.incarnation)));
}

#[test]
fn a_host_without_space_is_an_error_of_the_guest_and_nothing_else() {
    let _permit = TestPermit::take();
    let server = machines(|server| {
        let program = build_qemu_without_space(&images(server));
        server.set("CHANCERY_QEMU_PROGRAM", &program.display().to_string());
    });
    let client = server.client();
    deploy(&client, "db", "d1", &machine(&[("data", 1 << 20)]));
    let mut guest = RunningGuest::wait(&server, "db", |_| true);
    guest.must("w data 0 64 1", "ok");
    let full = images(&server).join("full");
    std::fs::write(&full, "").expect("a file");
    for _ in 0..3 {
        guest.must("w data 64 64 2", "error 1");
    }
    guest.must("v data 0 64 1", "ok");
    guest.must("f data", "ok");
    let row = client.read(&format!("incarnations/{}", guest.incarnation));
    assert_eq!((&row["state"], &row["processes"][0]["status"]), (&json!("running"), &json!("ready")));
    std::fs::remove_file(&full).expect("a file");
    guest.must("w data 64 64 2", "ok");
    let row = client.items("replicas?plan=db").pop().expect("a replica");
    assert_eq!((&row["phase"], &row["incarnation"]), (&json!("running"), &json!(guest.incarnation)));
    client.must("replica.restart", &json!({"name": guest.replica}));
    let mut guest = guest.next(&server);
    guest.must("v data 0 64 1", "ok");
    guest.must("v data 64 64 2", "ok");
}

#[test]
fn changes_to_an_image_are_discarded_with_their_incarnation() {
    let _permit = TestPermit::take();
    let server = machines(|_| {});
    let client = server.client();
    let image = images(&server).join("image");
    let before = std::fs::read(&image).expect("an image");
    let mut payload = machine(&[("data", 1 << 20)]);
    payload["vm"] = json!({"image": "image"});
    deploy(&client, "boots", "d1", &payload);
    let mut last = String::new();
    for round in 0..2 {
        let (replica, incarnation) = until("it runs", || {
            let row = client.items("replicas?plan=boots&phase=running").pop()?;
            let incarnation = row["incarnation"].as_str().filter(|incarnation| *incarnation != last)?;
            Some((row["name"].clone(), incarnation.to_owned()))
        });
        let nodes = std::fs::read_dir(executor(&server).join("nodes")).expect("nodes");
        let directory = nodes.flatten().map(|node| node.path().join(&incarnation));
        let directory = directory.into_iter().find(|directory| directory.exists()).expect("a directory");
        let output = until("it has read what it has written", || {
            let output = std::fs::read_to_string(directory.join("app-0.out.1")).unwrap_or_default();
            (output.matches("image ").count() == 2).then_some(output)
        });
        assert_eq!(output, "image A\r\nimage B\r\n", "{round}");
        let all = payloads(server.data());
        let process = all.iter().find(|process| process.incarnation == incarnation).expect("it runs");
        let files = open_files(process.pid);
        let flags =
            files.iter().find(|(path, _)| path == image.to_str().expect("a path")).expect("the image").1;
        assert_eq!(flags & 3, 0, "the image is open for reading only: {flags:o}");
        let work = directory.join("app-0/work").canonicalize().expect("a directory");
        let overlays = files.iter().filter(|(path, _)| Path::new(path).starts_with(&work));
        let overlays: Vec<_> = overlays.map(|(path, _)| path.as_str()).collect();
        assert!(matches!(overlays[..], [one] if one.ends_with(" (deleted)")), "{files:?}");
        assert_eq!(std::fs::read_dir(&work).expect("a directory").count(), 0, "it has no name");
        last = incarnation;
        client.must("replica.restart", &json!({"name": replica}));
    }
    assert_eq!(std::fs::read(&image).expect("an image"), before);
}

/// Returns the paths of a process's open files, with their flags.
fn open_files(process: u32) -> Vec<(String, u32)> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").flatten();
    let file = |entry: std::fs::DirEntry| {
        let path = std::fs::read_link(entry.path()).ok()?.to_str()?.to_owned();
        let number = entry.file_name().into_string().ok()?;
        let info = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        Some((path, u32::from_str_radix(flags.trim(), 8).ok()?))
    };
    entries.filter_map(file).collect()
}

#[test]
fn a_start_that_cannot_use_a_file_names_it() {
    let _permit = TestPermit::take();
    let server = machines(|_| {});
    let client = server.client();
    deploy(&client, "db", "d1", &machine(&[("data", 1 << 20)]));
    let mut guest = RunningGuest::wait(&server, "db", |_| true);
    guest.must("w data 0 2048 1", "ok");
    client.must("replica.stop", &json!({"name": guest.replica}));
    client.wait_for("db", "stopped", 1);
    let disk = disk(&server, 1 << 20);
    let resize = |bytes: u64| {
        let file = std::fs::File::options().write(true).open(&disk).expect("a disk");
        file.set_len(bytes).expect("a size");
    };
    resize((1 << 20) + 512);
    start(&client, &guest.replica);
    let message = failure(&client, &guest.replica, "start");
    let wanted = format!("{} has 1049088 bytes, not 1048576", disk.display());
    assert!(message.contains(&wanted), "{message}");
    assert_eq!(disk.metadata().expect("a disk").len(), (1 << 20) + 512, "it is unchanged");
    resize(1 << 20);
    start(&client, &guest.replica);
    let mut guest = guest.next(&server);
    guest.must("v data 0 2048 1", "ok");
    // A disk that does not exist any more is not replaced by an empty one.
    client.must("replica.stop", &json!({"name": guest.replica}));
    client.wait_for("db", "stopped", 1);
    let aside = server.directory().join("aside");
    std::fs::rename(&disk, &aside).expect("a disk");
    let state = || client.items("volumes")[0]["state"].clone();
    until("it is lost", || (state() == "lost").then_some(()));
    assert!(!disk.exists());
    std::fs::rename(&aside, &disk).expect("a disk");
    until("it is found again", || (state() == "ready").then_some(()));
    start(&client, &guest.replica);
    let mut guest = guest.next(&server);
    guest.must("v data 0 2048 1", "ok");
    // QEMU itself refuses an image.
    std::fs::write(images(&server).join("broken.qcow2"), "no image").expect("a file");
    let mut payload = machine(&[]);
    payload["vm"] = json!({"image": "broken.qcow2"});
    deploy(&client, "broken", "d1", &payload);
    let message = until("it has failed", || {
        let row = client.items("incarnations?plan=broken&state=failed").pop()?;
        row["message"].as_str().map(str::to_owned)
    });
    assert!(message.starts_with("app-0 was ended with its virtual machine, status 1: "), "{message}");
    assert!(message.ends_with("Image is not in qcow2 format"), "{message}");
}
