//! Strict reading of JSON from clients; errors name their location.
//!
//! There are two passes. The first is untyped ([`strict`]): it refuses invalid JSON, duplicate names, and
//! depth that could exhaust the stack. The second reads the target type. Both give the location as a JSON
//! Pointer, and as line and column of the text as it was sent.

use std::fmt::Write as _;

use chancery_events::strict::{self, InvalidJson, JsonPathStep};
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use super::problem::{INVALID, MALFORMED, ProblemDetails, ProblemKind, RequestPart};

/// Checks that `bytes` are one JSON text in UTF-8, without duplicate names, at most `depth` levels deep.
pub(super) fn check(bytes: &[u8], depth: usize) -> Result<&str, ProblemDetails> {
    strict::check(bytes, depth).map_err(|fault| match fault {
        InvalidJson::Utf8 { from } => {
            let detail = format!("cannot read body: invalid UTF-8 from byte {from}");
            ProblemDetails::new(MALFORMED, detail).at(RequestPart::Body, "", "must be UTF-8")
        }
        InvalidJson::Empty => not_an_object(MALFORMED, "cannot read body: empty"),
        InvalidJson::Json { pointer, source } => {
            let place = (source.line(), source.column());
            json_problem(MALFORMED, &source, pointer, place)
        }
    })
}

/// Returns the problem of a body that is no object.
fn not_an_object(kind: &'static ProblemKind, detail: &str) -> ProblemDetails {
    ProblemDetails::new(kind, detail).at(RequestPart::Body, "", "must be a JSON object")
}

/// Members taken from the path, inserted before those of the body.
#[derive(Default, Debug)]
pub(super) struct SplicedJson {
    text: String,
    at: usize,
    inserted: usize,
}

impl SplicedJson {
    /// Inserts `members` into the object that `text` must be. The text has been checked.
    pub(super) fn new(text: &str, members: &[(&str, &str)]) -> Result<SplicedJson, ProblemDetails> {
        let at = text.len() - text.trim_start_matches([' ', '\t', '\r', '\n']).len();
        let Some(rest) = text[at..].strip_prefix('{') else {
            return Err(not_an_object(INVALID, "invalid body: not an object"));
        };
        let mut front = String::new();
        for (name, value) in members {
            let (name, value) = (serde_json::Value::from(*name), serde_json::Value::from(*value));
            let _ = write!(front, "{name}:{value},");
        }
        if rest.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('}') {
            front.pop();
        }
        let spliced = format!("{}{{{front}{rest}", &text[..at]);
        Ok(SplicedJson { text: spliced, at: at + 1, inserted: front.len() })
    }

    /// Converts a location in the combined text into the location in the sent text.
    fn sent(&self, (line, column): (usize, usize)) -> (usize, usize) {
        let before = &self.text[..self.at];
        let here = before.matches('\n').count() + 1;
        let start = self.at - before.rfind('\n').map_or(0, |end| end + 1);
        if line == here && column > start {
            (line, column.saturating_sub(self.inserted).max(start))
        } else {
            (line, column)
        }
    }

    /// Reads the combined text as a value of type `T`.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ProblemDetails> {
        read_at(&self.text, |place| self.sent(place))
    }
}

impl AsRef<str> for SplicedJson {
    /// Returns the combined text.
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// Reads a checked text as a value of type `T`.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, ProblemDetails> {
    read_at(text, |place| place)
}

/// Reads an object that is a part of a checked text; `sent` maps a location of the part to the text.
pub(super) fn read_at<T: DeserializeOwned>(
    text: &str,
    sent: impl Fn((usize, usize)) -> (usize, usize),
) -> Result<T, ProblemDetails> {
    // Derived deserializers accept an array for an object, member by member; no client means that.
    if !text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        return Err(not_an_object(INVALID, "invalid body: not an object"));
    }
    let mut from = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut from).map_err(|error| {
        let mut pointer = String::new();
        for segment in error.path() {
            match segment {
                Segment::Seq { index } => JsonPathStep::Index(*index).write(&mut pointer),
                Segment::Map { key } => strict::name_step(&mut pointer, key),
                Segment::Enum { variant } => strict::name_step(&mut pointer, variant),
                Segment::Unknown => {}
            }
        }
        let error = error.into_inner();
        let message = error.to_string();
        if message.starts_with("invalid type: unit variant") {
            // The path ends at the word, which is a value and no member.
            let word = pointer.rfind('/').map(|at| pointer.split_off(at)).unwrap_or_default();
            let what = format!("must be an object, as in {{\"{}\": {{}}}}", word.trim_start_matches('/'));
            let (line, column) = sent((error.line(), error.column()));
            let detail = format!("cannot read body at line {line}, column {column}: {what}");
            return ProblemDetails::new(INVALID, detail).at(RequestPart::Body, pointer, what);
        }
        // The path ends at the object; the message names the member.
        let named = ["unknown field `", "missing field `", "duplicate field `"];
        let rest = named.iter().find_map(|start| message.strip_prefix(start));
        if let Some((name, _)) = rest.and_then(|rest| rest.split_once('`')) {
            let mut step = String::new();
            strict::name_step(&mut step, name);
            // For an unknown member, the path mostly includes it already.
            if !(message.starts_with(named[0]) && pointer.ends_with(&step)) {
                pointer.push_str(&step);
            }
        }
        json_problem(INVALID, &error, pointer, sent((error.line(), error.column())))
    })?;
    Ok(value)
}

fn json_problem(
    kind: &'static ProblemKind,
    error: &serde_json::Error,
    pointer: String,
    (line, column): (usize, usize),
) -> ProblemDetails {
    let message = error.to_string();
    let tail = format!(" at line {} column {}", error.line(), error.column());
    let what = message.strip_suffix(&tail).unwrap_or(&message);
    let what: String = what.chars().take(500).collect();
    let detail = format!("cannot read body at line {line}, column {column}: {what}");
    ProblemDetails::new(kind, detail).at(RequestPart::Body, pointer, what)
}

#[cfg(test)]
mod tests {
    use chancery_events::intent::NodeApply;

    use super::*;

    fn pointer(problem: &ProblemDetails) -> &str {
        &problem.errors()[0].pointer
    }

    #[test]
    fn what_is_no_strict_json_is_reported_with_its_location() {
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        let inside = format!("{}1{}", "[".repeat(64), "]".repeat(64));
        check(inside.as_bytes(), 64).expect("just as deep as allowed");
        for (text, at, what) in [
            ("", "", "empty"),
            (" \n", "", "empty"),
            ("{\"a\":1,\"b\":{\"c\":1,\"c\":2}}", "/b/c", "twice"),
            ("[1,{\"x/y\":tru}]", "/1/x~1y", "expected ident"),
            ("{} {}", "", "trailing characters"),
            ("{\"a\":", "/a", "EOF"),
            (&deep, &"/0".repeat(64), "nested"),
            ("1e999", "", "out of range"),
        ] {
            let problem = check(text.as_bytes(), 64).expect_err(text);
            assert_eq!((problem.kind, pointer(&problem)), (MALFORMED, at), "{text}");
            assert!(problem.detail.contains(what), "{}", problem.detail);
        }
        let problem = check(b"{\"a\":\"\xff\"}", 64).expect_err("no UTF-8");
        assert!(problem.detail.contains("byte 6"), "{}", problem.detail);
    }

    #[test]
    fn what_has_the_wrong_form_is_reported_with_its_location() {
        for (text, at, place) in [
            (r#"{"spec":{"domain":"d1","resources":{"cpu":"x"}}}"#, "/spec/resources/cpu", "column 45"),
            (r#"{"spec":{"domain":"d1","resources":{},"zones":1}}"#, "/spec/zones", "column 45"),
            (r#"{"spec":{"resources":{}}}"#, "/spec/domain", "column 24"),
            (r#"{"spec":{"domain":"D 1","resources":{}}}"#, "/spec/domain", "column 23"),
            ("\n {\n\"spec\":{\"domain\":1}}", "/spec/domain", "line 3, column 18"),
            (
                r#"{"spec":{"domain":"d1","resources":{},"storage":[{"class":"a","capacity":-1}]}}"#,
                "/spec/storage/0/capacity",
                "column 75",
            ),
            ("{}", "/spec", "column 2"),
        ] {
            let splice = SplicedJson::new(text, &[("name", "node-1")]).expect("an object");
            let problem = splice.read::<NodeApply>().expect_err(text);
            assert_eq!((problem.kind, pointer(&problem)), (INVALID, at), "{text}");
            assert!(problem.detail.contains(place), "{} in {text}", problem.detail);
        }
    }

    #[test]
    fn what_the_path_names_is_put_in_and_not_repeated() {
        let text = r#" {"spec":{"domain":"d1","resources":{}}}"#;
        let splice = SplicedJson::new(text, &[("name", "node-1")]).expect("an object");
        assert_eq!(splice.read::<NodeApply>().expect("a body").name.as_str(), "node-1");
        let twice = SplicedJson::new(r#"{"name":"node-2"}"#, &[("name", "node-1")]).expect("an object");
        assert_eq!(pointer(&twice.read::<NodeApply>().expect_err("two names")), "/name");
        assert!(SplicedJson::new("[]", &[]).is_err());
    }
}
