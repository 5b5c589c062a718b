//! Command line of QEMU for a guest. Each argument is built from typed fields; text of a plan is an argument of its own, or
//! quoted.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use chancery_events::spec::{GuestNetwork, PortProtocol, VM_OVERHEAD, VirtualMachineSpec};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Settings of an executor of virtual machines.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct QemuSettings {
    /// Program of QEMU, as a path or as a name in the search path.
    pub program: PathBuf,
    /// Directories with kernels, images and firmware. A plan names files relative to them; the first that has the file counts.
    pub images: Vec<PathBuf>,
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
}

/// Returns the arguments of QEMU, with the program first, or the error of a plan or of a missing file.
pub(in super::super) fn command_line(
    settings: &QemuSettings,
    guest: &GuestProcess<'_>,
) -> Result<Vec<String>, String> {
    let machine = guest.machine;
    let memory = guest.memory.saturating_sub(VM_OVERHEAD) >> 20;
    if memory == 0 {
        return Err(format!(
            "invalid memory: must have more than the {} MiB that QEMU itself needs",
            VM_OVERHEAD >> 20
        ));
    }
    let mut argv: Vec<String> = vec![settings.program.display().to_string()];
    let mut add = |option: &str, value: String| argv.extend([format!("-{option}"), value]);
    add("name", format!("guest={}", quoted(guest.name)));
    add("uuid", guest.uuid.to_string());
    add("machine", machine.machine.word().to_owned());
    // A `/dev/kvm` that opens does not show that guests run on it.
    add("accel", "tcg,tb-size=32".to_owned());
    add("m", format!("{memory}M"));
    add("smp", machine.cpus.to_string());
    add("display", "none".to_owned());
    add("sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny".to_owned());
    // A guest that ends is paused until its end is recorded.
    add("action", "shutdown=pause,panic=pause,reboot=reset".to_owned());
    add("device", "pvpanic".to_owned());
    add("qmp", "unix:../qmp.sock,server=on,wait=off".to_owned());
    // The first serial port is the output of the process. The second one is for tools in the guest.
    add("chardev", "stdio,id=console,signal=off".to_owned());
    add("serial", "chardev:console".to_owned());
    add("chardev", "socket,id=second,path=../serial.sock,server=on,wait=off".to_owned());
    add("serial", "chardev:second".to_owned());
    let file = |name: &str| find(&settings.images, name).map(|path| path.display().to_string());
    if let Some(firmware) = &machine.firmware {
        add("bios", file(firmware)?);
    }
    if let Some(kernel) = &machine.kernel {
        add("kernel", file(kernel)?);
    }
    if let Some(initrd) = &machine.initrd {
        add("initrd", file(initrd)?);
    }
    if let Some(cmdline) = &guest.cmdline {
        add("append", cmdline.clone());
    }
    if let Some(image) = &machine.image {
        // The format is never probed: a guest that writes a header could otherwise name files of the host.
        let is_qcow2 = Path::new(image).extension().is_some_and(|extension| extension == "qcow2");
        let format = if is_qcow2 { "qcow2" } else { "raw" };
        let path = quoted(&file(image)?);
        add(
            "drive",
            format!("if=none,id=image,format={format},snapshot=on,werror=report,rerror=report,file={path}"),
        );
        add("device", "virtio-blk-pci,drive=image".to_owned());
    }
    if machine.network == GuestNetwork::Forwarded {
        // Restricted: a guest reaches nothing of the host, whose loopback has the server.
        let mut network = "user,id=network,restrict=on".to_owned();
        for (protocol, host, inside) in &guest.ports {
            let protocol = protocol.word().to_ascii_lowercase();
            let _ = write!(network, ",hostfwd={protocol}:127.0.0.1:{host}-:{inside}");
        }
        add("netdev", network);
        add("device", "virtio-net-pci,netdev=network,romfile=".to_owned());
    }
    argv.extend(["-nodefaults".to_owned(), "-no-user-config".to_owned()]);
    Ok(argv)
}

/// Returns a value of an option in which QEMU would otherwise see the next option.
fn quoted(text: &str) -> String {
    text.replace(',', ",,")
}

/// Finds a file by its name below one of the directories.
fn find(directories: &[PathBuf], name: &str) -> Result<PathBuf, String> {
    for directory in directories {
        let Ok(directory) = directory.canonicalize() else { continue };
        let Ok(path) = directory.join(Path::new(name)).canonicalize() else { continue };
        if path.starts_with(&directory) && path.is_file() {
            return Ok(path);
        }
    }
    let directories: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
    Err(format!("cannot find file {name:?} in the image directories: {}", directories.join(", ")))
}
