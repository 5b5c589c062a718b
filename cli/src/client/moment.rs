//! Moment of the reads of a command: as given at first, then that of the first answer, so that all reads of a
//! command are those of one record.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use chancery_events::time::Time;
use serde_json::Value;
use ureq::http::HeaderMap;

use crate::note;

/// Returns the position of the last record, if `text` is a time after it that has passed. `problem` is the refusal of the server, which
/// cannot know whether a record of an earlier time follows.
pub(super) fn last_before(text: &str, problem: &str) -> Option<String> {
    let problem: Value = serde_json::from_str(problem).ok()?;
    if problem["code"] != "moment_out_of_range" {
        return None;
    }
    let asked: Time = text.parse().ok()?;
    let last: Time = problem["last"]["time"].as_str()?.parse().ok()?;
    let now = Time::from_micros(chrono::Utc::now().timestamp_micros());
    if asked < last || asked > now + WITHIN_SECOND {
        return None;
    }
    Some(problem["last"]["position"].as_u64()?.to_string())
}

/// Time by which a whole second that has started ends later.
const WITHIN_SECOND: Duration = Duration::from_secs(1);

/// Moment of reads.
#[derive(Default)]
pub(super) struct ClientMoment {
    text: RefCell<Option<String>>,
    /// Whether an answer has named the record of the moment.
    is_found: Cell<bool>,
    /// Time of that record.
    pub(super) time: Cell<Option<Time>>,
    /// Whether the record is not shown.
    pub(super) is_silent: Cell<bool>,
}

impl ClientMoment {
    pub(super) fn set(&self, moment: Option<String>) {
        self.text.replace(moment);
        self.is_found.set(false);
        self.time.set(None);
    }

    pub(super) fn get(&self) -> Option<String> {
        self.text.borrow().clone()
    }

    /// Takes the last record instead of a time after it, if the server has refused that time with this problem.
    pub(super) fn use_last(&self, problem: &str) -> bool {
        let last = self.text.borrow().as_deref().and_then(|text| last_before(text, problem));
        let is_used = last.is_some();
        if is_used {
            self.text.replace(last);
            note!("the server has no record after that: this is its last one");
        }
        is_used
    }

    /// Takes the record of the moment from the headers of an answer, and shows it.
    pub(super) fn note(&self, headers: &HeaderMap) {
        if self.is_found.get() || self.text.borrow().is_none() {
            return;
        }
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        // Only an answer at a moment has a time.
        if let (Some(position), Some(time)) = (text("chancery-position"), text("chancery-time")) {
            let lineage = text("chancery-lineage").map_or(String::new(), |lineage| format!(".{lineage}"));
            self.text.replace(Some(format!("{position}{lineage}")));
            self.is_found.set(true);
            self.time.set(time.parse().ok());
            if !self.is_silent.get() {
                note!("as of position {position}, {time}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_time_that_has_passed_means_the_last_record() {
        let now = Time::from_micros(chrono::Utc::now().timestamp_micros());
        let ago = |seconds: u64| now.before(Duration::from_secs(seconds)).to_string();
        let problem =
            |code: &str| json!({"code": code, "last": {"position": 7, "time": ago(60)}}).to_string();
        let refused = problem("moment_out_of_range");
        assert_eq!(last_before(&ago(10), &refused).as_deref(), Some("7"));
        let later = (now + Duration::from_mins(1)).to_string();
        for (text, problem) in [
            (&*ago(61), &*refused),
            (&later, &refused),
            ("9", &refused),
            (&ago(10), &problem("invalid_parameter")),
            (&ago(10), "no problem"),
        ] {
            assert_eq!(last_before(text, problem), None, "{text} {problem}");
        }
    }
}
