//! Parts of messages: counts with their nouns.

use std::fmt::Display;

/// Returns a count with its noun, given in the singular, as in `1 replica` or `2 replicas`.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    if count == N::from(1) {
        return format!("{count} {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{count} {stem}ies"),
        _ => format!("{count} {noun}s"),
    }
}

/// Stores and describes a type in its text form, by its `Display` and `FromStr`.
macro_rules! string_form {
    ($name:ident, $schema:tt) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}
pub(crate) use string_form;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_has_the_number_of_its_count() {
        assert_eq!(counted(1_u32, "replica"), "1 replica");
        assert_eq!(counted(0_usize, "replica"), "0 replicas");
        assert_eq!(counted(3_i32, "copy"), "3 copies");
        assert_eq!(counted(2_u64, "day"), "2 days");
    }
}
