use std::time::Instant;
use chancery_events::record::*;
use chancery_events::id::*;
use chancery_events::time::Time;
use chancery_journal::*;
fn main() {
    let line = format!(r#"{{"k":"fact","t":"thing.happened.v1","c":1,"d":{{"x":"{}"}}}}"#, "x".repeat(345)).into_bytes();
    let by = Signature { fleet: "f".into(), build: "0.1.0".into(), writer: Writer::from_random(9) };
    let mut draft = Draft::new();
    draft.push(format!(r#"{{"t":"{TERM_STARTED}"}}"#).as_bytes()).unwrap();
    let first = draft.seal(genesis(&by, Time::from_micros(1), Lineage::from_random(7))).unwrap();
    for per in [1usize, 10, 100] {
        let n = 200_000 / per;
        let mut at = Cursor::after(&first);
        let mut all = Vec::with_capacity(n);
        let t = Instant::now();
        for _ in 0..n {
            let mut draft = Draft::new();
            for _ in 0..per { draft.push(&line).unwrap(); }
            let r = draft.seal(at.follow(&by, Time::from_micros(2), None)).unwrap();
            at = Cursor::after(&r);
            all.push(r);
        }
        let seal = t.elapsed();
        let t = Instant::now();
        let mut h = 0u8;
        for r in &all { h ^= Hash::of(r.bytes()).bytes()[0]; }
        let hash = t.elapsed();
        let t = Instant::now();
        for r in &all { Header::peek(r.bytes()).unwrap(); }
        let peek = t.elapsed();
        let t = Instant::now();
        let mut chain = Chain::new("f".into(), Some(Cursor::after(&first)));
        for r in &all { let _ = chain.take(&r.bytes()[..]).unwrap(); }
        let take = t.elapsed();
        let t = Instant::now();
        for r in &all { h ^= crc32c::crc32c(r.bytes()) as u8; }
        let crc = t.elapsed();
        let per_rec = |d: std::time::Duration| d.as_nanos() as f64 / n as f64;
        println!("{per} events a record ({} B): seal {:.0} ns, hash {:.0}, peek {:.0}, take {:.0}, crc {:.0} ns a record {h}", all[0].bytes().len(), per_rec(seal), per_rec(hash), per_rec(peek), per_rec(take), per_rec(crc));
    }
}
