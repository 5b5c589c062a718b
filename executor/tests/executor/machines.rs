//! Conformance of real virtual machines of QEMU. A payload has one process, so several processes are several payloads.

use std::num::NonZeroU64;
use std::path::Path;
use std::process::Command as Program;

use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::protocol::{Command, IncarnationPayload, IncarnationSpec};
use chancery_executor::process::{ProcessConfig, ProcessOrchestrator, QemuSettings};
use serde_json::json;

use crate::conformance::{
    self, ApiAccess, ExitAccess, GuestSupport, OrchestratorUnderTest, OutputAccess, ProbeSupport,
    TestBehaviour,
};
use crate::world::{RealProcesses, TestRoot, config, payload, spec};

/// Maximum number of machines that run at a time.
const MOST: usize = 4;
/// Memory of a machine: 16 MiB for the guest, the rest for QEMU.
const MEMORY: u64 = 112 << 20;

struct RealMachines {
    processes: RealProcesses,
    settings: QemuSettings,
    /// Directory of the guest.
    _images: tempfile::TempDir,
}

impl RealMachines {
    fn new() -> RealMachines {
        let images = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/qemu/build");
        let built = Program::new(script).arg(images.path()).output().expect("the script runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let settings = QemuSettings {
            program: "qemu-system-x86_64".into(),
            images: vec![images.path().to_owned()],
            ..QemuSettings::default()
        };
        RealMachines { processes: RealProcesses(TestRoot::new()), settings, _images: images }
    }

    fn root(&self) -> &TestRoot {
        &self.processes.0
    }
}

fn machine(name: &str, kernel: &str, cmdline: &str) -> IncarnationPayload {
    let machine = json!({"kernel": kernel, "cmdline": cmdline});
    IncarnationPayload {
        run: None,
        vm: Some(serde_json::from_value(machine).unwrap()),
        memory: NonZeroU64::new(MEMORY),
        ..payload(name, 1, &[])
    }
}

impl OrchestratorUnderTest for RealMachines {
    type Orchestrator = ProcessOrchestrator;

    async fn open(&self) -> ProcessOrchestrator {
        let config = ProcessConfig { qemu: Some(self.settings.clone()), ..config(self.root().path()) };
        ProcessOrchestrator::open(config).await.unwrap()
    }

    fn spec(&self, behaves: TestBehaviour, processes: u16) -> IncarnationSpec {
        let (kernel, cmdline) = match behaves {
            TestBehaviour::Stays | TestBehaviour::Writes => ("guest", ""),
            TestBehaviour::EndsWith(0) => panic!("a guest has no exit status"),
            TestBehaviour::EndsWith(_) => ("guest", "do=p after=2"),
            TestBehaviour::CannotStart => ("no-such-kernel", ""),
            TestBehaviour::StopsAnswering => panic!("a guest cannot be probed"),
            TestBehaviour::PowersOff => ("guest", "do=o after=2"),
            TestBehaviour::Resets => ("guest", "do=r after=2"),
        };
        let others = (1..processes).map(|number| machine(&format!("other-{number}"), "guest", ""));
        spec(std::iter::once(machine("web", kernel, cmdline)).chain(others).collect())
    }

    fn running(&self, id: IncarnationId) -> usize {
        self.processes.running(id)
    }

    fn holds(&self, volume: VolumeId) -> bool {
        self.processes.holds(volume)
    }

    fn lose(&self, volume: VolumeId) {
        std::fs::remove_dir_all(self.root().volume(volume).join("data")).unwrap();
    }

    fn output(&self) -> OutputAccess {
        OutputAccess::Console
    }

    fn guests(&self) -> GuestSupport {
        GuestSupport::Guests
    }

    fn exits(&self) -> ExitAccess {
        ExitAccess::Failure
    }

    fn probes(&self) -> ProbeSupport {
        ProbeSupport::None
    }

    fn most_processes(&self) -> usize {
        MOST
    }

    fn crash_after_record(&self, command: &Command) {
        self.root().record(command, Some(&self.settings));
    }

    fn set_api(&self, _api: ApiAccess) -> bool {
        false
    }

    fn plant_foreign_things(&self) {
        self.processes.plant_foreign_things();
    }

    fn check_foreign_things(&self) {
        self.processes.check_foreign_things();
    }
}

pub(crate) async fn virtual_machines_conform() {
    conformance::check(&RealMachines::new()).await;
}
