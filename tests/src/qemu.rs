//! Guests for tests of virtual machines.

mod linux;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

pub use linux::build_linux;

use crate::preload;

/// Builds the guest of `tests/qemu` as the file `guest` in the directory.
pub fn build_guest(directory: &Path) {
    let built = Command::new(sources().join("build")).arg(directory).output().expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("qemu")
}

/// Builds a bootable disk image of 1 MiB as the file `image` in the directory. The first byte of its second sector is `A`; its
/// guest prints it, and replaces it by `B`.
pub fn build_image(directory: &Path) {
    let image = directory.join("image");
    let flags = "-m32 -nostdlib -static -no-pie \
                 -Wl,-Ttext=0x7c00,--oformat=binary,--build-id=none,--no-warn-rwx-segments";
    let built = Command::new("cc")
        .args(flags.split_whitespace())
        .arg("-o")
        .arg(&image)
        .arg(sources().join("boot.S"))
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut bytes = std::fs::read(&image).expect("a boot sector");
    assert_eq!(bytes.len(), 512, "a boot sector");
    bytes.resize(1 << 20, 0);
    bytes[512] = b'A';
    std::fs::write(image, bytes).expect("an image");
}

/// Builds a QEMU in the directory for which the file system of disks is full while the file `full` is in the directory. Returns
/// the program.
pub fn build_qemu_without_space(directory: &Path) -> PathBuf {
    let library = preload::build("qemu/full.c", directory);
    let program = directory.join("qemu-without-space");
    let (library, full) = (library.display(), directory.join("full"));
    let script = format!(
        "#!/bin/sh\nDISK_FULL={} LD_PRELOAD={library} exec qemu-system-x86_64 \"$@\"\n",
        full.display()
    );
    std::fs::write(&program, script).expect("a script");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    program
}

/// Second serial port of the guest of `tests/qemu`.
#[derive(Debug)]
pub struct GuestPort(BufReader<UnixStream>);

impl GuestPort {
    /// Connects to the port of the guest with this directory. The guest must have printed `READY`: a starting one loses what it
    /// receives.
    pub fn open(directory: &Path) -> std::io::Result<GuestPort> {
        // The path of a socket is limited to about 100 bytes.
        let directory = std::fs::File::open(directory)?;
        let stream = UnixStream::connect(format!("/proc/self/fd/{}/serial.sock", directory.as_raw_fd()))?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        Ok(GuestPort(BufReader::new(stream)))
    }

    /// Sets the maximum time for an answer.
    pub fn set_patience(&self, patience: Duration) -> std::io::Result<()> {
        self.0.get_ref().set_read_timeout(Some(patience))
    }

    /// Sends a command.
    pub fn send(&mut self, command: &str) -> std::io::Result<()> {
        self.0.get_mut().write_all(format!("{command}\n").as_bytes())
    }

    /// Sends a command, and returns the answer.
    pub fn ask(&mut self, command: &str) -> std::io::Result<String> {
        self.send(command)?;
        let mut answer = String::new();
        self.0.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

/// Returns the state that QEMU reports of the guest with this directory, such as `running`.
pub fn run_state(directory: &Path) -> std::io::Result<String> {
    // The path of a socket is limited to about 100 bytes.
    let directory = std::fs::File::open(directory)?;
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/qmp.sock", directory.as_raw_fd()))?;
    stream.write_all(b"{\"execute\": \"qmp_capabilities\"}\n{\"execute\": \"query-status\"}\n")?;
    for line in BufReader::new(stream).lines() {
        let message: Value = serde_json::from_str(&line?)?;
        if let Some(status) = message["return"]["status"].as_str() {
            return Ok(status.to_owned());
        }
    }
    Err(std::io::ErrorKind::UnexpectedEof.into())
}
