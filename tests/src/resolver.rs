//! A name server that stops answering, for one server: `getaddrinfo` waits there for half a minute, as it does by default where
//! no name server answers. A library of our own (`resolver/hangs.c`), which the C compiler builds, stands in its place.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::preload;

/// The name server of a server, until this is dropped. It answers until [`ServerResolver::hang`].
#[derive(Debug)]
pub struct ServerResolver {
    dir: TempDir,
    library: PathBuf,
}

impl ServerResolver {
    /// One that answers.
    #[expect(clippy::new_without_default, reason = "it compiles a library")]
    pub fn new() -> ServerResolver {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let library = preload::build("src/resolver/hangs.c", dir.path());
        ServerResolver { dir, library }
    }

    /// It answers no more.
    pub fn hang(&self) {
        std::fs::write(self.file(), "").expect("a file");
    }

    /// The settings of a server's environment, as text.
    pub fn settings(&self) -> [(&'static str, String); 2] {
        let text = |path: PathBuf| path.to_str().expect("a path that is text").to_owned();
        [("LD_PRELOAD", text(self.library.clone())), ("CHANCERY_TEST_RESOLVER_HANGS", text(self.file()))]
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("hangs")
    }
}
