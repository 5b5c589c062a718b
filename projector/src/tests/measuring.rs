//! Temporary measurements.

use std::time::Duration;

use super::driver::{Driver, FLEET};
use crate::changes::changes;
use crate::counts::Counts;
use crate::fold::{Fold, Touched};
use crate::page::Query;
use crate::projector::Projector;
use crate::rows::ReplicaRow;
use crate::store::{Store, Tuning};

#[test]
#[ignore = "measures"]
fn rate() {
    let replicas = std::env::var("REPLICAS").ok().and_then(|v| v.parse().ok()).unwrap_or(66_000);
    let mut driver = Driver::new(1);
    driver.found(0, 20);
    for n in 0..200 {
        driver.apply_node(n, 1000);
    }
    // all automatic
    for n in 0..20 {
        driver.apply_plan(n, "automatic");
        driver.deploy(n, "deployment-1", replicas / 20);
    }
    let t = Cpu::now();
    driver.settle();
    println!(
        "made {} records, {} replicas running in {:?}",
        driver.records.len(),
        driver.fleet.replicas().len(),
        t.elapsed()
    );
    let ids: Vec<_> = driver.fleet.incarnations().sorted().into_iter().map(|i| i.id).collect();
    let mut n = 0;
    while driver.records.last().unwrap().last().get() < 15 * replicas as u64 {
        let id = ids[driver.pick(ids.len())];
        n += 1;
        driver.report(id, if n % 2 == 0 { 1 } else { 7 });
    }
    driver.seal();
    let events = driver.records.last().unwrap().last().get();
    let entities =
        driver.fleet.replicas().len() + driver.fleet.incarnations().len() + driver.fleet.operations().len();
    println!("{events} events, {} records, {entities} entities", driver.records.len());
    let env =
        |name: &str, default: usize| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    {
        let batch = env("BATCH", 10_000);
        let cache = env("CACHE", 64) as u64;
        // the fold alone
        let t = Cpu::now();
        let mut fold = Fold::default();
        let mut touched = Touched::default();
        for r in &driver.records {
            fold.take(r, &mut touched).unwrap();
        }
        let fold_only = t.elapsed();
        drop(fold);
        let dir = tempfile::tempdir().unwrap();
        let tuning = Tuning { batch, catch_up: batch, cache: cache << 20, ..Tuning::default() };
        let t = Cpu::now();
        let mut projector = Projector::open(dir.path(), FLEET, driver.source(), None, tuning).unwrap();
        projector.apply(&driver.records).unwrap();
        let whole = t.elapsed();
        println!("whole {whole:?}");
        if env("READS", 0) == 1 {
            reads(&projector);
        }
        drop(projector);
        // the same batches into sled alone
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), tuning).unwrap();
        let (mut fold, mut touched, mut counts) = (Fold::default(), Touched::default(), Counts::default());
        let mut since = chancery_events::id::Position::ZERO;
        let mut batches = Vec::new();
        let mut make = std::time::Duration::ZERO;
        for (i, r) in driver.records.iter().enumerate() {
            fold.take(r, &mut touched).unwrap();
            if touched.len() >= batch || i + 1 == driver.records.len() {
                let state = fold.state().unwrap();
                let t = Cpu::now();
                let c =
                    changes(&state.fleet, &mut counts, std::mem::take(&mut touched), since, &store).unwrap();
                make += t.elapsed();
                since = state.at.position;
                batches.push((c.clone(), state.at));
                store.apply(c, Some(&state.at)).unwrap();
            }
        }
        drop(store);
        let writes: usize = batches.iter().map(|(c, _)| c.0.len()).sum();
        let rows: usize = batches.iter().flat_map(|(c, _)| &c.0).filter(|(k, _)| k[0] < 0x80).count();
        let mut floors = Vec::new();
        for rows_only in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path(), tuning).unwrap();
            let copy = batches.clone();
            let t = Cpu::now();
            for (mut c, at) in copy {
                if rows_only {
                    c.0.retain(|(k, _)| k[0] < 0x80);
                }
                store.apply(c, Some(&at)).unwrap();
            }
            floors.push(t.elapsed());
        }
        println!(
            "batch {batch}: whole {whole:?} = {:.0} events/s; fold alone {fold_only:?} = {:.0}/s; making rows {make:?}; {} batches, {rows} rows + {} entries; sled alone {:?} ({:.0} writes/s), rows only {:?}; ratio {:.2} of sled",
            events as f64 / whole.as_secs_f64(),
            events as f64 / fold_only.as_secs_f64(),
            batches.len(),
            writes - rows,
            floors[0],
            writes as f64 / floors[0].as_secs_f64(),
            floors[1],
            floors[0].as_secs_f64() / whole.as_secs_f64(),
        );
    }
}

fn reads(projector: &Projector) {
    let reader = projector.reader();
    let t = Cpu::now();
    let names: Vec<_> = reader
        .list::<ReplicaRow>(&Query::all().limit(1000))
        .unwrap()
        .items
        .into_iter()
        .map(|r| r.name)
        .collect();
    println!("page of 1000 in {:?}", t.elapsed());
    let t = Cpu::now();
    for i in 0..100_000 {
        reader.get_json(&crate::kind::RowKey::Replica(names[i % 1000].clone())).unwrap().unwrap();
    }
    println!("get_json {:?} each", t.elapsed() / 100_000);
    for q in [
        Query::all(),
        Query::all().by("plan", "plan-3"),
        Query::all().by("node", "node-3"),
        Query::all().by("phase", "running").by("plan", "plan-2"),
    ] {
        let t = Cpu::now();
        for _ in 0..1000 {
            reader.list_json(crate::kind::RowKind::Replicas, &q).unwrap();
        }
        println!("list_json of 100 by {:?}: {:?} each", q.filters, t.elapsed() / 1000);
    }
    let rows = reader.list::<ReplicaRow>(&Query::all()).unwrap().items;
    let bytes: Vec<_> = rows.iter().map(crate::store::encode).collect();
    let t = Cpu::now();
    for _ in 0..1000 {
        let rows: Vec<ReplicaRow> = bytes.iter().map(|b| crate::store::decode(b"x", b).unwrap()).collect();
        std::hint::black_box(serde_json::to_string(&rows).unwrap());
    }
    println!(
        "bare decode and serialise of 100: {:?} each; a row has {} bytes",
        t.elapsed() / 1000,
        bytes[0].len()
    );
}

/// This thread's time on a processor.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

#[derive(Clone, Copy)]
struct Cpu(Duration);
impl Cpu {
    fn now() -> Cpu {
        Cpu(cpu())
    }
    fn elapsed(self) -> Duration {
        cpu() - self.0
    }
}
