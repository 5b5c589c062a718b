//! Separate wall clock for one server, by libfaketime (on Debian: faketime). The monotonic clock is
//! unaffected, as by a step of the real clock.
//!
//! libfaketime does not handle `cnd_timedwait` of C11, by which the client library of Kafka waits. A wait
//! until a time of the other clock would last as long as the clocks differ. This crate's own library
//! (`clock/waits.c`), which the C compiler builds at first use, translates that time.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{ServerProcess, preload};

/// Wall clock of one server, until this value is dropped.
#[derive(Debug)]
pub struct ServerClock {
    dir: TempDir,
}

impl ServerClock {
    /// Creates a clock that is ahead of the real one by these seconds, or behind if negative.
    pub fn apart(seconds: i64) -> ServerClock {
        let clock = ServerClock { dir: tempfile::tempdir().expect("a temporary directory") };
        clock.set(seconds);
        clock
    }

    /// Makes the clock jump: from now on it is ahead by these seconds.
    pub fn set(&self, seconds: i64) {
        let next = self.dir.path().join("next");
        std::fs::write(&next, format!("{seconds:+}")).expect("a file");
        std::fs::rename(next, self.file()).expect("a file"); // atomic: no server reads half of it
    }

    /// Gives the clock to a server, from the next start.
    pub fn give_to(&self, server: &mut ServerProcess) {
        let text = |path: &Path| path.to_str().expect("a path that is text").to_owned();
        server.set("LD_PRELOAD", &format!("{}:{}", text(waits()), text(&library().expect("libfaketime"))));
        server.set("FAKETIME_TIMESTAMP_FILE", &text(&self.file()));
        server.set("FAKETIME_NO_CACHE", "1");
        server.set("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("clock")
    }
}

/// Returns the path of libfaketime, wherever the system keeps the library.
pub fn library() -> Result<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib")?.filter_map(|entry| Some(entry.ok()?.path()));
    let found = directories.map(|dir| dir.join("faketime/libfaketime.so.1")).find(|file| file.exists());
    found.context("libfaketime is not installed (on Debian: apt-get install faketime)")
}

/// Returns the path of the library that translates the times of waits.
fn waits() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = preload::build("src/clock/waits.c", dir.path());
        (dir, path)
    });
    path
}
