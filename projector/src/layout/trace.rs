//! Derives the layout of a row type: the type is deserialized from invented values, and what it asks for is noted.
//!
//! A type is traced until every variant of every enum in it was visited, one variant of an enum each time. A type
//! with a rule, as a name or an id, refuses some invented values: the last one is then replaced by the next
//! candidate, and the type is traced again.

use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer as _,
    MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{ID, RowLayout};

/// Texts of which every text type of a row accepts one.
const TEXTS: [&str; 6] = [
    "a",
    "a-0000",
    "node/a",
    "0123456789abcdef",
    "0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
];
/// Number of kinds that an id can have.
const KINDS: usize = 16;

/// Returns an id of a kind, of which every id type of a row accepts one.
fn id(kind: usize) -> [u8; ID] {
    let mut bytes = [0; ID];
    (bytes[6], bytes[7], bytes[8]) = (0x80, kind as u8, 0x80);
    bytes
}

/// Returns the layout of a row type.
pub(super) fn layout_of<R: DeserializeOwned>() -> Result<RowLayout, Error> {
    let mut layout = RowLayout::Unknown;
    while !layout.is_known() {
        layout = traced::<R>(&layout)?;
    }
    Ok(layout)
}

/// Returns the layout with what one more pass adds.
fn traced<R: DeserializeOwned>(known: &RowLayout) -> Result<RowLayout, Error> {
    let mut choices = InventedValues::default();
    loop {
        let mut layout = known.clone();
        choices.next = 0;
        match R::deserialize(ValueTracer { layout: &mut layout, values: &mut choices }) {
            Ok(_) => return Ok(layout),
            Err(error) => choices.replace_last(error)?,
        }
    }
}

/// Candidates that were chosen, in the order in which the type asks for values.
#[derive(Default)]
struct InventedValues {
    chosen: Vec<usize>,
    next: usize,
}

impl InventedValues {
    /// Returns the number of the candidate for the next value.
    fn choose(&mut self) -> usize {
        if self.next == self.chosen.len() {
            self.chosen.push(0);
        }
        self.next += 1;
        self.chosen[self.next - 1]
    }

    /// Replaces the last value that was returned, which the type did not accept.
    fn replace_last(&mut self, error: Error) -> Result<(), Error> {
        self.chosen.truncate(self.next);
        match self.chosen.last_mut() {
            Some(last) if *last + 1 < TEXTS.len().max(KINDS) => *last += 1,
            _ => return Err(error),
        }
        Ok(())
    }
}

impl RowLayout {
    /// Whether nothing of the form is unknown.
    fn is_known(&self) -> bool {
        match self {
            RowLayout::Unknown => false,
            RowLayout::Unit
            | RowLayout::Bool
            | RowLayout::Byte
            | RowLayout::Unsigned
            | RowLayout::Signed
            | RowLayout::Time
            | RowLayout::Text
            | RowLayout::Id => true,
            RowLayout::Optional(value) | RowLayout::List(value) => value.is_known(),
            RowLayout::Map(key, value) => key.is_known() && value.is_known(),
            RowLayout::Fields(parts) | RowLayout::Variants(parts) => {
                parts.iter().all(|(_, part)| part.is_known())
            }
        }
    }

    /// Returns the form. An unknown one becomes `new`.
    fn or(&mut self, new: impl FnOnce() -> RowLayout) -> &mut RowLayout {
        if *self == RowLayout::Unknown {
            *self = new();
        }
        self
    }

    /// Returns the parts of a form that has parts. An unknown form becomes `new`.
    fn parts(&mut self, new: impl FnOnce() -> RowLayout) -> Result<&mut [(String, RowLayout)], Error> {
        match self.or(new) {
            RowLayout::Fields(parts) | RowLayout::Variants(parts) => Ok(parts),
            _ => Err(Error::custom("a type has two forms")),
        }
    }
}

/// Returns unknown parts with these names.
fn unknown(names: &[&str]) -> Vec<(String, RowLayout)> {
    names.iter().map(|name| ((*name).to_owned(), RowLayout::Unknown)).collect()
}

/// Deserializer that invents the value of a form and notes what is asked for.
struct ValueTracer<'a> {
    layout: &'a mut RowLayout,
    values: &'a mut InventedValues,
}

impl ValueTracer<'_> {
    fn text(&mut self) -> &'static str {
        *self.layout = RowLayout::Text;
        TEXTS[self.values.choose().min(TEXTS.len() - 1)]
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $form:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            *self.layout = RowLayout::$form;
            visitor.$visit(Default::default())
        }
    )*};
}

impl<'de> Deserializer<'de> for ValueTracer<'_> {
    type Error = Error;

    numbers! {
        deserialize_bool visit_bool Bool;
        deserialize_u8 visit_u8 Byte;
        deserialize_u16 visit_u16 Unsigned;
        deserialize_u32 visit_u32 Unsigned;
        deserialize_u64 visit_u64 Unsigned;
        deserialize_i16 visit_i16 Signed;
        deserialize_i32 visit_i32 Signed;
        deserialize_i64 visit_i64 Time;
    }

    forward_to_deserialize_any! {
        i8 i128 u128 f32 f64 char byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        Err(Error::invalid_type(Unexpected::Other("value that rows do not have"), &visitor))
    }

    fn deserialize_str<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text())
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.layout = RowLayout::Id;
        visitor.visit_bytes(&id(self.values.choose()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let RowLayout::Optional(value) = self.layout.or(|| RowLayout::Optional(Box::new(RowLayout::Unknown)))
        else {
            return Err(Error::custom("a type has two forms"));
        };
        visitor.visit_some(ValueTracer { layout: value, values: self.values })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let RowLayout::List(value) = self.layout.or(|| RowLayout::List(Box::new(RowLayout::Unknown))) else {
            return Err(Error::custom("a type has two forms"));
        };
        visitor.visit_seq(ItemTracer { layouts: std::iter::once(&mut **value), values: self.values })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let new = || RowLayout::Map(Box::new(RowLayout::Unknown), Box::new(RowLayout::Unknown));
        let RowLayout::Map(key, value) = self.layout.or(new) else {
            return Err(Error::custom("a type has two forms"));
        };
        visitor.visit_map(OneEntry { key: Some(key), value, values: self.values })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let parts = self.layout.parts(|| RowLayout::Fields(unknown(fields)))?;
        let layouts = parts.iter_mut().map(|(_, layout)| layout);
        visitor.visit_seq(ItemTracer { layouts, values: self.values })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let parts = self.layout.parts(|| RowLayout::Variants(unknown(variants)))?;
        let number = parts.iter().position(|(_, part)| !part.is_known()).unwrap_or_default();
        let content = ValueTracer { layout: &mut parts[number].1, values: self.values };
        visitor.visit_enum(VariantTracer { number, content })
    }

    /// As of the codec of the store.
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Map with one entry.
struct OneEntry<'a> {
    key: Option<&'a mut RowLayout>,
    value: &'a mut RowLayout,
    values: &'a mut InventedValues,
}

impl<'de> MapAccess<'de> for OneEntry<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let key = self.key.take();
        key.map(|layout| seed.deserialize(ValueTracer { layout, values: self.values })).transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(ValueTracer { layout: self.value, values: self.values })
    }
}

/// One item of a list, or the fields of a struct in their order.
struct ItemTracer<'a, I> {
    layouts: I,
    values: &'a mut InventedValues,
}

impl<'de, 'a, I: Iterator<Item = &'a mut RowLayout>> SeqAccess<'de> for ItemTracer<'_, I> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let layout = self.layouts.next();
        layout.map(|layout| seed.deserialize(ValueTracer { layout, values: self.values })).transpose()
    }
}

/// One variant of an enum.
struct VariantTracer<'a> {
    number: usize,
    content: ValueTracer<'a>,
}

impl<'de, 'a> EnumAccess<'de> for VariantTracer<'a> {
    type Error = Error;
    type Variant = ValueTracer<'a>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, ValueTracer<'a>), Error> {
        let number = seed.deserialize((self.number as u64).into_deserializer())?;
        Ok((number, self.content))
    }
}

impl<'de> VariantAccess<'de> for ValueTracer<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        *self.layout = RowLayout::Unit;
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("rows have no tuples"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_struct("", fields, visitor)
    }
}
