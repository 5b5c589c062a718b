//! Bodies of intents by type, read so that an error names its location.

use chancery_events::event::EventData;
use chancery_events::intent::Intent;
use serde::de::DeserializeOwned;

use super::json::{self, SplicedJson};
use super::problem::{INTERNAL, ProblemDetails};

impl EventData for SplicedJson {
    type Error = ProblemDetails;
    fn read<T: DeserializeOwned>(&self) -> Result<T, ProblemDetails> {
        SplicedJson::read(self)
    }
}

/// Part of a text, with the whole text.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonPart<'a> {
    pub(super) whole: &'a str,
    pub(super) part: &'a str,
}

impl EventData for JsonPart<'_> {
    type Error = ProblemDetails;
    fn read<T: DeserializeOwned>(&self) -> Result<T, ProblemDetails> {
        // A part is a slice of the whole: its start is a difference of addresses.
        let at = (self.part.as_ptr() as usize).wrapping_sub(self.whole.as_ptr() as usize);
        let before = self.whole.get(..at).unwrap_or_default();
        let lines = before.matches('\n').count();
        let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1);
        json::read_at(self.part, |(line, at)| (line + lines, if line == 1 { at + column } else { at }))
    }
}

/// Reads the body of an intent of the type.
pub(super) fn intent(
    type_name: &str,
    text: &impl EventData<Error = ProblemDetails>,
) -> Result<Intent, ProblemDetails> {
    Intent::read_from(type_name, text).unwrap_or_else(|| {
        Err(ProblemDetails::new(INTERNAL, format!("nothing reads intents of type {type_name}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_read_as_itself() {
        for type_name in Intent::TYPES {
            let empty = JsonPart { whole: "{}", part: "{}" };
            let problem = intent(type_name, &empty).expect_err("an empty body lacks something");
            assert_eq!(problem.kind.code, "invalid", "{type_name}: {}", problem.detail);
            let line = std::fs::read_to_string(format!(
                "{}/../schemas/samples/{type_name}.json",
                env!("CARGO_MANIFEST_DIR")
            ))
            .expect("a sample");
            let line = chancery_events::event::EventLine::read(line.trim().as_bytes()).expect("a line");
            let part = JsonPart { whole: line.data.get(), part: line.data.get() };
            assert_eq!(intent(type_name, &part).expect("a body").type_name(), *type_name);
        }
    }
}
