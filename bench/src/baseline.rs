//! The floor: the minimum work of a durable append. One thread collects waiting entries, writes them with one
//! call, calls fdatasync, and answers all callers.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};

use crate::load::round;
use crate::table::CellResult;

/// Bytes that are zero-filled before the measurement: overwriting is cheaper to sync than growing.
const AHEAD: usize = 512 << 20;

/// Raw log without format.
pub(crate) struct BaselineLog {
    queue: Sender<(Vec<u8>, SyncSender<()>)>,
    writer: JoinHandle<Result<()>>,
    _directory: tempfile::TempDir,
}

impl BaselineLog {
    pub(crate) fn open() -> Result<BaselineLog> {
        let (file, directory) = ahead()?;
        let (queue, waiting) = channel();
        let writer = std::thread::spawn(move || write(&file, &waiting));
        Ok(BaselineLog { queue, writer, _directory: directory })
    }

    /// Returns a caller that appends `bytes` and waits until they are durable.
    pub(crate) fn caller(&self, bytes: Vec<u8>) -> impl FnMut() -> Result<()> + Send + use<> {
        let queue = self.queue.clone();
        let (done, durable) = sync_channel(1);
        move || {
            queue.send((bytes.clone(), done.clone())).context("append")?;
            durable.recv().context("wait")
        }
    }

    /// Measures one thread that overwrites and syncs 400 bytes, without callers.
    pub(crate) fn sync_alone() -> Result<CellResult> {
        let (file, _directory) = ahead()?;
        let mut at = 0;
        round(1, |_| {
            let file = file.try_clone()?;
            Ok(move || {
                file.write_all_at(&[b'x'; 400], at)?;
                at += 400;
                Ok(file.sync_data()?)
            })
        })
    }

    /// Measures callers with 400 bytes each, on a new file.
    pub(crate) fn round(callers: usize) -> Result<CellResult> {
        let floor = BaselineLog::open()?;
        let cell = round(callers, |_| Ok(floor.caller(vec![b'x'; 400])))?;
        floor.close()?;
        Ok(cell)
    }

    pub(crate) fn close(self) -> Result<()> {
        drop(self.queue);
        self.writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
    }
}

/// Creates a file that is filled with zeros.
fn ahead() -> Result<(File, tempfile::TempDir)> {
    let directory = crate::directory()?;
    let mut options = File::options();
    let file =
        options.create(true).truncate(true).read(true).write(true).open(directory.path().join("log"))?;
    let zeros = vec![0; 1 << 20];
    for at in (0..AHEAD).step_by(zeros.len()) {
        file.write_all_at(&zeros, at as u64)?;
    }
    file.sync_all()?;
    Ok((file, directory))
}

fn write(file: &File, waiting: &Receiver<(Vec<u8>, SyncSender<()>)>) -> Result<()> {
    let (mut at, mut buffer, mut callers) = (0, Vec::new(), Vec::new());
    while let Ok(first) = waiting.recv() {
        for (bytes, caller) in std::iter::once(first).chain(waiting.try_iter()) {
            buffer.extend_from_slice(&bytes);
            callers.push(caller);
        }
        if at + buffer.len() > AHEAD {
            at = 0;
        }
        file.write_all_at(&buffer, at as u64)?;
        file.sync_data()?;
        at += buffer.len();
        buffer.clear();
        for caller in callers.drain(..) {
            caller.send(()).context("answer")?;
        }
    }
    Ok(())
}
