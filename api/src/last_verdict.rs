//! Last verdict of a server, if another server gave it; answers name it in their headers.

use axum::http::HeaderMap;
use chancery_events::id::{Lineage, Position};
pub use chancery_projector::LastVerdict;

/// Records the verdicts of an answer that another server gave. `own` is the lineage of this server's journal.
pub(super) fn note_forwarded(last: &LastVerdict, answer: &HeaderMap, own: Lineage) {
    let text = |name| answer.get(name).and_then(|value| value.to_str().ok());
    let lineage = match text("chancery-lineage").map(str::parse) {
        None => None,
        Some(Ok(lineage)) => Some(lineage),
        // An unreadable lineage is not that of this journal.
        Some(Err(_)) => return,
    };
    if let Some(Ok(position)) = text("chancery-position").map(str::parse) {
        last.note_forwarded(Position::new(position), lineage, own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_server_counts_unless_it_is_of_another_journal() {
        let [own, other] = [1, 2].map(|number| Lineage::from_random(number).to_string());
        let cases = [
            (Some("12"), Some(&*own), 12, "a verdict"),
            (Some("12"), None, 12, "a refusal, which names no lineage"),
            (Some("12"), Some(&*other), 5, "another journal"),
            (Some("12"), Some("x"), 5, "no lineage"),
            (Some("3"), Some(&*own), 5, "an earlier one: a repeat"),
            (Some("x"), Some(&*own), 5, "no position"),
            (None, Some(&*own), 5, "no verdict"),
        ];
        for (position, lineage, wanted, why) in cases {
            let last = LastVerdict::at(Position::new(5));
            let mut answer = HeaderMap::new();
            for (name, value) in [("chancery-position", position), ("chancery-lineage", lineage)] {
                if let Some(value) = value {
                    answer.insert(name, value.parse().expect("a header"));
                }
            }
            note_forwarded(&last, &answer, Lineage::from_random(1));
            assert_eq!(last.position(), Position::new(wanted), "{why}");
        }
    }
}
