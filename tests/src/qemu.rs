//! Guests for tests of virtual machines.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Builds the guest of `tests/qemu` as the file `guest` in the directory.
pub fn build_guest(directory: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("qemu");
    let flags = "-m32 -O2 -ffreestanding -nostdlib -static -fno-pic -no-pie -fno-stack-protector \
                 -fno-asynchronous-unwind-tables -Wl,--build-id=none,--no-warn-rwx-segments";
    let built = Command::new("cc")
        .args(flags.split_whitespace())
        .arg(format!("-Wl,-T,{}", sources.join("guest.ld").display()))
        .arg("-o")
        .arg(directory.join("guest"))
        .arg(sources.join("guest.c"))
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
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
