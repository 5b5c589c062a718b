//! Check that guests run on an accelerator. A `/dev/kvm` that opens does not show it: on hosts that virtualize without support of
//! the processor, guests hang, crawl, or end with internal errors.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::sync::Mutex;

use super::super::named;
use super::super::start::search_path;
use super::command_line::{GuestAccelerator, QemuSettings};

/// Guest that writes its heartbeats to the first serial port and ends QEMU: `heartbeat.S`, assembled.
#[rustfmt::skip]
const GUEST: [u8; 72] = [
    0x02, 0xb0, 0xad, 0x1b, 0x00, 0x00, 0x01, 0x00, 0xfe, 0x4f, 0x51, 0xe4, 0x00, 0x00, 0x10, 0x00,
    0x00, 0x00, 0x10, 0x00, 0x48, 0x00, 0x10, 0x00, 0x48, 0x00, 0x10, 0x00, 0x20, 0x00, 0x10, 0x00,
    0xbe, 0x05, 0x00, 0x00, 0x00, 0xbb, 0x48, 0x00, 0x10, 0x00, 0xb9, 0x40, 0x0d, 0x03, 0x00, 0xf0,
    0xff, 0x03, 0xe2, 0xfb, 0x66, 0xba, 0xf8, 0x03, 0xb0, 0x42, 0xee, 0x4e, 0x75, 0xec, 0x66, 0xba,
    0xf4, 0x00, 0xee, 0xf4, 0xeb, 0xfd, 0x00, 0x00,
];
/// Maximum length of an output that is read, in bytes.
const LONGEST: u64 = 1 << 16;
/// Status of `timeout` when the time has passed.
const TIMED_OUT: i32 = 124;
/// Status of `timeout` when it has killed the program.
const KILLED: i32 = 137;
/// Heartbeats that the guest writes.
const BEATS: &str = "BBBBB";
/// Maximum time from the start of QEMU to the last heartbeat, in seconds.
const PATIENCE: u8 = 2;
/// Time for which a failed check counts: starts that wait for it do not repeat it one after the other. It is shorter than the time
/// between two attempts to start a guest.
const FAILURE_COUNTS: Duration = Duration::from_secs(1);
/// Interval at which the end of QEMU is checked.
const INTERVAL: Duration = Duration::from_millis(10);

/// Result of the last check of an accelerator. A heartbeat counts as long as the executor runs.
#[derive(Debug, Default)]
pub(in super::super) struct AcceleratorCheck(Mutex<Option<(Instant, Result<(), String>)>>);

impl AcceleratorCheck {
    /// Checks the accelerator of the settings with a guest, which takes at most three seconds, unless a result counts. Emulated
    /// processors need no check.
    pub(in super::super) async fn check(&self, settings: &QemuSettings) -> io::Result<()> {
        if settings.accelerator == GuestAccelerator::Tcg {
            return Ok(());
        }
        let mut last = self.0.lock().await;
        let result = match &*last {
            Some((at, result)) if result.is_ok() || at.elapsed() < FAILURE_COUNTS => result.clone(),
            _ => {
                let guest = settings.clone();
                let result = tokio::task::spawn_blocking(move || run(&guest)).await?;
                let result = result.map_err(|error| error.to_string());
                last.insert((Instant::now(), result)).1.clone()
            }
        };
        let accelerator = settings.accelerator.word();
        result
            .map_err(|error| io::Error::other(format!("cannot use qemu.accelerator {accelerator}: {error}")))
    }
}

/// Runs a guest on the accelerator until its last heartbeat.
fn run(settings: &QemuSettings) -> io::Result<()> {
    let file = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
    let (mut kernel, mut serial, mut errors) = (file("kernel")?, file("serial")?, file("errors")?);
    kernel.write_all(&GUEST)?;
    // Another process limits the time: it does so also if this one is killed meanwhile.
    let mut command = Command::new("timeout");
    command.args(["--foreground", "-s", "KILL", &PATIENCE.to_string()]).arg(&settings.program);
    for (option, value) in settings.accelerator.options() {
        command.args([format!("-{option}"), (*value).to_owned()]);
    }
    command.args(["-machine", "q35", "-m", "16M", "-display", "none", "-serial", "file:/dev/stdout"]);
    command.args(["-nodefaults", "-no-user-config", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    command.args(["-kernel", "/dev/stdin"]);
    // The program is found as that of guests. Its output is in files: other processes may keep a pipe open.
    command.env_clear().env("PATH", search_path()).stdin(kernel);
    command.stdout(serial.try_clone()?).stderr(errors.try_clone()?);
    let mut child = command.spawn().map_err(named("cannot run timeout of coreutils"))?;
    let until = Instant::now() + Duration::from_secs(u64::from(PATIENCE) + 1);
    let ended = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            // QEMU may be in the kernel, and cannot be killed there.
            None if Instant::now() >= until => break None,
            None => std::thread::sleep(INTERVAL),
        }
    };
    if text(&mut serial)?.contains(BEATS) {
        return Ok(());
    }
    let errors = text(&mut errors)?;
    let reason = errors.lines().rev().find(|line| !line.trim().is_empty());
    let reason = reason.map(|line| format!(": {}", line.trim())).unwrap_or_default();
    Err(io::Error::other(match ended.map(|status| status.code()) {
        None | Some(Some(TIMED_OUT | KILLED)) => {
            format!("a guest had no heartbeat within {PATIENCE} seconds{reason}")
        }
        Some(_) => format!("QEMU ended without a heartbeat of a guest{reason}"),
    }))
}

/// Returns the content of a file from its start.
fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    /// Returns settings whose program is a script in the directory; each run adds a line to the file `runs`.
    fn settings(directory: &Path, script: &str) -> QemuSettings {
        let program = directory.join("qemu");
        let text = format!("#!/bin/sh\necho \"$@\" >> {}/runs\n{script}\n", directory.display());
        std::fs::write(&program, text).expect("a script");
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("permissions");
        QemuSettings { program, accelerator: GuestAccelerator::Kvm, ..QemuSettings::default() }
    }

    fn runs(directory: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(directory.join("runs")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_guest_is_its_source_assembled() {
        let directory = tempfile::tempdir().expect("a directory");
        let output = directory.path().join("guest");
        let flags = "-m32 -nostdlib -static -no-pie \
                     -Wl,-Ttext=0x100000,--oformat=binary,--build-id=none,--no-warn-rwx-segments";
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/process/guest/heartbeat.S");
        let mut command = Command::new("cc");
        command.args(flags.split_whitespace()).arg("-o").arg(&output).arg(source);
        assert!(command.status().expect("a C compiler").success());
        assert_eq!(std::fs::read(output).expect("a guest"), GUEST);
    }

    #[tokio::test]
    async fn a_heartbeat_counts_for_all_later_starts() {
        let directory = tempfile::tempdir().expect("a directory");
        // The guest must be readable from its standard input.
        let script = format!("[ \"$(wc -c < /dev/stdin)\" = {} ] && printf BBBBB", GUEST.len());
        let settings = settings(directory.path(), &script);
        let check = AcceleratorCheck::default();
        // A slow host may need the whole time for the script.
        for _ in 0..10 {
            if check.check(&settings).await.is_ok() {
                break;
            }
            tokio::time::sleep(FAILURE_COUNTS).await;
        }
        let before = runs(directory.path()).len();
        for _ in 0..3 {
            check.check(&settings).await.expect("a heartbeat");
        }
        let runs = runs(directory.path());
        assert_eq!(runs.len(), before, "{runs:?}");
        assert!(runs[0].contains("-accel kvm -cpu host "), "{runs:?}");
    }

    #[tokio::test]
    async fn without_a_heartbeat_the_error_has_the_reason_of_qemu() {
        let directory = tempfile::tempdir().expect("a directory");
        let late = "a guest had no heartbeat within 2 seconds";
        let cases = [
            (
                "printf BBBB; echo 'no module' >&2; echo >&2; exit 1",
                "QEMU ended without a heartbeat of a guest: no module",
            ),
            ("exec sleep 60", late),
            // Another process keeps the output open.
            ("sleep 20 & exec sleep 60", late),
        ];
        for (script, wanted) in cases {
            let settings = settings(directory.path(), script);
            let error =
                AcceleratorCheck::default().check(&settings).await.expect_err("no heartbeat").to_string();
            // A slow host may need the whole time for the script.
            let is_right =
                [wanted, late].map(|why| format!("cannot use qemu.accelerator kvm: {why}")).contains(&error);
            assert!(is_right, "{error}");
        }
        let missing = QemuSettings { program: "/nowhere/qemu".into(), ..settings(directory.path(), "") };
        let error = run(&missing).expect_err("no program").to_string();
        assert!(error.contains("/nowhere/qemu"), "{error}");
    }

    #[tokio::test]
    async fn a_guest_of_the_real_qemu_has_a_heartbeat() {
        let directory = tempfile::tempdir().expect("a directory");
        // The accelerator of each host; only then a slow host has no heartbeat in time.
        let script = "exec qemu-system-x86_64 $(echo \"$@\" | sed 's/-accel kvm -cpu host/-accel tcg/')";
        let settings = settings(directory.path(), script);
        for _ in 0..10 {
            if run(&settings).is_ok() {
                return;
            }
        }
        run(&settings).expect("a heartbeat");
    }
}
