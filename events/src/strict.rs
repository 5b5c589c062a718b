//! Strict check of JSON from clients: invalid JSON is refused, and so are duplicate names, and depth that
//! could exhaust the stack. Errors have a location, a JSON Pointer (RFC 6901).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

/// Reason why bytes are not one valid JSON text.
#[derive(Debug, thiserror::Error)]
pub enum InvalidJson {
    /// The bytes are not UTF-8.
    #[error("invalid UTF-8 from byte {from}")]
    Utf8 {
        /// Index of the first invalid byte, from 0.
        from: usize,
    },
    /// The bytes are empty, or only white space.
    #[error("invalid JSON: empty")]
    Empty,
    /// The bytes are not JSON, a name occurs twice in one object, or the nesting is too deep.
    #[error("invalid JSON at {pointer:?}")]
    Json {
        /// Location of the error, as a JSON Pointer.
        pointer: String,
        /// Error at the location.
        source: serde_json::Error,
    },
}

/// Checks that bytes are one JSON text in UTF-8, without duplicate names in an object, at most `depth` levels
/// deep.
pub fn check(bytes: &[u8], depth: usize) -> Result<&str, InvalidJson> {
    let text = str::from_utf8(bytes).map_err(|error| InvalidJson::Utf8 { from: error.valid_up_to() })?;
    if text.trim_start_matches([' ', '\t', '\r', '\n']).is_empty() {
        return Err(InvalidJson::Empty);
    }
    let path = RefCell::new(Vec::new());
    let mut from = serde_json::Deserializer::from_str(text);
    let seed = JsonWalker { path: &path, left: depth, depth };
    seed.deserialize(&mut from).and_then(|()| from.end()).map_err(|source| {
        let mut pointer = String::new();
        path.borrow().iter().for_each(|step| step.write(&mut pointer));
        InvalidJson::Json { pointer, source }
    })?;
    Ok(text)
}

/// Step into a JSON text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JsonPathStep {
    /// Step to a member of an object.
    Name(String),
    /// Step to an element of an array.
    Index(usize),
}

impl JsonPathStep {
    /// Appends the step to a JSON Pointer.
    pub fn write(&self, pointer: &mut String) {
        match self {
            JsonPathStep::Name(name) => name_step(pointer, name),
            JsonPathStep::Index(index) => {
                pointer.push('/');
                pointer.push_str(&index.to_string());
            }
        }
    }
}

/// Appends a member to a JSON Pointer; a long name is cut to 100 characters.
pub fn name_step(pointer: &mut String, name: &str) {
    let short: String = name.chars().take(100).collect();
    pointer.push('/');
    pointer.push_str(&short.replace('~', "~0").replace('/', "~1"));
}

/// Visitor of all values of a text. On an error, the path is that of the value with the error.
#[derive(Clone, Copy)]
struct JsonWalker<'a> {
    path: &'a RefCell<Vec<JsonPathStep>>,
    left: usize,
    depth: usize,
}

impl JsonWalker<'_> {
    fn below<E: serde::de::Error>(self) -> Result<Self, E> {
        let left = self.left.checked_sub(1);
        let left = left.ok_or_else(|| E::custom(format!("nested more than {} levels deep", self.depth)))?;
        Ok(JsonWalker { left, ..self })
    }

    fn step(self, step: JsonPathStep) {
        self.path.borrow_mut().push(step);
    }

    fn back(self) {
        self.path.borrow_mut().pop();
    }
}

impl<'de> DeserializeSeed<'de> for JsonWalker<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonWalker<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let below = self.below()?;
        let mut index = 0;
        self.step(JsonPathStep::Index(index));
        while all.next_element_seed(below)?.is_some() {
            self.back();
            index += 1;
            self.step(JsonPathStep::Index(index));
        }
        self.back();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        let below = self.below()?;
        let mut seen = BTreeSet::new();
        while let Some(name) = all.next_key::<String>()? {
            self.step(JsonPathStep::Name(name.clone()));
            if !seen.insert(name) {
                return Err(A::Error::custom("the name occurs twice in one object"));
            }
            all.next_value_seed(below)?;
            self.back();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_strict_json_is_reported_with_its_location() {
        let (deep, inside) = ("[".repeat(65) + &"]".repeat(65), "[".repeat(64) + &"]".repeat(64));
        assert_eq!(check(inside.as_bytes(), 64).expect("just as deep as allowed"), inside);
        for (text, at, what) in [
            ("{\"a\":1,\"b\":{\"c\":1,\"c\":2}}", "/b/c", "twice"),
            ("[1,{\"x/y\":tru}]", "/1/x~1y", "expected ident"),
            ("{} {}", "", "trailing characters"),
            (&deep, &"/0".repeat(64), "nested"),
        ] {
            let error = check(text.as_bytes(), 64).expect_err(text);
            let InvalidJson::Json { pointer, source } = error else { panic!("{text}: {error}") };
            assert_eq!(pointer, at, "{text}");
            assert!(source.to_string().contains(what), "{text}: {source}");
        }
        assert!(matches!(check(b" \n", 64), Err(InvalidJson::Empty)));
        assert!(matches!(check(b"{\"a\":\"\xff\"}", 64), Err(InvalidJson::Utf8 { from: 6 })));
    }
}
