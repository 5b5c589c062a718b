//! Layout of stored rows: names and order of their fields, so that another build can read them.
//!
//! Rows are stored by position, without names. The store therefore has, under a key of its own, the layout of
//! each kind, derived from the row types of the build that wrote it ([`trace`]). A stored row and its layout
//! give the JSON that readers see, without its type. Invariant: this JSON is that of the row type.

mod trace;

use std::collections::BTreeMap;
use std::fmt;

use bincode::config::standard;
use chancery_events::time::Time;
use data_encoding::HEXLOWER;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess as _, Visitor,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::kind::{RowKind, with_row};
use crate::store::InvalidRow;

/// Length of a stored id, in bytes.
const ID: usize = 16;

/// Form of a stored value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RowLayout {
    /// Form that is not known yet, while it is derived.
    Unknown,
    /// Nothing: an enum's variant without a value.
    Unit,
    /// Truth value.
    Bool,
    /// Number of one byte.
    Byte,
    /// Number that is not negative.
    Unsigned,
    /// Number of at most 32 bits that may be negative.
    Signed,
    /// Time in microseconds: rows have no other numbers of 64 bits that may be negative.
    Time,
    /// Text in UTF-8.
    Text,
    /// Id of 16 bytes.
    Id,
    /// Optional value.
    Optional(Box<RowLayout>),
    /// List of values.
    List(Box<RowLayout>),
    /// Map, with the forms of keys and values.
    Map(Box<RowLayout>, Box<RowLayout>),
    /// Fields in their order.
    Fields(Vec<(String, RowLayout)>),
    /// Variants by number.
    Variants(Vec<(String, RowLayout)>),
}

/// Layouts of all kinds, by the numbers that precede their keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RowLayouts(pub(crate) BTreeMap<u8, KindLayout>);

/// Layout of the rows of a kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct KindLayout {
    /// Name of the kind in paths.
    pub(crate) kind: String,
    /// Form of a row.
    pub(crate) row: RowLayout,
}

impl RowLayouts {
    /// Derives the layouts of this build.
    pub(crate) fn of_this_build() -> RowLayouts {
        let of = |kind: &RowKind| {
            let row = with_row!(kind, R => trace::layout_of::<R>()).expect("row types can be stored");
            (*kind as u8, KindLayout { kind: kind.word().to_owned(), row })
        };
        RowLayouts(RowKind::ALL.iter().map(of).collect())
    }
}

impl RowLayout {
    /// Reads a stored row as readers see it.
    pub(crate) fn read(&self, key: &[u8], bytes: &[u8]) -> Result<Value, InvalidRow> {
        let kind = key.first().copied().unwrap_or_default();
        let read = bincode::serde::seed_decode_from_slice(self, bytes, standard());
        let whole = read.and_then(|(value, length)| {
            if length == bytes.len() {
                Ok(value)
            } else {
                Err(bincode::error::DecodeError::custom("bytes are left"))
            }
        });
        whole.map_err(|source| InvalidRow { kind, source })
    }
}

impl<'de> DeserializeSeed<'de> for &RowLayout {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self {
            RowLayout::Unknown => Err(D::Error::custom("unknown form of a value")),
            RowLayout::Unit => <()>::deserialize(from).map(|()| Value::Null),
            RowLayout::Bool => bool::deserialize(from).map(Value::from),
            RowLayout::Byte => u8::deserialize(from).map(Value::from),
            RowLayout::Unsigned => u64::deserialize(from).map(Value::from),
            RowLayout::Signed => i32::deserialize(from).map(Value::from),
            RowLayout::Time => {
                i64::deserialize(from).map(|micros| Time::from_micros(micros).to_string().into())
            }
            RowLayout::Text => String::deserialize(from).map(Value::from),
            RowLayout::Id => from.deserialize_bytes(IdVisitor),
            RowLayout::Optional(value) => from.deserialize_option(ValueVisitor(value)),
            RowLayout::List(value) => from.deserialize_seq(ValueVisitor(value)),
            RowLayout::Map(key, value) => from.deserialize_map(MapVisitor(key, value)),
            RowLayout::Fields(fields) => from.deserialize_tuple(fields.len(), FieldsVisitor(fields)),
            RowLayout::Variants(variants) => from.deserialize_enum("", &[], VariantsVisitor(variants)),
        }
    }
}

struct IdVisitor;

impl Visitor<'_> for IdVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an id of {ID} bytes")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
        if bytes.len() != ID {
            return Err(E::invalid_length(bytes.len(), &self));
        }
        let part = |range: std::ops::Range<usize>| HEXLOWER.encode(&bytes[range]);
        Ok([part(0..4), part(4..6), part(6..8), part(8..10), part(10..16)].join("-").into())
    }
}

/// Visitor of an optional value, and of a list.
struct ValueVisitor<'a>(&'a RowLayout);

impl<'de> Visitor<'de> for ValueVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an optional value or a list")
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        self.0.deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.0)? {
            list.push(item);
        }
        Ok(list.into())
    }
}

struct MapVisitor<'a>(&'a RowLayout, &'a RowLayout);

impl<'de> Visitor<'de> for MapVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, value)) = entries.next_entry_seed(self.0, self.1)? {
            let key = match key {
                Value::String(key) => key,
                other => other.to_string(),
            };
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

struct FieldsVisitor<'a>(&'a [(String, RowLayout)]);

impl<'de> Visitor<'de> for FieldsVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fields", self.0.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        for (name, layout) in self.0 {
            let value = values.next_element_seed(layout)?;
            map.insert(name.clone(), value.ok_or_else(|| A::Error::missing_field("field"))?);
        }
        Ok(map.into())
    }
}

struct VariantsVisitor<'a>(&'a [(String, RowLayout)]);

impl<'de> Visitor<'de> for VariantsVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {} variants", self.0.len())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Value, A::Error> {
        let (number, content) = data.variant::<u32>()?;
        let found = usize::try_from(number).ok().and_then(|number| self.0.get(number));
        let (name, layout) = found.ok_or_else(|| A::Error::custom(format!("unknown variant {number}")))?;
        Ok(match layout {
            RowLayout::Unit => content.unit_variant().map(|()| Value::from(name.as_str()))?,
            layout => Map::from_iter([(name.clone(), content.newtype_variant_seed(layout)?)]).into(),
        })
    }
}

#[cfg(test)]
mod tests;
