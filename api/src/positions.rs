//! Positions as clients name them: with the lineage under which they were given, or, typed by a person, without.
//!
//! | the lineage that is named | up to the head | behind it |
//! |---|---|---|
//! | none, or the current one | taken | not there yet: the caller says what comes of it |
//! | an ancestor, up to its end | taken | – |
//! | an ancestor, behind its end | 410 | 410 |
//! | another one | 410 | 410 |
//!
//! Under an ancestor only what is kept of it can have been seen by somebody who may go on.

use axum::body::Body;
use axum::http::{HeaderValue, Response};
use chancery_events::id::Position;
use chancery_events::lineage::{InvalidPosition, Lineages, NamedPosition};

use super::App;
use super::problem::{In, OTHER_LINEAGE, Problem};
use super::query::Params;

/// The position behind which somebody wants to go on, who has seen what stands there.
pub(super) fn seen(lineages: Option<&Lineages>, seen: NamedPosition) -> Result<Position, Problem> {
    let NamedPosition { position, lineage } = seen;
    let (Some(lineage), Some(lineages)) = (lineage, lineages) else { return Ok(position) };
    // Nothing was seen yet.
    if position == Position::ZERO || lineages.has(lineage, position) {
        return Ok(position);
    }
    let (current, since) = (lineages.current, lineages.since());
    let end = match lineages.end(lineage) {
        Some(end) => format!("lineage {lineage} ended at position {end}"),
        None => format!("nothing is held of lineage {lineage}"),
    };
    let detail = format!(
        "cannot go on behind position {position}: {end}, and the journal continues as lineage {current} from position \
         {since}; read the state anew, then the events from there"
    );
    Err(Problem::new(OTHER_LINEAGE, detail).lineage(current, since))
}

/// The first position that somebody wants, who has seen all before it.
pub(super) fn wanted(lineages: Option<&Lineages>, first: NamedPosition) -> Result<Position, Problem> {
    let before = Position::new(first.position.get().saturating_sub(1));
    seen(lineages, NamedPosition { position: before, ..first }).map(|before| before.plus(1))
}

/// Takes a position out of a query.
pub(super) fn take(params: &mut Params, name: &str) -> Result<Option<NamedPosition>, Problem> {
    let read = |text: String| text.parse().map_err(|error| invalid(In::Query, name, error));
    params.take(name)?.map(read).transpose()
}

/// A parameter that is no position.
pub(super) fn invalid(part: In, name: &str, error: InvalidPosition) -> Problem {
    Problem::parameter(part, name, error.to_string())
}

/// Names the lineage under which the positions of an answer are given.
pub(super) fn named(app: &App, mut response: Response<Body>) -> Response<Body> {
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
        let mut lineages = Lineages::new(first);
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
            // Who wants the next one has seen this one.
            let next = wanted(Some(&lineages), NamedPosition { position: position.plus(1), lineage });
            assert_eq!(next.ok(), is_taken.then(|| position.plus(1)), "{why}");
        }
    }
}
