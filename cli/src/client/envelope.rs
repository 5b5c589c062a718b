//! Intents as CloudEvents, with their idempotency keys.

use std::cell::Cell;

use chancery_events::intent::Intent;
use chancery_events::time::Time;
use serde_json::json;
use serde_json::value::RawValue;

use super::{ApiClient, VerdictResponse};
use crate::error::CliError;

/// Way to repeat a command safely after an unknown outcome.
pub(crate) enum RepeatAdvice {
    /// With its idempotency key, and with flags that make its intents the same, each with a space behind it.
    Key(String),
    /// As it was, but without a key: it reads first what is left, so that its intents may be others.
    Unchanged,
}

impl Default for RepeatAdvice {
    fn default() -> RepeatAdvice {
        RepeatAdvice::Key(String::new())
    }
}

/// Idempotency keys of the intents of a command: all derive from the first, so that the command can be repeated.
pub(super) struct CommandKeys {
    first: String,
    used: Cell<u64>,
}

impl CommandKeys {
    /// Creates the keys from the given first one, or from a new one.
    pub(super) fn of(given: Option<&String>) -> CommandKeys {
        let first = given.map_or_else(|| uuid::Uuid::new_v4().to_string(), Clone::clone);
        CommandKeys { first, used: Cell::new(0) }
    }

    fn next(&self) -> String {
        let used = self.used.replace(self.used.get() + 1);
        if used == 0 { self.first.clone() } else { format!("{}-{}", self.first, used + 1) }
    }
}

impl ApiClient<'_> {
    /// Sends an intent that is refused unless its entity has the version. Returns its verdict.
    pub(crate) fn ask_if(
        &self,
        doing: &str,
        intent: &Intent,
        version: u64,
    ) -> Result<VerdictResponse, CliError> {
        self.send(doing, &self.envelope(intent, Some(version)))
    }

    /// Converts the intent to a CloudEvent with the next key and the current time, which all attempts share. With a version,
    /// the intent is refused unless its entity has it.
    pub(crate) fn envelope(&self, intent: &Intent, version: Option<u64>) -> String {
        let key = self.keys.next();
        let time = Time::from_micros(chrono::Utc::now().timestamp_micros()).to_string();
        let data = RawValue::from_string(intent.data_json()).expect("the data is JSON");
        let mut head = json!({
            "specversion": "1.0",
            "id": key,
            "source": "cli",
            "type": format!("dev.chancery.{}", intent.type_name()),
            "time": time,
            "actor": self.context.actor.as_str(),
            "datacontenttype": "application/json",
        });
        if let Some(version) = version {
            head["expectedversion"] = version.into();
        }
        // The data is inserted as text: numbers beyond the range of a generic value stay exact.
        let head = head.to_string();
        format!("{},\"data\":{}}}", head.trim_end_matches('}'), data.get())
    }

    /// Sets how the command is repeated after an unknown outcome, unless its key alone suffices.
    pub(crate) fn repeats(&self, advice: RepeatAdvice) {
        self.repeat.replace(advice);
    }

    /// Returns advice on how to repeat the command after an unknown outcome.
    pub(super) fn repeat_hint(&self) -> String {
        let flags = match &*self.repeat.borrow() {
            RepeatAdvice::Key(flags) => flags.clone(),
            RepeatAdvice::Unchanged => {
                return "hint: the command can be repeated without --idempotency-key: what was decided is not \
                        decided again"
                    .to_owned();
            }
        };
        format!("hint: to repeat the command safely, add {flags}--idempotency-key {}", self.keys.first)
    }
}
