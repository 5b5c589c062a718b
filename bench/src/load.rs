//! Callers: threads that call, wait for the answer, and call again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::table::{CellResult, median};
use crate::{ROUND, ROUNDS};

/// Side of a cell: a function that runs one round.
pub(crate) type MeasuredSide<'a> = Box<dyn FnMut() -> Result<CellResult> + 'a>;

/// Runs the sides alternately, and keeps the median round of each.
pub(crate) fn by_turns<const N: usize>(sides: [MeasuredSide<'_>; N]) -> Result<[CellResult; N]> {
    by_many_turns(ROUNDS, sides)
}

/// Runs the sides alternately in a number of rounds, and keeps the median round of each.
pub(crate) fn by_many_turns<const N: usize>(
    rounds: usize,
    mut sides: [MeasuredSide<'_>; N],
) -> Result<[CellResult; N]> {
    let cells = medians(rounds, &mut sides)?;
    Ok(cells.try_into().expect("as many as there are sides"))
}

/// Runs any number of sides alternately, and keeps the median round of each.
pub(crate) fn all_by_turns(sides: &mut [MeasuredSide<'_>]) -> Result<Vec<CellResult>> {
    medians(ROUNDS, sides)
}

fn medians(rounds: usize, sides: &mut [MeasuredSide<'_>]) -> Result<Vec<CellResult>> {
    let mut cells = vec![Vec::new(); sides.len()];
    for _ in 0..rounds {
        for (side, cells) in sides.iter_mut().zip(&mut cells) {
            cells.push(side()?);
        }
    }
    Ok(cells.into_iter().map(median).collect())
}

/// Runs `callers` callers for a round. Each calls its own function from `caller`.
pub(crate) fn round<C>(callers: usize, mut caller: impl FnMut(usize) -> Result<C>) -> Result<CellResult>
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
    Ok(CellResult::of(latencies?.concat(), took))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_run_by_turns_and_the_median_of_each_is_kept() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: char, rates: [f64; ROUNDS]| {
            let (mut rates, order) = (rates.into_iter(), &order);
            let side: MeasuredSide<'_> = Box::new(move || {
                order.borrow_mut().push(name);
                Ok(CellResult::rate(rates.next().expect("no more rounds")))
            });
            side
        };
        let cells = by_turns([side('a', [9.0, 1.0, 5.0]), side('b', [2.0, 3.0, 4.0])]).expect("rounds");
        assert_eq!(*order.borrow(), "ababab");
        assert_eq!(cells.map(|cell| cell.rate.to_string()), ["5", "3"]);
    }
}
