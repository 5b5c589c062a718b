//! Console of a guest: a named pipe for its input, and the output files of its process.
//!
//! QEMU reads its standard input and gives it to the first serial port of the guest, as fast as the guest takes it. The pipe has a
//! name, so any executor can write to it, also while no supervisor lives. QEMU holds both ends: the pipe never ends, and it cannot
//! be written to once QEMU has ended. Output takes the same way as without a console: no client can delay the guest.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use chancery_events::console::AttachRefusal;
use chancery_events::id::IncarnationId;
use chancery_events::name::PayloadName;
use rustix::fs::OFlags;

use super::capture::open_pipe;
use super::entries;
use super::output::ProcessLogs;
use crate::console::{AttachError, ConsoleFiles, ConsoleSource};

/// Name of the pipe, in the directory of its process.
pub(super) const INPUT: &str = "console.in";
/// Capacity of the pipe in bytes: input that the guest has not read.
const CAPACITY: usize = 16 << 10;

/// Opens both ends of the pipe, as the standard input of QEMU.
pub(super) fn open_input(path: &Path) -> io::Result<File> {
    let input = open_pipe(OpenOptions::new().read(true).write(true), OFlags::empty(), path)?;
    // Without the right to change it, the pipe keeps its usual capacity.
    let _ = rustix::pipe::fcntl_setpipe_size(&input, CAPACITY);
    Ok(input)
}

/// Opens the writing end of the pipe. Fails with `ENXIO` if QEMU has ended.
pub(crate) fn open_writer(path: &Path) -> io::Result<File> {
    open_pipe(OpenOptions::new().write(true), OFlags::NONBLOCK, path)
}

impl ConsoleSource for ProcessLogs {
    fn console(
        &self,
        incarnation: IncarnationId,
        payload: Option<&PayloadName>,
    ) -> Result<ConsoleFiles, AttachError> {
        let failed = |error: io::Error| {
            AttachError::new(AttachRefusal::Failed, format!("cannot read directory of incarnation: {error}"))
        };
        let id = incarnation.to_string();
        let mut all = Vec::new();
        for node in entries(&self.root.join("nodes")).map_err(failed)? {
            let directory = node.join(&id);
            for process in entries(&directory).map_err(failed)? {
                all.extend(console_of(&directory, &process));
            }
        }
        all.sort_by(|one, other| one.payload.cmp(&other.payload));
        let names: Vec<_> = all.iter().map(|console| console.payload.to_string()).collect();
        let mut fits = all.into_iter().filter(|console| payload.is_none_or(|name| console.payload == *name));
        match (fits.next(), fits.next()) {
            (Some(console), None) => Ok(console),
            (None, _) if names.is_empty() => Err(AttachError::new(
                AttachRefusal::Missing,
                "cannot attach: the incarnation has no guest with a console on this machine",
            )),
            _ => Err(AttachError::new(
                AttachRefusal::Missing,
                format!("cannot attach: the payload must be one of {}", names.join(", ")),
            )),
        }
    }
}

/// Returns the console of a process from the path of its directory, if it has one.
fn console_of(directory: &Path, process: &Path) -> Option<ConsoleFiles> {
    let input: PathBuf = process.join(INPUT);
    let name = process.file_name()?.to_str()?;
    let (payload, _) = name.rsplit_once('-')?;
    let is_pipe = input.symlink_metadata().is_ok_and(|found| found.file_type().is_fifo());
    let payload = payload.parse().ok().filter(|_| is_pipe)?;
    Some(ConsoleFiles { payload, input, output: directory.join(format!("{name}.out")) })
}
