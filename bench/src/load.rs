//! Callers: threads that call, wait for the answer, and call again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::ROUND;
use crate::table::Cell;

/// Runs so many callers for a round. Each gets a call of its own from `caller`.
pub(crate) fn round<C>(callers: usize, mut caller: impl FnMut(usize) -> Result<C>) -> Result<Cell>
where
    C: FnMut() -> Result<()> + Send,
{
    let calls = (0..callers).map(&mut caller).collect::<Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    let began = Instant::now();
    let latencies: Result<Vec<Vec<Duration>>> = std::thread::scope(|scope| {
        let running: Vec<_> = calls.into_iter().map(|call| scope.spawn(|| repeat(call, &stop))).collect();
        std::thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        running
            .into_iter()
            .map(|caller| caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))?)
            .collect()
    });
    let took = began.elapsed();
    Ok(Cell::of(latencies?.concat(), took))
}

fn repeat(mut call: impl FnMut() -> Result<()>, stop: &AtomicBool) -> Result<Vec<Duration>> {
    let mut latencies = Vec::with_capacity(1 << 16);
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        call()?;
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}
