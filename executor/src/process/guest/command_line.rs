//! Command line of QEMU for a guest. Each argument is built from typed fields; text of a plan is an argument of its own, or
//! quoted.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use chancery_events::spec::{GuestNetwork, PortProtocol, VM_OVERHEAD, VirtualMachineSpec};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::super::integrity::if_exists;

/// Settings of an executor of virtual machines.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct QemuSettings {
    /// Program of QEMU, as a path or as a name in the search path.
    pub program: PathBuf,
    /// Directories with kernels, images and firmware. A plan names files relative to them; the first that has the file counts.
    pub images: Vec<PathBuf>,
    /// Accelerator of all guests.
    #[serde(default)]
    pub accelerator: GuestAccelerator,
}

/// Means by which QEMU runs the processors of guests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestAccelerator {
    /// Emulation, which works on each host.
    #[default]
    Tcg,
    /// Virtualization by the kernel of the host.
    Kvm,
}

impl GuestAccelerator {
    /// Parses the word of an accelerator.
    pub fn parse(word: &str) -> Option<GuestAccelerator> {
        [GuestAccelerator::Tcg, GuestAccelerator::Kvm].into_iter().find(|one| one.word() == word)
    }

    /// Returns the word of the accelerator.
    pub const fn word(self) -> &'static str {
        match self {
            GuestAccelerator::Tcg => "tcg",
            GuestAccelerator::Kvm => "kvm",
        }
    }

    /// Options of QEMU, without the dash, and their values.
    pub(super) const fn options(self) -> &'static [(&'static str, &'static str)] {
        match self {
            GuestAccelerator::Tcg => &[("accel", "tcg,tb-size=32")],
            GuestAccelerator::Kvm => &[("accel", "kvm"), ("cpu", "host")],
        }
    }
}

/// Guest that will be started.
pub(in super::super) struct GuestProcess<'a> {
    /// Name of the guest, from which an adopting executor recognizes it.
    pub(in super::super) name: &'a str,
    /// Identity of the replica, in every incarnation.
    pub(in super::super) uuid: Uuid,
    pub(in super::super) machine: &'a VirtualMachineSpec,
    /// Memory that is reserved for guest and QEMU together, in bytes.
    pub(in super::super) memory: u64,
    /// Filled-in command line of the kernel.
    pub(in super::super) cmdline: Option<String>,
    /// Protocol, number on the host and number in the guest of each port.
    pub(in super::super) ports: Vec<(PortProtocol, u16, u16)>,
    /// Mount and file of each disk.
    pub(in super::super) disks: Vec<(String, PathBuf)>,
}

/// Longest serial number of a disk of virtio, in bytes.
const SERIAL: usize = 20;

/// Returns the arguments of QEMU, with the program first, or the error of a plan or of a file.
pub(in super::super) fn command_line(
    settings: &QemuSettings,
    guest: &GuestProcess<'_>,
) -> Result<Vec<String>, String> {
    let memory = guest.memory.saturating_sub(VM_OVERHEAD) >> 20;
    if memory == 0 {
        return Err(format!(
            "invalid memory: must have more than the {} MiB that QEMU itself needs",
            VM_OVERHEAD >> 20
        ));
    }
    let mut arguments = QemuArguments(vec![settings.program.display().to_string()]);
    arguments.add("name", format!("guest={}", quoted(guest.name)));
    arguments.add("uuid", guest.uuid.to_string());
    arguments.add("machine", guest.machine.machine.word());
    for (option, value) in settings.accelerator.options() {
        arguments.add(option, *value);
    }
    arguments.add("m", format!("{memory}M"));
    arguments.add("smp", guest.machine.cpus.to_string());
    arguments.add("display", "none");
    arguments.add("sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    // A guest that ends is paused until its end is recorded.
    arguments.add("action", "shutdown=pause,panic=pause,reboot=reset");
    arguments.add("device", "pvpanic");
    arguments.add("qmp", "unix:../qmp.sock,server=on,wait=off");
    // For backups of disks: the first socket serves one client, which watches the guest.
    arguments.add("qmp", "unix:../backup.sock,server=on,wait=off");
    // The first serial port is the output of the process. The second one is for tools in the guest.
    arguments.add("chardev", "stdio,id=console,signal=off");
    arguments.add("serial", "chardev:console");
    arguments.add("chardev", "socket,id=second,path=../serial.sock,server=on,wait=off");
    arguments.add("serial", "chardev:second");
    arguments.add_files(settings, guest)?;
    arguments.add_network(guest);
    // Last: the addresses of the other devices do not depend on the number of disks.
    for (number, (mount, file)) in guest.disks.iter().enumerate() {
        arguments.add_disk(number, mount, file)?;
    }
    arguments.0.extend(["-nodefaults".to_owned(), "-no-user-config".to_owned()]);
    Ok(arguments.0)
}

/// Arguments of QEMU.
struct QemuArguments(Vec<String>);

impl QemuArguments {
    fn add(&mut self, option: &str, value: impl Into<String>) {
        self.0.extend([format!("-{option}"), value.into()]);
    }

    /// Adds the files of the image directories.
    fn add_files(&mut self, settings: &QemuSettings, guest: &GuestProcess<'_>) -> Result<(), String> {
        let machine = guest.machine;
        let file = |name: &str| find(&settings.images, name).map(|path| path.display().to_string());
        let files = [("bios", &machine.firmware), ("kernel", &machine.kernel), ("initrd", &machine.initrd)];
        for (option, name) in files {
            if let Some(name) = name {
                self.add(option, file(name)?);
            }
        }
        if let Some(cmdline) = &guest.cmdline {
            self.add("append", cmdline.clone());
        }
        if let Some(image) = &machine.image {
            // The format is never probed: a guest that writes a header could otherwise name files of the host.
            let is_qcow2 = Path::new(image).extension().is_some_and(|extension| extension == "qcow2");
            let format = if is_qcow2 { "qcow2" } else { "raw" };
            let path = quoted(&file(image)?);
            // QEMU opens the image for reading only. Changes are in a file without a name, in the directory `TMPDIR`.
            self.add(
                "drive",
                format!(
                    "if=none,id=image,format={format},snapshot=on,werror=report,rerror=report,file={path}"
                ),
            );
            // Before the disks, which may be bootable too.
            self.add("device", "virtio-blk-pci,drive=image,bootindex=0");
        }
        Ok(())
    }

    fn add_network(&mut self, guest: &GuestProcess<'_>) {
        if guest.machine.network == GuestNetwork::None {
            return;
        }
        // Restricted: a guest reaches nothing of the host, whose loopback has the server.
        let mut network = "user,id=network,restrict=on".to_owned();
        for (protocol, host, inside) in &guest.ports {
            let protocol = protocol.word().to_ascii_lowercase();
            let _ = write!(network, ",hostfwd={protocol}:127.0.0.1:{host}-:{inside}");
        }
        self.add("netdev", network);
        self.add("device", "virtio-net-pci,netdev=network,romfile=");
    }

    /// Adds the disk of a volume. Its mount is `/` and its serial number.
    fn add_disk(&mut self, number: usize, mount: &str, file: &Path) -> Result<(), String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let serial = mount.strip_prefix('/').unwrap_or_default();
        if !(1..=SERIAL).contains(&serial.len()) || !serial.bytes().all(plain) {
            return Err(format!(
                "invalid mount {mount:?}: must be / and a name of at most {SERIAL} characters"
            ));
        }
        let path = file.to_str().ok_or_else(|| format!("cannot use disk {}: not UTF-8", file.display()))?;
        // Writes reach the host when they are flushed. The lock keeps other programs with such locks from writing.
        let cache = json!({"direct": false, "no-flush": false});
        let node = json!({
            "driver": "raw", "node-name": format!("volume{number}"), "read-only": false, "discard": "unmap",
            "cache": cache,
            "file": {
                "driver": "file", "filename": path, "locking": "on", "discard": "unmap", "cache": cache,
            },
        });
        self.add("blockdev", node.to_string());
        // An error, as of a full disk of the host, is one of the guest: QEMU would otherwise pause it.
        self.add(
            "device",
            format!(
                "virtio-blk-pci,drive=volume{number},serial={serial},write-cache=on,werror=report,rerror=report"
            ),
        );
        Ok(())
    }
}

/// Returns a value of an option in which QEMU would otherwise see the next option.
fn quoted(text: &str) -> String {
    text.replace(',', ",,")
}

/// Finds a file by its name below one of the directories.
fn find(directories: &[PathBuf], name: &str) -> Result<PathBuf, String> {
    let mut unusable = None;
    for directory in directories {
        match find_in(directory, name) {
            Ok(path) => return Ok(path),
            Err(Some(reason)) => unusable = unusable.or(Some(reason)),
            Err(None) => {}
        }
    }
    if let Some(reason) = unusable {
        return Err(format!("cannot use file {name:?}: {reason}"));
    }
    let directories: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
    Err(format!("cannot find file {name:?} in the image directories: {}", directories.join(", ")))
}

/// Finds a file by its name below a directory. The error is why a file with this name cannot be used, if there is one.
fn find_in(directory: &Path, name: &str) -> Result<PathBuf, Option<String>> {
    let named = directory.join(Path::new(name));
    let shown = named.display();
    let found = directory.canonicalize().and_then(|directory| Ok((directory, named.canonicalize()?)));
    let found = if_exists(found).map_err(|error| Some(format!("{shown}: {error}")))?;
    let Some((directory, path)) = found else {
        let is_link = std::fs::symlink_metadata(&named).is_ok_and(|found| found.is_symlink());
        return Err(is_link.then(|| format!("{shown} is a link to a missing file")));
    };
    if !path.starts_with(&directory) {
        return Err(Some(format!("{shown} leads out of the image directory")));
    }
    match path.metadata() {
        Ok(found) if found.is_file() => Ok(path),
        Ok(found) if found.is_dir() => Err(Some(format!("{shown} is a directory"))),
        Ok(_) => Err(Some(format!("{shown} is not a regular file"))),
        Err(error) => Err(Some(format!("{shown}: {error}"))),
    }
}
