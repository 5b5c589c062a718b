//! Reads a form from the tree of a document, and collects all its errors, not only the first.
//!
//! Reading stops at an error. The tree is then read again without the entry with the error, until no more errors are
//! found. A block that lacks a field because one of its entries was left out is no error, and is left out as well.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_saphyr::Location;

use super::suggest;
use super::tree::{BlockEntry, DocumentTree, LocatedNode, NodeValue};

/// Maximum number of errors that are reported for one document.
const MOST: usize = 20;

/// Reads a form, or returns its errors in the order of the passes that found them.
pub(super) fn read<T: DeserializeOwned>(tree: &DocumentTree<'_>) -> Result<T, Vec<FormError>> {
    let errors = RefCell::new(Vec::new());
    loop {
        let reader = NodeReader { tree, node: &tree.root, errors: &errors };
        match reader.entry(|reader| T::deserialize(reader)) {
            Ok(value) if errors.borrow().is_empty() => return Ok(value),
            Err(_) if !tree.root.value.is_left_out.get() && errors.borrow().len() < MOST => {}
            _ => return Err(errors.take()),
        }
    }
}

/// Error of a form.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(super) struct FormError {
    pub(super) what: String,
    /// Location; set by the innermost entry or key that contains the error.
    pub(super) at: Location,
    /// Whether the message gets the value, if it does not contain it.
    is_about_value: bool,
    /// Whether the error is collected, and the entry with the error left out.
    is_collected: bool,
}

impl FormError {
    fn new(what: String, is_about_value: bool) -> FormError {
        FormError { what, at: Location::UNKNOWN, is_about_value, is_collected: false }
    }

    fn expected(what: &str) -> FormError {
        FormError::new(format!("a {what} is expected here"), false)
    }

    fn locate(&mut self, at: Location) {
        if self.at == Location::UNKNOWN {
            self.at = at;
        }
    }
}

impl serde::de::Error for FormError {
    fn custom<T: fmt::Display>(message: T) -> FormError {
        FormError::new(message.to_string(), true)
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> FormError {
        FormError::new(format!("invalid field {field:?}{}", suggest::instead(field, known)), false)
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> FormError {
        FormError::new(format!("invalid value {variant:?}{}", suggest::instead(variant, known)), false)
    }

    fn missing_field(field: &'static str) -> FormError {
        FormError::new(format!("{field:?} is missing here"), false)
    }

    fn duplicate_field(field: &'static str) -> FormError {
        given_twice(field)
    }
}

fn given_twice(field: &str) -> FormError {
    FormError::new(format!("{field:?} is given twice"), false)
}

/// Deserializer of one node.
#[derive(Clone, Copy)]
struct NodeReader<'t> {
    tree: &'t DocumentTree<'t>,
    node: &'t LocatedNode,
    errors: &'t RefCell<Vec<FormError>>,
}

impl<'t> NodeReader<'t> {
    fn with(self, node: &'t LocatedNode) -> NodeReader<'t> {
        NodeReader { node, ..self }
    }

    /// Reads the node as an entry. The innermost entry with an error is left out of later passes.
    fn entry<T>(self, read: impl FnOnce(Self) -> Result<T, FormError>) -> Result<T, FormError> {
        let node = &self.node.value;
        read(self).map_err(|mut error| {
            if error.is_collected {
                node.is_incomplete.set(true);
                return error;
            }
            if !node.is_incomplete.get() {
                let what = std::mem::take(&mut error.what);
                let value = self.tree.short_text_of(self.node).filter(|value| !what.contains(value));
                let what = match value {
                    Some(value) if error.is_about_value => format!("{what}: {value:?}"),
                    _ => what,
                };
                error.locate(self.node.referenced);
                self.errors.borrow_mut().push(FormError { what, ..error });
            }
            node.is_left_out.set(true);
            FormError { is_collected: true, ..FormError::new(String::new(), false) }
        })
    }

    fn text(self) -> Result<&'t str, FormError> {
        match self.node.value.value {
            NodeValue::Null => {
                Err(FormError::new("missing value: give a value, or omit the field".into(), false))
            }
            _ => self.tree.text_of(self.node).ok_or_else(|| FormError::expected("single value")),
        }
    }

    fn block(self) -> Result<&'t [BlockEntry], FormError> {
        match &self.node.value.value {
            NodeValue::Block(entries) => Ok(entries),
            _ => Err(FormError::expected("block of 'name: value' lines")),
        }
    }

    fn list(self) -> Result<&'t [LocatedNode], FormError> {
        match &self.node.value.value {
            NodeValue::List(items) => Ok(items),
            _ => Err(FormError::expected("list")),
        }
    }

    fn entries(self, entries: &'t [BlockEntry]) -> BlockReader<'t> {
        BlockReader { reader: self, entries, value: None }
    }
}

macro_rules! whole_numbers {
    ($($name:ident $visit:ident $type:ty)*) => {$(
        fn $name<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
            let number = match self.node.value.value {
                NodeValue::Unsigned(number) => <$type>::try_from(number).ok(),
                NodeValue::Signed(number) => <$type>::try_from(number).ok(),
                NodeValue::Text(_) => whole_number(self.text()?).and_then(|text| text.parse().ok()),
                _ => self.text().map(|_| None)?,
            };
            let (least, most) = (<$type>::MIN, <$type>::MAX);
            let error = || FormError::new(format!("must be a whole number from {least} to {most}"), true);
            visitor.$visit(number.ok_or_else(error)?)
        }
    )*};
}

macro_rules! texts {
    ($($name:ident)*) => {$(
        // Every value is read as its text, so that `1.10` and `on` are read as the document has them.
        fn $name<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
            visitor.visit_borrowed_str(self.text()?)
        }
    )*};
}

impl<'t> Deserializer<'t> for NodeReader<'t> {
    type Error = FormError;

    fn deserialize_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
        match &self.node.value.value {
            NodeValue::Block(entries) => visitor.visit_map(self.entries(entries)),
            NodeValue::List(items) => visitor.visit_seq(ListReader { reader: self, items }),
            NodeValue::Text(text) => visitor.visit_borrowed_str(text),
            NodeValue::Bool(value) => visitor.visit_bool(*value),
            NodeValue::Unsigned(number) => visitor.visit_u64(*number),
            NodeValue::Signed(number) => visitor.visit_i64(*number),
            NodeValue::Float(number) => visitor.visit_f64(*number),
            NodeValue::Null => visitor.visit_unit(),
        }
    }

    whole_numbers! {
        deserialize_u8 visit_u8 u8
        deserialize_u16 visit_u16 u16
        deserialize_u32 visit_u32 u32
        deserialize_u64 visit_u64 u64
        deserialize_i8 visit_i8 i8
        deserialize_i16 visit_i16 i16
        deserialize_i32 visit_i32 i32
        deserialize_i64 visit_i64 i64
    }

    fn deserialize_f32<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
        let number = match self.node.value.value {
            NodeValue::Float(number) => Some(number),
            NodeValue::Unsigned(number) => Some(number as f64),
            NodeValue::Signed(number) => Some(number as f64),
            _ => self.text()?.parse().ok(),
        };
        visitor.visit_f64(number.ok_or_else(|| FormError::new("must be a number".into(), true))?)
    }

    fn deserialize_bool<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
        let value = match self.node.value.value {
            NodeValue::Bool(value) => Some(value),
            _ => self.text()?.trim().parse().ok(),
        };
        visitor.visit_bool(value.ok_or_else(|| FormError::new("must be true or false".into(), true))?)
    }

    texts! {
        deserialize_str deserialize_string deserialize_identifier deserialize_char deserialize_bytes
        deserialize_byte_buf
    }

    fn deserialize_option<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
        match self.node.value.value {
            NodeValue::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_unit()
    }

    fn deserialize_seq<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_seq(ListReader { reader: self, items: self.list()? })
    }

    fn deserialize_map<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_map(self.entries(self.block()?))
    }

    fn deserialize_tuple<V: Visitor<'t>>(self, _: usize, visitor: V) -> Result<V::Value, FormError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'t>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, FormError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_struct<V: Visitor<'t>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'t>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, FormError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'t>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormError> {
        visitor.visit_enum(self)
    }

    serde::forward_to_deserialize_any! { <V: Visitor<'t>> unit unit_struct }
}

/// Items of a list that are not left out.
struct ListReader<'t> {
    reader: NodeReader<'t>,
    items: &'t [LocatedNode],
}

impl<'t> SeqAccess<'t> for ListReader<'t> {
    type Error = FormError;

    fn next_element_seed<S: DeserializeSeed<'t>>(&mut self, seed: S) -> Result<Option<S::Value>, FormError> {
        while let Some((item, rest)) = self.items.split_first() {
            self.items = rest;
            if !item.value.is_left_out.get() {
                return self.reader.with(item).entry(|item| seed.deserialize(item)).map(Some);
            }
        }
        Ok(None)
    }
}

/// Entries of a block that are not left out.
struct BlockReader<'t> {
    reader: NodeReader<'t>,
    entries: &'t [BlockEntry],
    value: Option<&'t LocatedNode>,
}

impl<'t> MapAccess<'t> for BlockReader<'t> {
    type Error = FormError;

    fn next_key_seed<K: DeserializeSeed<'t>>(&mut self, seed: K) -> Result<Option<K::Value>, FormError> {
        while let Some((entry, rest)) = self.entries.split_first() {
            self.entries = rest;
            if !entry.node.value.is_left_out.get() {
                self.value = Some(&entry.node);
                return self.reader.with(&entry.node).entry(|reader| read_key(reader, entry, seed)).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'t>>(&mut self, seed: S) -> Result<S::Value, FormError> {
        let node = self.value.take().ok_or_else(|| FormError::expected("key"))?;
        self.reader.with(node).entry(|node| seed.deserialize(node))
    }
}

fn read_key<'t, K: DeserializeSeed<'t>>(
    reader: NodeReader<'t>,
    entry: &'t BlockEntry,
    seed: K,
) -> Result<K::Value, FormError> {
    let key = reader.tree.text_of(&entry.key);
    let read = match key {
        None => Err(FormError::expected("name, then ':' and a value")),
        Some(key) if entry.is_repeated => Err(given_twice(key)),
        Some(key) => seed.deserialize(BorrowedStrDeserializer::new(key)),
    };
    read.map_err(|mut error: FormError| {
        error.locate(entry.key.referenced);
        if let Some(key) = key.filter(|key| error.is_about_value && !error.what.contains(key)) {
            error.what = format!("{}: {key:?}", error.what);
        }
        error.is_about_value = false;
        error
    })
}

/// Returns a quoted whole number without its spaces; `None` for other texts, also with leading zeros.
fn whole_number(text: &str) -> Option<&str> {
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    (digits == "0" || digits.starts_with(|first| matches!(first, '1'..='9'))).then_some(text)
}

impl<'t> EnumAccess<'t> for NodeReader<'t> {
    type Error = FormError;
    type Variant = VariantReader<'t>;

    fn variant_seed<S: DeserializeSeed<'t>>(
        self,
        seed: S,
    ) -> Result<(S::Value, VariantReader<'t>), FormError> {
        let content = |content| VariantReader { reader: self, content };
        match &self.node.value.value {
            NodeValue::Block(entries) => {
                let [entry] = entries.as_slice() else {
                    return Err(FormError::expected("word or a block of one line"));
                };
                let variant = read_key(self, entry, seed)?;
                if entry.node.value.is_left_out.get() {
                    return Err(FormError::expected("value without errors"));
                }
                Ok((variant, content(Some(&entry.node))))
            }
            NodeValue::List(_) => Err(FormError::expected("word or a block of one line")),
            _ => {
                let word = BorrowedStrDeserializer::<FormError>::new(self.text()?);
                Ok((seed.deserialize(word)?, content(None)))
            }
        }
    }
}

/// Content of an enum value; `None` if the value is a word.
struct VariantReader<'t> {
    reader: NodeReader<'t>,
    content: Option<&'t LocatedNode>,
}

impl<'t> VariantReader<'t> {
    fn read<T>(self, read: impl FnOnce(NodeReader<'t>) -> Result<T, FormError>) -> Result<T, FormError> {
        let content = self.content.ok_or_else(|| FormError::expected("block of 'name: value' lines"))?;
        self.reader.with(content).entry(read)
    }
}

impl<'t> VariantAccess<'t> for VariantReader<'t> {
    type Error = FormError;

    fn unit_variant(self) -> Result<(), FormError> {
        match self.content.map(|content| &content.value.value) {
            None | Some(NodeValue::Null) => Ok(()),
            Some(_) => Err(FormError::expected("word")),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'t>>(self, seed: S) -> Result<S::Value, FormError> {
        self.read(|content| seed.deserialize(content))
    }

    fn tuple_variant<V: Visitor<'t>>(self, _: usize, visitor: V) -> Result<V::Value, FormError> {
        self.read(|content| content.deserialize_seq(visitor))
    }

    fn struct_variant<V: Visitor<'t>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormError> {
        self.read(|content| content.deserialize_map(visitor))
    }
}
