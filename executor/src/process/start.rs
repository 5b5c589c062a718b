//! Start of an incarnation's processes by its supervisor: ports, trampolines, record, and only then the
//! programs.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use chancery_events::digest::Digest;
use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::name::{PayloadName, PortName};
use chancery_events::observation::PortAddress;
use chancery_events::protocol::{IncarnationPayload, IncarnationSpec};
use chancery_events::spec::{PayloadPort, PortProtocol, ReadinessProbe, port_variable, volume_variable};
use chancery_events::template::InvalidTemplate;
use uuid::Uuid;

use super::capture::{self, OutputCapture};
use super::cgroup;
use super::console;
use super::guest::{GuestProcess, GuestRecord, command_line};
use super::identity::ProcStat;
use super::incarnation_dir::{IncarnationDirectory, SpecFile, StartedProcess};
use crate::placeholders::{PlaceholderValues, fill, identity};

use super::trampoline::{ExecFailure, ExecRequest};
use super::volumes;
use crate::state_file;

/// Default search path of programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Process to start; open sockets reserve its ports.
pub(super) struct PreparedProcess {
    payload: PayloadName,
    index: u16,
    execute: ExecRequest,
    group: Option<(PathBuf, Option<NonZeroU64>)>,
    addresses: Vec<PortAddress>,
    held: Vec<OwnedFd>,
    guest: Option<GuestRecord>,
}

/// Trampoline that waits for its release.
pub(super) struct HeldTrampoline {
    pub(super) started: StartedProcess,
    pub(super) socket: UnixStream,
    pub(super) execute: ExecRequest,
    pub(super) captures: [OutputCapture; 2],
    group: Option<(PathBuf, Option<NonZeroU64>)>,
    /// Sockets that reserve the ports until the program is about to bind them itself.
    pub(super) held: Vec<OwnedFd>,
}

impl HeldTrampoline {
    /// Makes the group of a process in that of its incarnation, and moves the process there if the group has
    /// a limit. The trampoline still waits, so its program is in the group from the start.
    pub(super) fn limit(&mut self, wanted: &SpecFile) -> Result<(), ExecFailure> {
        if let (Some((path, memory)), Some(parent)) = (&self.group, &wanted.cgroup)
            && parent.memory
        {
            let made = cgroup::limit(path, *memory);
            if memory.is_some() {
                made.and_then(|()| cgroup::put(path, self.started.pid)).map_err(|error| retry(&error))?;
                self.started.group = Some(path.clone());
            }
        }
        Ok(())
    }

    /// Returns the group to move the process to before its release, unless it is there already.
    pub(super) fn group(&self) -> Option<&Path> {
        self.group.as_ref().filter(|_| self.started.group.is_none()).map(|(path, _)| path.as_path())
    }
}

/// Returns a retryable failure: its cause is this machine or installation, not the plan.
fn retry(error: &io::Error) -> ExecFailure {
    ExecFailure::retryable(format!("cannot start process: {error}"))
}

/// Search path with the directory of this program first: a plan can name the payload that is shipped with it.
pub(super) fn search_path() -> String {
    let program = std::env::current_exe().ok();
    let directory = program.as_deref().and_then(Path::parent);
    directory.map_or_else(|| PATH.to_owned(), |directory| format!("{}:{PATH}", directory.display()))
}

/// Process of a spec: a payload, and the index of the process in it.
pub(super) struct ProcessSlot<'a> {
    spec: &'a IncarnationSpec,
    payload: &'a IncarnationPayload,
    index: u16,
}

/// Returns all processes to start.
pub(super) fn processes(wanted: &SpecFile) -> Result<Vec<ProcessSlot<'_>>, ExecFailure> {
    let Some(spec) = &wanted.spec else {
        return Err(ExecFailure::permanent("cannot start incarnation: no spec"));
    };
    let mut all = Vec::new();
    for payload in &spec.payloads {
        all.extend((0..payload.processes).map(|index| ProcessSlot { spec, payload, index }));
    }
    if all.is_empty() { Err(ExecFailure::permanent("invalid spec: must have a process")) } else { Ok(all) }
}

/// Determines what to execute, without starting anything.
pub(super) fn prepare(
    directory: &IncarnationDirectory,
    wanted: &SpecFile,
    slot: &ProcessSlot<'_>,
) -> Result<PreparedProcess, ExecFailure> {
    let ProcessSlot { spec, payload, index } = *slot;
    let name = &payload.name;
    let volumes: BTreeMap<String, PathBuf> =
        mounted(payload, |volume| volumes::place(&wanted.volumes, volume).map_err(ExecFailure::retryable))?;
    let mut ports = BTreeMap::new();
    let mut held = Vec::new();
    for port in &payload.ports {
        let (number, socket) = free_port(port).map_err(ExecFailure::of("cannot find free port"))?;
        ports.insert(port.name.clone(), number);
        held.push(socket);
    }
    let values = PlaceholderValues {
        incarnation: wanted.incarnation,
        spec,
        index,
        ports: &ports,
        coordinates: &payload.coordinates,
        volumes: &volumes,
    };
    let fill = |text: &str| fill(text, &values);
    let bad = |bad: InvalidTemplate| ExecFailure::permanent(format!("payload {name}: {bad}"));
    let mut guest = None;
    let argv = match (&wanted.qemu, &payload.vm, &payload.run) {
        (Some(settings), Some(machine), _) => {
            let line = payload.ready.as_ref().and_then(ReadinessProbe::line);
            let record = guest.insert(GuestRecord::begin(format!("{}/{name}", wanted.incarnation), line));
            let process = GuestProcess {
                name: &record.name,
                uuid: guest_uuid(wanted.incarnation, spec, name),
                machine,
                memory: payload.memory.map_or(0, NonZeroU64::get),
                cmdline: machine.cmdline.as_deref().map(&fill).transpose().map_err(bad)?,
                ports: payload
                    .ports
                    .iter()
                    .filter_map(|port| Some((port.protocol, *ports.get(&port.name)?, port.port)))
                    .collect(),
                // The incarnation is recorded as the only user of each volume by now.
                disks: mounted(payload, |volume| volumes::disk(&wanted.volumes, volume))?,
            };
            command_line(settings, &process)
                .map_err(|error| ExecFailure::permanent(format!("cannot start payload {name}: {error}")))?
        }
        (None, _, Some(run)) => {
            run.argv.iter().map(|arg| fill(arg)).collect::<Result<_, _>>().map_err(bad)?
        }
        _ => return Err(ExecFailure::permanent(format!("cannot start payload {name}: nothing to run"))),
    };
    let work_dir = work_directory(directory.path(), name, index).display().to_string();
    let mut env = BTreeMap::from([("PATH".to_owned(), search_path()), ("HOME".to_owned(), work_dir)]);
    for (key, value) in payload.run.iter().filter(|_| guest.is_none()).flat_map(|run| &run.env) {
        env.insert(key.as_str().to_owned(), fill(value).map_err(bad)?);
    }
    if guest.is_some() {
        // For changes to images.
        env.insert("TMPDIR".to_owned(), ".".to_owned());
    }
    // Last: a spec must not change the identity of a process.
    env.extend(identity(wanted.incarnation, spec, name, index, Some(directory.path())));
    env.extend(ports.iter().map(|(name, number)| (port_variable(name), number.to_string())));
    env.extend(volumes.iter().map(|(mount, path)| (volume_variable(mount), path.display().to_string())));
    let address = |(port, number): (&PortName, &u16)| PortAddress {
        port: port.clone(),
        address: format!("{}:{number}", Ipv4Addr::LOCALHOST),
    };
    let addresses = ports.iter().map(address).collect();
    let group = wanted.group(payload, index);
    // A group limits a process and all that it starts; without one, a limit for each is better than none.
    // Such a limit would count the memory of a guest, which QEMU reserves as a whole.
    let memory = payload.memory.filter(|_| guest.is_none() && !matches!(group, Some((_, Some(_)))));
    let input = guest.as_ref().map(|_| format!("../{}", console::INPUT));
    let execute = ExecRequest { argv, env, memory, files: wanted.files, input };
    Ok(PreparedProcess { payload: name.clone(), index, execute, group, addresses, held, guest })
}

/// Identity of a guest: the same in every incarnation of its replica.
fn guest_uuid(incarnation: IncarnationId, spec: &IncarnationSpec, payload: &PayloadName) -> Uuid {
    let parts = [incarnation.lineage().to_string(), spec.replica.to_string(), payload.to_string()];
    let digest = Digest::of(&parts.each_ref().map(String::as_bytes));
    Uuid::new_v8(digest.bits().to_be_bytes())
}

/// Returns mount path and path of each volume of a payload, in the order of the plan.
fn mounted<C: FromIterator<(String, PathBuf)>>(
    payload: &IncarnationPayload,
    find: impl Fn(VolumeId) -> Result<PathBuf, ExecFailure>,
) -> Result<C, ExecFailure> {
    payload.mounts.iter().map(|mount| Ok((mount.path.clone(), find(mount.volume)?))).collect()
}

fn work_directory(directory: &Path, payload: &PayloadName, index: u16) -> std::path::PathBuf {
    directory.join(format!("{payload}-{index}")).join("work")
}

fn free_port(port: &PayloadPort) -> io::Result<(u16, OwnedFd)> {
    let any = (Ipv4Addr::LOCALHOST, 0);
    match port.protocol {
        PortProtocol::Tcp => {
            let listener = TcpListener::bind(any)?;
            Ok((listener.local_addr()?.port(), listener.into()))
        }
        PortProtocol::Udp => {
            let socket = UdpSocket::bind(any)?;
            Ok((socket.local_addr()?.port(), socket.into()))
        }
    }
}

/// Starts a trampoline. It executes nothing until its release, and exits if its socket is dropped first.
pub(super) fn trampoline(
    directory: &IncarnationDirectory,
    wanted: &SpecFile,
    prepared: PreparedProcess,
) -> Result<HeldTrampoline, ExecFailure> {
    let PreparedProcess { payload, index, execute, group, addresses, held, guest } = prepared;
    let work = work_directory(directory.path(), &payload, index);
    let (socket, theirs) = UnixStream::pair().map_err(ExecFailure::of("cannot create socket"))?;
    let output =
        |stream| capture::open(&directory.file(&format!("{payload}-{index}.{stream}")), wanted.output);
    let spawn = || -> io::Result<_> {
        state_file::make_directory(&work)?;
        if execute.input.is_some() {
            capture::make_pipe(&directory.file(&format!("{payload}-{index}")).join(console::INPUT))?;
        }
        let ((out, their_out), (err, their_err)) = (output("out")?, output("err")?);
        let child = Command::new(&wanted.program.program)
            .args(&wanted.program.trampoline_args)
            .current_dir(&work)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(their_out)
            .stderr(their_err)
            .spawn()?;
        Ok((child.id(), [out, err]))
    };
    let (pid, captures) = spawn().map_err(|error| retry(&error))?;
    // An unreaped child: no other process has its pid.
    let stat = ProcStat::of(pid)
        .and_then(|stat| stat.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(|error| retry(&error))?;
    let started = StartedProcess {
        payload,
        index,
        pid,
        start_time: stat.start_time,
        group: None,
        addresses,
        guest,
        end: None,
    };
    Ok(HeldTrampoline { started, socket, execute, captures, group, held })
}
