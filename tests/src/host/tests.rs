//! Planted violations: the checker finds each of them, and nothing where there is none.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::*;
use crate::until;

/// Host of a test, in a directory of its own. No process that has logged its start outlives it, also if the test fails.
struct TestHost {
    state: HostState,
    _directory: TempDir,
}

impl std::ops::Deref for TestHost {
    type Target = HostState;
    fn deref(&self) -> &HostState {
        &self.state
    }
}

impl std::ops::DerefMut for TestHost {
    fn deref_mut(&mut self) -> &mut HostState {
        &mut self.state
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        for process in self.state.alive().into_iter().flatten() {
            let pid = i32::try_from(process.pid).ok().and_then(rustix::process::Pid::from_raw);
            // It may have ended meanwhile.
            let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
        }
    }
}

/// Child that does not outlive the value.
struct TestChild(Child);

impl Drop for TestChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Host without processes, whose checker does not wait for leftovers.
fn host() -> TestHost {
    let directory =
        tempfile::Builder::new().prefix("chancery-host-").tempdir().expect("a temporary directory");
    let mut host = HostState::new(directory.path()).expect("a host");
    host.patience = Duration::ZERO;
    TestHost { state: host, _directory: directory }
}

/// Starts a payload as a supervisor would, in its own working directory.
fn payload(host: &HostState, incarnation: &str, shapes: &str, volume: Option<&Path>) -> TestChild {
    let work = host.campaign_directory.join("nodes").join(incarnation).join("work");
    std::fs::create_dir_all(&work).expect("a working directory");
    let before = host.log().expect("a log").lines().count();
    let child = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("payloads/witness"))
        .arg(&host.dir)
        .arg(shapes)
        .args(volume)
        .env_clear()
        .env("HOME", &work)
        .env("CHANCERY_INCARNATION", incarnation)
        .env("CHANCERY_PAYLOAD", "app")
        .env("CHANCERY_PROCESS", "0")
        .current_dir(&work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the payload starts");
    let child = TestChild(child);
    until("it has logged its start, and taken its locks", || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", child.0.id())).ok()?;
        let logged = host.log().ok()?.lines().count() > before;
        (logged && name.trim() == "sleep").then_some(())
    });
    child
}

fn end(mut child: TestChild) {
    child.0.kill().expect("it can be killed");
    child.0.wait().expect("it is ours");
}

#[test]
fn payloads_that_run_and_end_as_they_should_are_no_finding() {
    let mut host = host();
    let volume = host.campaign_directory.join("volume");
    std::fs::create_dir(&volume).expect("a volume");
    let [a, b] = ["a", "b"].map(|incarnation| payload(&host, incarnation, "plain", None));
    assert_eq!(host.settle().expect("a check"), HostFindings::default());
    assert!(host.is_alive("a").expect("a check") && host.is_alive("b").expect("a check"));
    end(a);
    end(b);
    for incarnation in ["c", "d"] {
        end(payload(&host, incarnation, "plain", Some(&volume)));
    }
    assert_eq!(host.settle_ended().expect("a check"), HostFindings::default());
}

#[test]
fn a_second_instance_is_found_while_the_first_runs_and_after_it() {
    let mut host = host();
    let first = payload(&host, "a", "plain", None);
    let second = payload(&host, "a", "plain", None);
    // One finding by the lock, and one by the second start.
    assert_eq!(host.settle().expect("a check").started_twice.len(), 2);
    end(first);
    end(second);
    end(payload(&host, "b", "plain", None));
    end(payload(&host, "b", "plain", None));
    assert_eq!(host.settle().expect("a check").started_twice.len(), 3);
}

#[test]
fn a_second_user_of_a_volume_is_found() {
    let mut host = host();
    let volume = host.campaign_directory.join("volume");
    std::fs::create_dir(&volume).expect("a volume");
    let first = payload(&host, "a", "plain", Some(&volume));
    let second = payload(&host, "b", "plain", Some(&volume));
    assert_eq!(host.settle().expect("a check").volumes_with_two_users.len(), 1);
    assert_eq!(host.volume_users().expect("a check").len(), 0, "no variable names it");
    end(first);
    end(second);
}

type CanaryChange = fn(&Path) -> std::io::Result<()>;

#[test]
fn each_change_of_a_canary_is_found() {
    let changes: [(&str, CanaryChange, usize); 5] = [
        // The directory changes as well.
        ("new", |dir| std::fs::write(dir.join("new"), ""), 2),
        ("removed", |dir| std::fs::remove_file(dir.join("deep/file")), 2),
        ("written", |dir| std::fs::write(dir.join("deep/file"), "other"), 1),
        (
            "written with the same bytes",
            |dir| std::fs::write(dir.join("file"), std::fs::read(dir.join("file"))?),
            1,
        ),
        (
            "made again",
            |dir| {
                let bytes = std::fs::read(dir.join("file"))?;
                std::fs::remove_file(dir.join("file"))?;
                std::fs::write(dir.join("file"), bytes)
            },
            2,
        ),
    ];
    for (what, change, found) in changes {
        let mut host = host();
        change(&host.canary("bound")).expect("a change");
        assert_eq!(host.settle().expect("a check").files_touched.len(), found, "{what}");
    }
}

#[test]
fn what_outlives_its_main_process_is_found_and_what_no_payload_has_logged() {
    let mut host = host();
    let main = payload(&host, "a", "daemon", None);
    until("the daemon runs", || (host.alive().ok()?.len() == 2).then_some(()));
    assert_eq!(host.settle().expect("a check"), HostFindings::default());
    end(main);
    let found = host.settle().expect("a check");
    assert!(found.left.len() == 1 && found.left[0].contains("whose main process is dead"), "{found:?}");
    // Copy that has not logged anything.
    let stranger = Command::new("sleep")
        .arg("100000")
        .env("HOME", host.campaign_directory.join("nodes"))
        .env("CHANCERY_INCARNATION", "b")
        .spawn();
    let stranger = TestChild(stranger.expect("it starts"));
    until("it is found", || {
        let left = host.settle().ok()?.left;
        left.iter().any(|one| one.contains("which no payload has logged")).then_some(())
    });
    end(stranger);
}

#[test]
fn processes_mounts_and_cgroups_that_are_left_at_the_end_are_found() {
    let mut host = host();
    assert_eq!(host.settle_ended().expect("a check"), HostFindings::default());
    let idle = Command::new("sleep").arg("100000").current_dir(&host.campaign_directory).spawn();
    let idle = TestChild(idle.expect("it starts"));
    until("it is found", || (host.settle_ended().ok()?.left.len() == 1).then_some(()));
    end(idle);
    // Id of an ended incarnation, as part of a cgroup's name.
    let incarnation = uuid::Uuid::new_v4().to_string();
    end(payload(&host, &incarnation, "plain", None));
    assert_eq!(host.settle_ended().expect("a check"), HostFindings::default());
    if !has_cgroups() || !rustix::process::geteuid().is_root() {
        println!("not shown here: cgroups and mounts need the right to make them");
        return;
    }
    let cgroup = cgroups::roots()[0].join(format!("{incarnation}.app-0"));
    std::fs::create_dir(&cgroup).expect("a cgroup");
    let found = host.settle_ended().expect("a check");
    std::fs::remove_dir(&cgroup).expect("it is empty");
    assert_eq!(found.left, [format!("cgroup {}", cgroup.display())]);
    let at = host.campaign_directory.join("nodes");
    let mount = TestMount::bind(&host.canary("bound"), &at).expect("a mount");
    assert_eq!(host.settle_ended().expect("a check").left, [format!("mount {}", at.display())]);
    drop(mount);
    assert_eq!(host.settle_ended().expect("a check"), HostFindings::default());
}
