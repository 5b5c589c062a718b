//! Makes a failing world smaller: leaves out faults, inputs and steps as long as the same invariant fails.

use super::{Played, Script, Story, play};

/// Worlds that are tried, at most.
const TRIES: usize = 400;

/// The smallest script found that fails as `script` does, and what became of it, told as a story.
pub fn shrink(script: &Script) -> (Script, Played) {
    let mut best = script.clone();
    let mut tries = 0;
    let Some(invariant) = fails(&best) else { return (best.clone(), play(best, Story::Told)) };
    let mut keeps_failing = |candidate: &Script| {
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
            let candidate = Script { steps, ..best.clone() };
            if keeps_failing(&candidate) {
                best = candidate;
            }
        }
        if size(&best) == before {
            return (best.clone(), play(best, Story::Told));
        }
    }
}

fn size(script: &Script) -> (usize, usize, u64) {
    (script.faults.len(), script.inputs.len(), script.steps)
}

fn fails(script: &Script) -> Option<u8> {
    play(script.clone(), Story::Untold).violation.map(|violation| violation.invariant)
}
