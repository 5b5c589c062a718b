//! Reduction of a failing world: leaves out faults, inputs and steps while the same invariant fails.

use super::{TraceOption, WorldResult, WorldScript, play};

/// Maximum number of worlds that are tried.
const TRIES: usize = 400;

/// Returns the smallest script found that fails as `script` does, and its result with a trace.
pub fn shrink(script: &WorldScript) -> (WorldScript, WorldResult) {
    shrink_by(script, |played| played.violation.as_ref().map(|violation| violation.invariant))
}

/// Reduces as [`shrink`]; `failure` returns the number of the broken invariant of a world, if any.
fn shrink_by(
    script: &WorldScript,
    failure: impl Fn(&WorldResult) -> Option<u8>,
) -> (WorldScript, WorldResult) {
    let fails = |script: &WorldScript| failure(&play(script.clone(), TraceOption::Untraced));
    let mut best = script.clone();
    let mut tries = 0;
    let Some(invariant) = fails(&best) else { return (best.clone(), play(best, TraceOption::Traced)) };
    let mut keeps_failing = |candidate: &WorldScript| {
        tries += 1;
        tries <= TRIES && fails(candidate) == Some(invariant)
    };
    loop {
        let before = size(&best);
        for fault in best.faults.clone() {
            let mut candidate = best.clone();
            candidate.faults.remove(&fault);
            if keeps_failing(&candidate) {
                best = candidate;
            }
        }
        let mut chunk = best.inputs.len().div_ceil(2);
        while chunk > 0 {
            let mut at = 0;
            while at < best.inputs.len() {
                let mut candidate = best.clone();
                candidate.inputs.drain(at..(at + chunk).min(best.inputs.len()));
                if keeps_failing(&candidate) {
                    best = candidate;
                } else {
                    at += chunk;
                }
            }
            chunk /= 2;
        }
        for steps in [best.steps / 2, best.steps * 9 / 10] {
            let candidate = WorldScript { steps, ..best.clone() };
            if keeps_failing(&candidate) {
                best = candidate;
            }
        }
        if size(&best) == before {
            return (best.clone(), play(best, TraceOption::Traced));
        }
    }
}

fn size(script: &WorldScript) -> (usize, usize, u64) {
    (script.faults.len(), script.inputs.len(), script.steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_world_is_made_smaller_and_reported() {
        // No invariant fails in these worlds: here one that stops a server counts as failed.
        let failure = |played: &WorldResult| (played.counts.get("server failed") > 0).then_some(0);
        let mut scripts = (1..=100).map(WorldScript::draw);
        let script = scripts
            .find(|script| failure(&play(script.clone(), TraceOption::Untraced)).is_some())
            .expect("a server fails in one of a hundred worlds");
        let (small, result) = shrink_by(&script, failure);
        assert_eq!(failure(&result), Some(0));
        assert!(small.faults.len() < script.faults.len() && small.inputs.len() < script.inputs.len());
        assert!(result.trace.iter().any(|line| line.contains("server")), "{:#?}", result.trace);
    }
}
