//! Bodies of intents by type, read so that an error names its location.

use chancery_events::event::EventData;
use chancery_events::intent::Intent;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::json::{self, SplicedJson};
use super::problem::{INTERNAL, INVALID, ProblemDetails, RequestPart, pointer_to};

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

impl AsRef<str> for JsonPart<'_> {
    fn as_ref(&self) -> &str {
        self.part
    }
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
    text: &(impl EventData<Error = ProblemDetails> + AsRef<str>),
) -> Result<Intent, ProblemDetails> {
    let intent = Intent::read_from(type_name, text).unwrap_or_else(|| {
        Err(ProblemDetails::new(INTERNAL, format!("nothing reads intents of type {type_name}")))
    })?;
    // Other texts have no list.
    if text.as_ref().contains('[') {
        let sent: Value = text.read()?;
        let own = serde_json::from_str(&intent.data_json())
            .map_err(|error| ProblemDetails::internal("read the intent again", &error))?;
        if let Some(pointer) = list_for_object(&sent, &own, "") {
            let detail = "invalid body: a list is not an object";
            return Err(ProblemDetails::new(INVALID, detail).at(
                RequestPart::Body,
                pointer,
                "must be an object, not a list",
            ));
        }
    }
    Ok(intent)
}

/// Returns where the first list is that was read as an object: derived deserializers take the members of an object from a list.
fn list_for_object(sent: &Value, own: &Value, at: &str) -> Option<String> {
    match (sent, own) {
        (Value::Array(_), Value::Object(_)) => Some(at.to_owned()),
        (Value::Array(sent), Value::Array(own)) => {
            let mut items = sent.iter().zip(own).enumerate();
            items.find_map(|(index, (sent, own))| list_for_object(sent, own, &format!("{at}/{index}")))
        }
        (Value::Object(sent), Value::Object(own)) => sent.iter().find_map(|(name, sent)| {
            list_for_object(sent, own.get(name)?, &format!("{at}{}", pointer_to(name)))
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_no_object() {
        let read = |data: &str| intent("node.apply.v1", &JsonPart { whole: data, part: data });
        let data =
            r#"{"name":"a","spec":{"domain":"d","resources":[4000,8589934592,0],"labels":{"x":"[y]"}}}"#;
        let problem = read(data).expect_err("a list");
        assert_eq!((problem.kind.code, problem.errors()[0].pointer.as_str()), ("invalid", "/spec/resources"));
        let data = r#"{"name":"a","spec":{"domain":"d","resources":{"cpu":1},"capabilities":["gpu"]}}"#;
        read(data).expect("a list where one belongs");
    }

    #[test]
    fn a_word_for_an_object_is_reported_where_it_is() {
        let data = r#"{"name":"a","spec":{"rule":"four_eyes"}}"#;
        let problem = intent("policy.apply.v1", &JsonPart { whole: data, part: data }).expect_err("a word");
        let fault = &problem.errors()[0];
        let wanted = ("/spec/rule", r#"must be an object, as in {"four_eyes": {}}"#);
        assert_eq!((fault.pointer.as_str(), fault.detail.as_str()), wanted);
    }

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
