//! Name server that stops answering, for one server. `getaddrinfo` then waits half a minute, as it does by
//! default without an answer. A library of this crate (`resolver/hangs.c`) replaces it.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::preload;

/// Name server of one server, until this value is dropped; it answers until [`ServerResolver::hang`].
#[derive(Debug)]
pub struct ServerResolver {
    dir: TempDir,
    library: PathBuf,
}

impl ServerResolver {
    /// Returns a name server that answers.
    #[expect(clippy::new_without_default, reason = "it compiles a library")]
    pub fn new() -> ServerResolver {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let library = preload::build("src/resolver/hangs.c", dir.path());
        ServerResolver { dir, library }
    }

    /// Makes the name server stop answering.
    pub fn hang(&self) {
        std::fs::write(self.file(), "").expect("a file");
    }

    /// Returns the environment settings of a server, as text.
    pub fn settings(&self) -> [(&'static str, String); 2] {
        let text = |path: PathBuf| path.to_str().expect("a path that is text").to_owned();
        [("LD_PRELOAD", text(self.library.clone())), ("CHANCERY_TEST_RESOLVER_HANGS", text(self.file()))]
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("hangs")
    }
}
