//! Durable appends a second, against a raw program that collects, writes and syncs. Alternating; medians.
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{SyncSender, sync_channel, Sender, channel};
use std::sync::{Arc, Mutex, Condvar, atomic::{AtomicBool, AtomicU64, Ordering}};
use std::time::{Duration, Instant};
use std::collections::VecDeque;
use chancery_events::record::*;
use chancery_events::id::*;
use chancery_events::time::Time;
use chancery_journal::*;
use chancery_journal::segments::*;

const RUN: Duration = Duration::from_millis(1000);

fn line() -> Vec<u8> { format!(r#"{{"k":"fact","t":"thing.happened.v1","c":1,"d":{{"x":"{}"}}}}"#, "x".repeat(345)).into_bytes() }

/// callers block until acked; one appender lock seals records in order
fn ours(dir: &std::path::Path, callers: usize, size: u64) -> f64 {
    let waiters: Arc<Mutex<VecDeque<Sender<()>>>> = Arc::default();
    let its = waiters.clone();
    let sink: Sink = Box::new(move |d| match d {
        Delivery::Records(records) => {
            let mut w = its.lock().unwrap();
            let all: Vec<_> = w.drain(..records.len()).collect();
            drop(w);
            for one in all { let _ = one.send(()); }
        }
        other => panic!("{other:?}"),
    });
    let options = Options { first_segment: size, largest_segment: size, ..Options::new(dir, "f") };
    let (journal, _) = SegmentJournal::open(&options, sink).unwrap();
    let by = Signature { fleet: "f".into(), build: "0.1.0".into(), writer: Writer::from_random(9) };
    let mut draft = Draft::new();
    draft.push(format!(r#"{{"t":"{TERM_STARTED}"}}"#).as_bytes()).unwrap();
    let first = draft.seal(genesis(&by, Time::from_micros(1), Lineage::from_random(7))).unwrap();
    let at = Mutex::new(Cursor::after(&first));
    let (tx, rx) = channel(); waiters.lock().unwrap().push_back(tx);
    journal.append(first).unwrap(); rx.recv().unwrap();
    let done = AtomicBool::new(false); let n = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..callers { s.spawn(|| {
            let line = line();
            let (tx, rx) = channel();
            while !done.load(Ordering::Relaxed) {
                let mut draft = Draft::new();
                draft.push(&line).unwrap();
                {
                    let mut at = at.lock().unwrap();
                    let record = draft.seal(at.follow(&by, Time::from_micros(2), None)).unwrap();
                    *at = Cursor::after(&record);
                    waiters.lock().unwrap().push_back(tx.clone());
                    journal.append(record).unwrap();
                }
                rx.recv().unwrap();
                n.fetch_add(1, Ordering::Relaxed);
            }
        }); }
        std::thread::sleep(RUN); done.store(true, Ordering::Relaxed);
    });
    let rate = n.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    journal.close().unwrap();
    rate
}

/// raw: same blocking callers, payload of `bytes`, a mutexed vec, write, fdatasync
fn raw(dir: &std::path::Path, callers: usize, bytes: usize, size: u64) -> f64 {
    struct Q { items: Vec<(Vec<u8>, Sender<()>)>, waiting: bool, closed: bool }
    let q = Arc::new((Mutex::new(Q { items: vec![], waiting: false, closed: false }), Condvar::new()));
    let file = OpenOptions::new().create(true).write(true).truncate(true).open(dir.join("raw")).unwrap();
    let zeros = vec![0u8; 1 << 20];
    for i in 0..(size >> 20) { file.write_all_at(&zeros, i << 20).unwrap(); }
    file.sync_all().unwrap();
    let its = q.clone();
    let writer = std::thread::spawn(move || {
        let mut at = 0u64; let mut buf = Vec::new();
        loop {
            let items = {
                let mut s = its.0.lock().unwrap();
                while s.items.is_empty() { if s.closed { return; } s.waiting = true; s = its.1.wait(s).unwrap(); }
                std::mem::take(&mut s.items)
            };
            buf.clear();
            for (b, _) in &items { buf.extend_from_slice(b); }
            if at + buf.len() as u64 > size { at = 0; }
            file.write_all_at(&buf, at).unwrap();
            file.sync_data().unwrap();
            at += buf.len() as u64;
            for (_, w) in items { let _ = w.send(()); }
        }
    });
    let done = AtomicBool::new(false); let n = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..callers { s.spawn(|| {
            let (tx, rx) = channel();
            while !done.load(Ordering::Relaxed) {
                let payload = vec![b'x'; bytes];
                let mut st = q.0.lock().unwrap();
                st.items.push((payload, tx.clone()));
                let wake = std::mem::take(&mut st.waiting);
                drop(st);
                if wake { q.1.notify_one(); }
                rx.recv().unwrap();
                n.fetch_add(1, Ordering::Relaxed);
            }
        }); }
        std::thread::sleep(RUN); done.store(true, Ordering::Relaxed);
    });
    let rate = n.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    q.0.lock().unwrap().closed = true; q.1.notify_one(); writer.join().unwrap();
    rate
}

fn main() {
    let base = std::path::PathBuf::from(std::env::args().nth(1).expect("dir"));
    for callers in [1, 8, 32, 128] {
        let (mut a, mut b, mut r) = (vec![], vec![], vec![]);
        for i in 0..7 {
            let d = base.join(format!("{callers}-{i}")); std::fs::create_dir_all(&d).unwrap();
            r.push(raw(&d, callers, 400, 256 << 20)); std::fs::remove_file(d.join("raw")).unwrap();
            a.push(ours(&d.join("j"), callers, 256 << 20)); std::fs::remove_dir_all(d.join("j")).unwrap();
            b.push(ours(&d.join("j"), callers, 64 << 20)); std::fs::remove_dir_all(&d).unwrap();
        }
        for v in [&mut a, &mut b, &mut r] { v.sort_by(f64::total_cmp); }
        println!("{callers:4} callers: raw {:8.0}  ours(256M) {:8.0} ({:.2})  ours(64M, rolls) {:8.0} ({:.2})", r[3], a[3], a[3]/r[3], b[3], b[3]/r[3]);
    }
    let _: Option<SyncSender<()>> = None; let _ = sync_channel::<()>(0);
}
