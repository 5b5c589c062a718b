//! Positions in requests: with the lineage in which they were given, or without it if a person typed them.
//!
//! | named lineage | up to the head | after the head |
//! |---|---|---|
//! | none, or the current one | accepted | not reached yet: the caller decides |
//! | an ancestor, up to its end | accepted | – |
//! | an ancestor, after its end | 410 | 410 |
//! | another one | 410 | 410 |
//!
//! A client of an ancestor can continue only if it has seen no more than the part that was kept.

use axum::body::Body;
use axum::http::{HeaderValue, Response};
use chancery_events::id::Position;
use chancery_events::lineage::{LineageHistory, NamedPosition};

use super::FleetApi;
use super::problem::{OTHER_LINEAGE, ProblemDetails};

/// Returns the position after which a client continues that has seen the record at `seen`.
pub(super) fn seen(
    lineages: Option<&LineageHistory>,
    seen: NamedPosition,
) -> Result<Position, ProblemDetails> {
    let NamedPosition { position, lineage } = seen;
    let (Some(lineage), Some(lineages)) = (lineage, lineages) else { return Ok(position) };
    // The client has seen nothing yet.
    if position == Position::ZERO || lineages.has(lineage, position) {
        return Ok(position);
    }
    let (current, since) = (lineages.current, lineages.since());
    let end = match lineages.end(lineage) {
        Some(end) => format!("lineage {lineage} ended at position {end}"),
        None => format!("this journal has no records of lineage {lineage}"),
    };
    let detail = format!(
        "cannot continue after position {position}: {end}, and the journal continues as lineage {current} from position \
         {since}\nhint: read the state again, then the events from there"
    );
    Err(ProblemDetails::new(OTHER_LINEAGE, detail).lineage(current, since))
}

/// Returns the first position that a client needs that has seen all earlier ones.
pub(super) fn wanted(
    lineages: Option<&LineageHistory>,
    first: NamedPosition,
) -> Result<Position, ProblemDetails> {
    let before = Position::new(first.position.get().saturating_sub(1));
    seen(lineages, NamedPosition { position: before, ..first }).map(|before| before.plus(1))
}

/// Adds the lineage of the answer's positions as a header.
pub(super) fn named(app: &FleetApi, mut response: Response<Body>) -> Response<Body> {
    if let Some(lineages) = app.hub.lineages()
        && let Ok(value) = HeaderValue::from_str(&lineages.current.to_string())
    {
        response.headers_mut().insert("chancery-lineage", value);
    }
    response
}

#[cfg(test)]
mod tests {
    use chancery_events::fact::LineageStarted;
    use chancery_events::id::Lineage;

    use super::*;

    #[test]
    fn what_was_seen_of_an_ancestor_counts_up_to_its_end_and_what_is_lost_is_410() {
        let [first, second, other] = [1, 2, 3].map(Lineage::from_random);
        let mut lineages = LineageHistory::new(first);
        let (at, missing_through) = (Position::new(120), Some(Position::new(150)));
        lineages
            .start(second, &LineageStarted { previous: first, at, missing_through, abandoned: Vec::new() });
        let cases = [
            (None, 500, true, "a number alone"),
            (Some(second), 500, true, "the current lineage"),
            (Some(first), 120, true, "the end of an ancestor"),
            (Some(first), 121, false, "behind the end of an ancestor"),
            (Some(other), 1, false, "another lineage"),
            (Some(other), 0, true, "nothing was seen"),
        ];
        for (lineage, position, is_taken, why) in cases {
            let position = Position::new(position);
            let named = NamedPosition { position, lineage };
            match seen(Some(&lineages), named) {
                Ok(taken) => assert_eq!((taken, is_taken), (position, true), "{why}"),
                Err(problem) => {
                    assert!(!is_taken && problem.is(OTHER_LINEAGE), "{why}");
                    let shown = problem.shown("1");
                    assert_eq!((shown.lineage, shown.since), (Some(second.to_string()), Some(121)), "{why}");
                }
            }
            // A client that asks for the next position has seen this one.
            let next = wanted(Some(&lineages), NamedPosition { position: position.plus(1), lineage });
            assert_eq!(next.ok(), is_taken.then(|| position.plus(1)), "{why}");
        }
    }
}
