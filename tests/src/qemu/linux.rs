//! Linux guest: the kernel that `tests/qemu/install` fetches, and a RAM disk with `tests/qemu/init.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::sources;

/// Puts the Linux guest into the directory: the kernel `vmlinuz`, and the RAM disk `initrd`.
pub fn build_linux(directory: &Path) {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    static RAM_DISK: OnceLock<Vec<u8>> = OnceLock::new();
    let kernel = KERNEL.get_or_init(find_kernel);
    let ram_disk = RAM_DISK.get_or_init(|| build_ram_disk(&kernel.join("modules")));
    std::fs::copy(kernel.join("vmlinuz"), directory.join("vmlinuz")).expect("a kernel");
    std::fs::write(directory.join("initrd"), ram_disk).expect("a RAM disk");
}

/// Returns the directory of the kernel and its modules.
fn find_kernel() -> PathBuf {
    let found = Command::new(sources().join("kernel")).output().expect("the script can be run");
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    PathBuf::from(String::from_utf8(found.stdout).expect("a path").trim_end())
}

fn build_ram_disk(modules: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(modules).expect("modules").map(|entry| entry.expect("a module").path());
    let mut modules: Vec<_> = entries.collect();
    modules.sort();
    let mut archive = CpioArchive::default();
    archive.add("init", EXECUTABLE, &build_init());
    archive.add("modules", DIRECTORY, &[]);
    for module in modules {
        let name = module.file_name().and_then(|name| name.to_str()).expect("a name");
        archive.add(&format!("modules/{name}"), REGULAR, &std::fs::read(&module).expect("a module"));
    }
    archive.finish()
}

/// Compiles `init.rs`. The RAM disk has no libraries.
fn build_init() -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("init");
    let flags = "--edition 2024 -D warnings -C target-feature=+crt-static -C opt-level=s -C panic=abort -C strip=symbols";
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(flags.split_whitespace())
        .arg("-o")
        .arg(&program)
        .arg("init.rs")
        .current_dir(sources())
        .output()
        .expect("rustc runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::read(program).expect("a program")
}

/// Modes of files: their type and permissions.
const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;

/// Archive of files in the format `newc` of cpio, which the kernel unpacks. Its sources describe the format in
/// `Documentation/driver-api/early-userspace/buffer-format.rst`.
#[derive(Default)]
struct CpioArchive {
    bytes: Vec<u8>,
    count: u32,
}

impl CpioArchive {
    /// Adds a file after the directory that contains it.
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.count += 1;
        let length = |bytes: usize| u32::try_from(bytes).expect("a length of 32 bits");
        let (owner, group, links, modified) = (0, 0, 1, 0);
        let fields = [
            self.count,
            mode,
            owner,
            group,
            links,
            modified,
            length(content.len()),
            0, // device of the file, in two fields
            0,
            0, // device that the file is, in two fields
            0,
            length(name.len() + 1),
            0, // checksum, which this format does not have
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
