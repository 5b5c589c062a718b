//! Reads a document and collects all its errors, not only the first.
//!
//! Reading stops at an error. The document is then read again without the entry with the error, until no more
//! errors are found. An omitted entry is identified by its path of entry numbers. A block that lacks a field
//! because one of its entries was omitted is no error, and is omitted as well.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_saphyr::{Error, Options, with_deserializer_from_str_with_options};

/// Maximum number of errors that are reported for one document.
const MOST: usize = 20;

/// Numbers of entries, each in its block or list, from the root.
type EntryPath = Vec<usize>;

/// Reads a document, or returns its errors in the order of the passes that found them.
pub(super) fn read<T: DeserializeOwned>(text: &str, options: impl Fn() -> Options) -> Result<T, Vec<Error>> {
    let notes = RecoveryNotes::default();
    let mut errors = Vec::new();
    loop {
        let read = with_deserializer_from_str_with_options(text, options(), |from| {
            T::deserialize(RecoveringReader { inner: from, notes: &notes })
        });
        match read {
            Ok(value) if errors.is_empty() => return Ok(value),
            Ok(_) => return Err(errors),
            Err(error) => {
                let at = notes.begin_again();
                if !notes.lacks_part_of(&at) {
                    errors.push(error);
                }
                if errors.len() == MOST || at.is_empty() || !notes.leave_out(at) {
                    return Err(errors);
                }
            }
        }
    }
}

/// Current path, path of the last error, and omitted entries of a reader.
#[derive(Default)]
struct RecoveryNotes {
    path: RefCell<EntryPath>,
    stopped: RefCell<Option<EntryPath>>,
    left_out: RefCell<BTreeSet<EntryPath>>,
}

impl RecoveryNotes {
    /// Reads an entry. If that fails, records the path of the innermost entry that failed.
    fn entry<T, E>(&self, number: usize, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.path.borrow_mut().push(number);
        let done = read();
        if done.is_err() {
            self.stopped.borrow_mut().get_or_insert_with(|| self.path.borrow().clone());
        }
        self.path.borrow_mut().pop();
        done
    }

    fn is_left_out(&self, number: usize) -> bool {
        let mut path = self.path.borrow().clone();
        path.push(number);
        self.left_out.borrow().contains(&path)
    }

    /// Returns the path at which reading stopped, and resets it. The path of the root is empty.
    fn begin_again(&self) -> EntryPath {
        self.path.borrow_mut().clear();
        self.stopped.borrow_mut().take().unwrap_or_default()
    }

    fn lacks_part_of(&self, at: &EntryPath) -> bool {
        self.left_out.borrow().iter().any(|path| path.starts_with(at))
    }

    /// Omits the entry, and returns whether it was not omitted before.
    fn leave_out(&self, path: EntryPath) -> bool {
        self.left_out.borrow_mut().insert(path)
    }
}

/// Wrapper that records entries of blocks and lists. An enum is one entry as a whole.
struct RecoveringReader<'n, I> {
    inner: I,
    notes: &'n RecoveryNotes,
}

/// Entries of a block or list.
struct RecoveringEntries<'n, I> {
    inner: I,
    notes: &'n RecoveryNotes,
    next: usize,
}

macro_rules! deserialize {
    ($($name:ident($($arg:ident: $type:ty),*))*) => {$(
        fn $name<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, I::Error> {
            self.inner.$name($($arg,)* RecoveringReader { inner: visitor, notes: self.notes })
        }
    )*};
}

impl<'de, I: Deserializer<'de>> Deserializer<'de> for RecoveringReader<'_, I> {
    type Error = I::Error;

    deserialize! {
        deserialize_any() deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
        deserialize_f32() deserialize_f64() deserialize_char() deserialize_str() deserialize_string()
        deserialize_bytes() deserialize_byte_buf() deserialize_option() deserialize_unit() deserialize_seq()
        deserialize_map() deserialize_identifier() deserialize_ignored_any()
        deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($name:ident($type:ty))*) => {$(
        fn $name<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$name(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for RecoveringReader<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool(bool) visit_i8(i8) visit_i16(i16) visit_i32(i32) visit_i64(i64) visit_i128(i128) visit_u8(u8)
        visit_u16(u16) visit_u32(u32) visit_u64(u64) visit_u128(u128) visit_f32(f32) visit_f64(f64) visit_char(char)
        visit_str(&str) visit_borrowed_str(&'de str) visit_string(String) visit_bytes(&[u8])
        visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(RecoveringReader { inner: from, notes: self.notes })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(RecoveringReader { inner: from, notes: self.notes })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(RecoveringEntries { inner: items, notes: self.notes, next: 0 })
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(RecoveringEntries { inner: entries, notes: self.notes, next: 0 })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, choice: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(choice)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for RecoveringReader<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(RecoveringReader { inner: from, notes: self.notes })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for RecoveringEntries<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while self.notes.is_left_out(self.next) && self.inner.next_element::<IgnoredAny>()?.is_some() {
            self.next += 1;
        }
        let (number, notes) = (self.next, self.notes);
        self.next += 1;
        notes.entry(number, || self.inner.next_element_seed(RecoveringReader { inner: seed, notes }))
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for RecoveringEntries<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while self.notes.is_left_out(self.next) && self.inner.next_key::<IgnoredAny>()?.is_some() {
            self.inner.next_value::<IgnoredAny>()?;
            self.next += 1;
        }
        self.notes.entry(self.next, || self.inner.next_key_seed(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let (number, notes) = (self.next, self.notes);
        self.next += 1;
        notes.entry(number, || self.inner.next_value_seed(RecoveringReader { inner: seed, notes }))
    }
}
