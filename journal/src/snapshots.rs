//! Snapshot files: states at a position, so that a start need not fold the whole journal.
//!
//! `<position>.snap` starts with a line of JSON that describes the snapshot and ends with its own SHA-256.
//! The state follows, in a format opaque to this module. The file is written under another name, synced and
//! renamed, and the directory synced. Older snapshots are thinned out ([`superfluous`]). Invariants: a
//! snapshot can be deleted at any time and is never trusted. Instead of a damaged or unusable one, the one
//! before it is used, and finally a full fold.

mod thinning;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use chancery_events::id::{Lineage, Position, Term, WriterId};
use chancery_events::record::{InboxWatermark, RecordHash};
use chancery_events::time::Time;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::aside::{ExpectedType, set_aside};
use crate::chain::ChainCursor;
use crate::private;
use crate::witness::JournalWitness;

use thinning::is_first_of_block;
pub use thinning::superfluous;

const FORMAT: u32 = 2;
/// Bytes that the first line is padded to, because it is rewritten when the state's hash is known.
const META: usize = 2048;
/// Bytes of the first line that are hashed. The hash, in hexadecimal digits, and a line feed follow.
const HASHED: usize = META - 65;

/// Metadata of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotMeta {
    format: u32,
    /// Fleet that the journal belongs to.
    pub fleet: Arc<str>,
    /// Lineage at the position.
    pub lineage: Lineage,
    /// Last position that the state includes.
    pub position: Position,
    /// Hash of the record that ends at the position.
    pub hash: RecordHash,
    /// Term of that record.
    pub term: Term,
    /// Writer of that record.
    pub writer: WriterId,
    /// Time of that record.
    pub time: Time,
    /// Watermark up to which the inbox is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<InboxWatermark>,
    /// Fingerprint of the state's format, which may differ between builds.
    pub fingerprint: String,
    /// SHA-256 of the state's bytes.
    pub state_hash: RecordHash,
    /// Length of the state in bytes.
    pub len: u64,
}

impl SnapshotMeta {
    /// Returns the cursor of a reader that starts with this state.
    pub const fn cursor(&self) -> ChainCursor {
        ChainCursor {
            position: self.position,
            hash: self.hash,
            term: self.term,
            writer: self.writer,
            lineage: self.lineage,
            time: self.time,
        }
    }
}

/// Failure to write, list or prepare snapshots.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct SnapshotError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    move |source| SnapshotError { operation, path: path.to_owned(), source }
}

/// Directory of snapshots. The journal's lock ensures that only one process writes.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    dir: PathBuf,
    /// Locked while a snapshot is written; `None` if the directory is only read.
    writing: Option<Arc<Mutex<()>>>,
}

/// Snapshot whose bytes were verified against its hash.
#[derive(Debug)]
pub struct Snapshot {
    /// Metadata of the snapshot.
    pub meta: SnapshotMeta,
    /// Bytes of the state.
    pub state: Vec<u8>,
}

impl SnapshotStore {
    /// Opens a directory, created if it is missing, and removes unfinished files of a crash.
    pub fn open(dir: impl Into<PathBuf>) -> Result<SnapshotStore, SnapshotError> {
        let dir = dir.into();
        set_aside(&dir, ExpectedType::Directory).map_err(failed("set aside", &dir))?;
        private::create_dir_all(&dir).map_err(failed("create directory", &dir))?;
        for entry in fs::read_dir(&dir).map_err(failed("list", &dir))? {
            let path = entry.map_err(failed("list", &dir))?.path();
            let is_ours = path.extension().is_some_and(|extension| extension == "tmp" || extension == "snap");
            if is_ours && set_aside(&path, ExpectedType::File).map_err(failed("set aside", &path))?.is_some()
            {
                continue;
            }
            if path.extension().is_some_and(|extension| extension == "tmp") {
                fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(SnapshotStore { dir, writing: Some(Arc::default()) })
    }

    /// Returns the snapshots of a directory that is only read: nothing is created, changed or removed in it.
    pub fn read_only(dir: impl Into<PathBuf>) -> SnapshotStore {
        SnapshotStore { dir: dir.into(), writing: None }
    }

    /// Writes a snapshot of the state after `at`; `state` writes the state. Then deletes superfluous
    /// snapshots, and those of an abandoned history: the last argument returns whether the journal contains a
    /// snapshot's record.
    pub fn write(
        &self,
        fleet: Arc<str>,
        at: &ChainCursor,
        watermark: Option<InboxWatermark>,
        fingerprint: &str,
        state: impl FnOnce(&mut dyn Write) -> io::Result<()>,
        stands: impl Fn(&SnapshotMeta) -> bool,
    ) -> Result<SnapshotMeta, SnapshotError> {
        let meta = SnapshotMeta {
            format: FORMAT,
            fleet,
            lineage: at.lineage,
            position: at.position,
            hash: at.hash,
            term: at.term,
            writer: at.writer,
            time: at.time,
            watermark,
            fingerprint: fingerprint.to_owned(),
            state_hash: RecordHash::ZERO,
            len: 0,
        };
        let Some(writing) = &self.writing else {
            return Err(failed("write snapshot in", &self.dir)(io::ErrorKind::ReadOnlyFilesystem.into()));
        };
        // A panic leaves at most an unfinished file, which the next writer replaces.
        let _writing = writing.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.dir.join(format!("{:020}.snap", at.position));
        let unfinished = path.with_extension("tmp");
        let meta = write_file(&unfinished, meta, state).map_err(failed("write snapshot", &unfinished))?;
        fs::rename(&unfinished, &path).map_err(failed("rename to", &path))?;
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", &self.dir))?;
        self.thin(&meta, stands)?;
        Ok(meta)
    }

    /// Deletes superfluous and abandoned snapshots. Abandoned ones must not count: as the newest, they would
    /// displace those written from now on. Those of another shape than the written one evict none of its shape:
    /// this build cannot use them.
    fn thin(
        &self,
        written: &SnapshotMeta,
        stands: impl Fn(&SnapshotMeta) -> bool,
    ) -> Result<(), SnapshotError> {
        let (mut abandoned, mut all, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for (position, path) in self.list()? {
            // A snapshot with an unreadable first line may be of another build, and counts.
            let meta = first_line(&path).ok();
            if position != written.position && meta.as_ref().is_some_and(|meta| !stands(meta)) {
                abandoned.push((position, path));
                continue;
            }
            if meta.is_some_and(|meta| meta.fingerprint == written.fingerprint) {
                own.push(position);
            }
            all.push((position, path));
        }
        let positions: Vec<_> = all.iter().map(|(position, _)| *position).collect();
        let (of_all, of_own) = (superfluous(&positions), superfluous(&own));
        for (position, path) in &abandoned {
            tracing::warn!(%position, path = %path.display(), "removing snapshot of an abandoned history");
        }
        let thinned = all.iter().filter(|(position, _)| {
            let superfluous = if own.contains(position) { &of_own } else { &of_all };
            superfluous.contains(position)
        });
        for (_, path) in abandoned.iter().chain(thinned) {
            fs::remove_file(path).map_err(failed("remove", path))?;
        }
        Ok(())
    }

    /// Whether a snapshot of the shape would be kept at the position, and is not there yet. None is in a directory
    /// that is only read.
    pub fn is_wanted(&self, position: Position, fingerprint: &str) -> Result<bool, SnapshotError> {
        if self.writing.is_none() {
            return Ok(false);
        }
        let is_own = |path: &Path| first_line(path).is_ok_and(|meta| meta.fingerprint == fingerprint);
        let own = self.list()?.into_iter().filter(|(_, path)| is_own(path));
        let positions: Vec<_> = own.map(|(position, _)| position).collect();
        Ok(!positions.contains(&position) && is_first_of_block(&positions, position))
    }

    /// Returns the newest intact snapshot that `is_usable` accepts, and logs a warning for each one skipped.
    pub fn load_newest(
        &self,
        mut is_usable: impl FnMut(&SnapshotMeta) -> bool,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        self.load_newest_within(.., |meta| {
            let is_usable = is_usable(meta);
            if !is_usable {
                tracing::warn!(position = %meta.position, "snapshot skipped: not usable");
            }
            is_usable
        })
    }

    /// Returns the newest intact snapshot at one of the positions that `is_usable` accepts, and logs a warning
    /// for each one that is not intact. The state of a snapshot that is not accepted is not read.
    pub fn load_newest_within(
        &self,
        positions: impl RangeBounds<Position>,
        mut is_usable: impl FnMut(&SnapshotMeta) -> bool,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        for (position, path) in self.list()? {
            if !positions.contains(&position) {
                continue;
            }
            let read = first_line(&path).and_then(|meta| {
                let is_wanted = meta.position != position || is_usable(&meta);
                if is_wanted { read_file(&path).map(Some) } else { Ok(None) }
            });
            match read {
                Ok(Some(snapshot)) if snapshot.meta.position == position => return Ok(Some(snapshot)),
                Ok(Some(_)) => {
                    tracing::warn!(path = %path.display(), "snapshot skipped: its name does not match its position");
                }
                Ok(None) => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(path = %path.display(), error, "snapshot skipped: damaged");
                }
            }
        }
        Ok(None)
    }

    /// Returns the position and path of each snapshot, newest first.
    pub fn list(&self) -> Result<Vec<(Position, PathBuf)>, SnapshotError> {
        list(&self.dir)
    }
}

/// Lists the snapshots in a directory, newest first, without changing it.
pub fn list(dir: &Path) -> Result<Vec<(Position, PathBuf)>, SnapshotError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let path = entry.map_err(failed("list", dir))?.path();
        let is_snapshot = path.extension().is_some_and(|extension| extension == "snap");
        let position = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        if let (true, Some(position)) = (is_snapshot, position) {
            found.push((position, path));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Returns the witnesses of a directory's snapshots. The first line is sufficient: it is written after the
/// whole state, and a damaged one proves nothing.
pub fn witnesses(dir: &Path) -> Result<Vec<JournalWitness>, SnapshotError> {
    let mut found = Vec::new();
    for (position, path) in list(dir)? {
        // Paths that are not files are set aside when the directory is opened; opening one here may block.
        if !path.is_file() {
            continue;
        }
        if let Some(meta) = first_line(&path).ok().filter(|meta| meta.position == position) {
            found.push(JournalWitness::at(format!("the snapshot {}", path.display()), &meta.cursor()));
        }
    }
    Ok(found)
}

/// Writer that hashes and counts the bytes passed through.
struct SnapshotHasher<W> {
    to: W,
    hash: Sha256,
    len: u64,
}

impl<W: Write> Write for SnapshotHasher<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn write_file(
    path: &Path,
    mut meta: SnapshotMeta,
    state: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<SnapshotMeta> {
    let mut file = private::create(path)?;
    file.write_all(&[b' '; META])?;
    let mut body =
        SnapshotHasher { to: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new(), len: 0 };
    state(&mut body)?;
    body.flush()?;
    meta.state_hash = RecordHash::from_bytes(body.hash.finalize().into());
    meta.len = body.len;
    let mut line = serde_json::to_vec(&meta)?;
    if line.len() > HASHED {
        return Err(io::Error::other("the first line is too long"));
    }
    line.resize(HASHED, b' ');
    let hash = RecordHash::of(&line);
    writeln!(line, "{hash}")?;
    let mut file = body.to.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&line)?;
    file.sync_all()?;
    Ok(meta)
}

fn damaged(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Reads the metadata of a snapshot. The kind of the error is [`io::ErrorKind::Unsupported`] if the format is that of
/// another build, and [`io::ErrorKind::InvalidData`] if the metadata is damaged.
pub fn first_line(path: &Path) -> io::Result<SnapshotMeta> {
    read_meta(&mut BufReader::with_capacity(META, File::open(path)?))
}

fn read_meta(file: &mut BufReader<File>) -> io::Result<SnapshotMeta> {
    let mut line = Vec::with_capacity(META);
    file.take(META as u64).read_until(b'\n', &mut line)?;
    if line.len() != META || !line.ends_with(b"\n") {
        return Err(damaged("the first line is incomplete"));
    }
    let (content, hash) = line.split_at(HASHED);
    if hash.trim_ascii_end() != RecordHash::of(content).to_string().as_bytes() {
        return Err(damaged("the first line is damaged"));
    }
    // The line is as it was written.
    let meta = serde_json::from_slice(content).ok().filter(|meta: &SnapshotMeta| meta.format == FORMAT);
    meta.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the format is that of another build"))
}

/// Reads a snapshot, and checks that all of it is as it was written.
pub fn read_file(path: &Path) -> io::Result<Snapshot> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let meta = read_meta(&mut file)?;
    let mut state = Vec::new();
    // One more, so that a longer file is not taken for the one that was written.
    file.take(meta.len.saturating_add(1)).read_to_end(&mut state)?;
    if state.len() as u64 != meta.len || RecordHash::of(&state) != meta.state_hash {
        return Err(damaged("the state is damaged"));
    }
    Ok(Snapshot { meta, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(position: u64) -> ChainCursor {
        ChainCursor {
            position: Position::new(position),
            hash: RecordHash::of(&position.to_be_bytes()),
            term: Term::FIRST,
            writer: WriterId::from_random(1),
            lineage: Lineage::from_random(2),
            time: Time::from_micros(3),
        }
    }

    fn with_three() -> (tempfile::TempDir, SnapshotStore) {
        let dir = tempfile::tempdir().expect("a directory");
        let snapshots = SnapshotStore::open(dir.path().join("snapshots")).expect("a directory");
        for position in [10, 200, 3000] {
            put(&snapshots, position);
        }
        (dir, snapshots)
    }

    fn newest(snapshots: &SnapshotStore) -> Option<String> {
        let snapshot = snapshots.load_newest(|meta| meta.fingerprint == "shape").expect("listed")?;
        Some(String::from_utf8(snapshot.state).expect("a text"))
    }

    /// Writes a state that names its position.
    fn put(snapshots: &SnapshotStore, position: u64) {
        put_of(snapshots, &cursor(position), |_| true);
    }

    fn put_of(snapshots: &SnapshotStore, at: &ChainCursor, stands: impl Fn(&SnapshotMeta) -> bool) {
        let state = format!("state at {}", at.position);
        let state = |to: &mut dyn Write| to.write_all(state.as_bytes());
        let written = snapshots.write("f".into(), at, None, "shape", state, stands).expect("written");
        assert_eq!(written.cursor(), *at);
    }

    fn kept(snapshots: &SnapshotStore) -> Vec<u64> {
        snapshots.list().expect("listed").into_iter().map(|(at, _)| at.get()).collect()
    }

    #[test]
    fn the_newest_two_are_kept_and_fewer_and_fewer_of_the_older_ones() {
        let dir = tempfile::tempdir().expect("a directory");
        let snapshots = SnapshotStore::open(dir.path()).expect("a directory");
        for position in (1..=40).map(|at| at * 100) {
            put(&snapshots, position);
        }
        assert_eq!(kept(&snapshots), [4000, 3900, 3800, 3600, 3400, 3100, 2600, 2100, 1100, 100]);
        assert_eq!(newest(&snapshots).as_deref(), Some("state at 4000"));
    }

    #[test]
    fn snapshots_of_another_shape_evict_none_and_are_thinned_by_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let snapshots = SnapshotStore::open(dir.path()).expect("a directory");
        (1..=20).for_each(|at| put(&snapshots, at * 100));
        let before = kept(&snapshots);
        let other = |position: u64| {
            let state = |to: &mut dyn Write| to.write_all(b"other");
            snapshots.write("f".into(), &cursor(position), None, "other", state, |_| true).expect("written");
        };
        // A start writes the newest, and reads of the past write earlier ones.
        other(2050);
        for position in (1..=20).map(|at| at * 100 + 50) {
            let is_wanted = snapshots.is_wanted(Position::new(position), "other").expect("listed");
            if is_wanted {
                other(position);
                assert!(kept(&snapshots).contains(&position), "{position}");
            }
        }
        assert!(!snapshots.is_wanted(Position::new(2050), "other").expect("listed"), "it is there");
        let own: Vec<_> = kept(&snapshots).into_iter().filter(|at| at % 100 == 50).collect();
        assert!(own.len() >= 5, "{own:?}");
        let others = kept(&snapshots).into_iter().filter(|at| at % 100 == 0);
        assert!(others.clone().all(|at| before.contains(&at)) && others.count() <= before.len());
        assert!(snapshots.load_newest(|meta| meta.fingerprint == "other").expect("listed").is_some());
    }

    #[test]
    fn snapshots_of_an_abandoned_history_evict_none_and_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let snapshots = SnapshotStore::open(dir.path()).expect("a directory");
        for position in [100, 200, 700, 800, 900] {
            put(&snapshots, position);
        }
        // The journal was restored from a copy up to 250, and continues from there as another lineage.
        let lineage = Lineage::from_random(7);
        let stands = |meta: &SnapshotMeta| meta.position.get() <= 250 || meta.lineage == lineage;
        for position in [300, 310, 320, 800] {
            put_of(&snapshots, &ChainCursor { lineage, ..cursor(position) }, stands);
            assert!(kept(&snapshots).contains(&position), "{position} is the newest usable one");
        }
        assert_eq!(kept(&snapshots), [800, 320, 300, 100]);
    }

    #[test]
    fn one_that_another_build_wrote_is_not_taken_for_abandoned() {
        let (_dir, snapshots) = with_three();
        let (_, path) = &snapshots.list().expect("listed")[1];
        let bytes = fs::read(path).expect("read");
        let newer = String::from_utf8(bytes).expect("text").replace("\"format\":2", "\"format\":9");
        fs::write(path, newer).expect("written");
        put_of(&snapshots, &cursor(4000), |meta| meta.position.get() > 10);
        assert_eq!(kept(&snapshots), [4000, 3000, 200]);
    }

    /// Positions of the snapshots that are witnesses.
    fn positions(snapshots: &SnapshotStore) -> Vec<u64> {
        let found = witnesses(&snapshots.dir).expect("listed");
        found.iter().map(|witness| witness.position.get()).collect()
    }

    #[test]
    fn a_damaged_one_is_replaced_by_the_one_before_whichever_bit_it_is() {
        let (_dir, snapshots) = with_three();
        assert_eq!(positions(&snapshots), [3000, 200, 10]);
        let (_, path) = &snapshots.list().expect("listed")[0];
        let whole = fs::read(path).expect("read");
        let line = whole.iter().rposition(|byte| *byte == b'}').expect("a first line") + 1;
        for at in (0..line).chain(HASHED - 1..whole.len()) {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                fs::write(path, damaged).expect("written");
                let found = snapshots.load_newest(|meta| meta.cursor() == cursor(3000)).expect("listed");
                assert!(found.is_none(), "byte {at}, bit {bit}");
                // A damaged first line proves nothing; an intact one does, whatever happened to the state.
                let proved = if at < META { &[200, 10][..] } else { &[3000, 200, 10] };
                assert_eq!(positions(&snapshots), proved, "byte {at}, bit {bit}");
            }
        }
        fs::write(path, &whole[..whole.len() - 1]).expect("written");
        assert_eq!(newest(&snapshots).as_deref(), Some("state at 200"));
    }

    #[test]
    fn a_snapshot_that_does_not_fit_is_skipped_and_an_unfinished_one_is_removed() {
        let (dir, snapshots) = with_three();
        let found = snapshots.load_newest(|meta| meta.position.get() < 3000).expect("listed");
        assert_eq!(found.map(|found| found.meta.position.get()), Some(200));
        assert!(snapshots.load_newest(|_| false).expect("listed").is_none());
        let unfinished = dir.path().join("snapshots/00000000000000004000.tmp");
        fs::write(&unfinished, "half").expect("written");
        assert_eq!(
            newest(&SnapshotStore::open(dir.path().join("snapshots")).expect("open")),
            newest(&snapshots)
        );
        assert!(!unfinished.exists());
    }
}
