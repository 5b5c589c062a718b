//! Kinds of rows and their keys: the names in a path, the typed keys, and the bytes under which rows are
//! stored. They follow from the register of kinds ([`chancery_events::each_kind`]); the content of a row is
//! an `impl` of [`ReadModelRow`] in [`crate::build_row`].
#![allow(unused_parens, reason = "the keys of most kinds have one part, and are not tuples")]

use std::fmt;

use chancery_events::each_kind;
use chancery_events::id::Position;
use chancery_events::kind::{EntityKind, KeyPart, keys};
use chancery_events::name::PlanName;
use chancery_events::subject::Subject;
use chancery_machine::fleet::FleetState;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::build_row::{RowVisitor, command};
use crate::counts::CountSource;
use crate::filter::FilterDef;
use crate::index::IndexEntries;
use crate::reachability::{ReachabilityFields, ReachabilitySource};
use crate::rows;
use crate::why::FieldFacts;

macro_rules! row_kinds {
    ($($kind:ident $word:literal $plural:literal $aliases:tt $place:literal $about:literal {
        key $key:tt $(owner $owner:tt)? $(entity($table:ident: $entity:ident))?
        $(row($rows:ident = $number:literal: $row:ident))? $(ends $ends:tt)? $(manifest $manifest:tt)?
    })*) => {
        row_kinds! { @rows $($($about $kind $rows $number $row $key)?)* }
        row_kinds! { @entities $($($kind $table $key)?)* }
    };
    (@rows $($about:literal $kind:ident $rows:ident $number:literal $row:ident ($($field:ident: $type:ident),+))*) => {
        /// Kinds of rows. The number precedes the keys of the kind in the store.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum RowKind {
            $(#[doc = $about] $rows = $number),*
        }

        impl RowKind {
            /// All kinds, in order.
            pub const ALL: &[RowKind] = &[$(RowKind::$rows),*];

            /// Returns the kind of entity that the rows show.
            pub const fn kind(self) -> EntityKind {
                match self { $(RowKind::$rows => EntityKind::$kind),* }
            }
        }

        /// Runs an expression with the row type of a kind.
        macro_rules! with_row {
            ($of:expr, $as:ident => $run:expr) => {
                match $of {
                    $($crate::kind::RowKind::$rows => {
                        type $as = $crate::rows::$row;
                        $run
                    })*
                }
            };
        }
        pub(crate) use with_row;

        /// Key of a row. Its text follows the kind in a path: `nginx-7f3k`, `nginx/deployment-1`, `<uuid>/3`.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum RowKey {
            $(#[doc = $about] $kind($(keys::$type),+)),*
        }

        impl RowKey {
            /// Returns the kind.
            pub const fn kind(&self) -> RowKind {
                match self { $(RowKey::$kind(..) => RowKind::$rows),* }
            }

            /// Calls `run` with the parts of the key.
            fn with_parts<T>(&self, run: impl FnOnce(&[&dyn KeyPart]) -> T) -> T {
                match self { $(RowKey::$kind($($field),+) => run(&[$($field),+])),* }
            }

            /// Reads a key as [`RowKey::stored`] returns it; `None` if the bytes are no key.
            pub(crate) fn from_stored(bytes: &[u8]) -> Option<RowKey> {
                let (number, mut parts) = bytes.split_first()?;
                let key = match RowKind::ALL.iter().find(|kind| **kind as u8 == *number)? {
                    $(RowKind::$rows => RowKey::$kind($(<keys::$type as KeyPart>::take(&mut parts)?),+)),*
                };
                parts.is_empty().then_some(key)
            }

            fn read(kind: RowKind, text: &str) -> Result<RowKey, String> {
                let fields = kind.kind().entry().key;
                let mut parts = text.splitn(fields.len(), '/');
                if text.matches('/').count() + 1 < fields.len() {
                    return Err(format!("must have the form {}", fields.join("/")));
                }
                Ok(match kind {
                    $(RowKind::$rows => RowKey::$kind($({
                        let part = parts.next().unwrap_or_default();
                        part.parse::<keys::$type>().map_err(|error| error.to_string())?
                    }),+)),*
                })
            }
        }

        $(impl KeyedRow for rows::$row {
            const KIND: RowKind = RowKind::$rows;
            type Key = ($(keys::$type),+);

            fn row_key(key: &Self::Key) -> RowKey {
                let ($($field),+) = key;
                RowKey::$kind($($field.clone()),+)
            }
            fn typed_key(key: &RowKey) -> Option<Self::Key> {
                match key {
                    RowKey::$kind($($field),+) => Some(($($field.clone()),+)),
                    _ => None,
                }
            }
            fn key(&self) -> RowKey {
                RowKey::$kind($(self.$field.clone()),+)
            }
            fn version(&self) -> u64 {
                self.version
            }
            fn position(&self) -> Position {
                self.position
            }
        })*

    };
    (@entities $($kind:ident $table:ident ($($field:ident: $type:ident),+))*) => {
        impl RowKey {
            /// Returns the key of an entity's row; `None` for the fleet.
            pub fn of(subject: Subject) -> Option<RowKey> {
                match subject {
                    Subject::Fleet => None,
                    $(Subject::$kind($($field),+) => Some(RowKey::$kind($($field),+))),*
                }
            }

            /// Returns the subject of the history; for a command, that of the incarnation.
            pub fn subject(&self) -> Subject {
                match self {
                    RowKey::Command(incarnation, _) => Subject::Incarnation(*incarnation),
                    $(RowKey::$kind($($field),+) => Subject::$kind($($field.clone()),+)),*
                }
            }
        }

        /// Visits every row of the state, kind by kind.
        pub(crate) fn every<V: RowVisitor>(fleet: &FleetState, counts: &dyn CountSource, to: &mut V) -> Result<(), V::Error> {
            $(for entity in fleet.$table().sorted() {
                let key = RowKey::$kind($(entity.$field.clone()),+);
                with_row!(key.kind(), R => R::of_key(fleet, counts, &key).map_or(Ok(()), |row| to.row(&row)))?;
            })*
            let incarnations = fleet.incarnations().sorted().into_iter();
            incarnations.filter_map(|of| command(fleet, of.id)).try_for_each(|command| to.row(&command))
        }

        /// Visits the key of every row of a kind, in no order.
        pub(crate) fn each_key(fleet: &FleetState, kind: RowKind, visit: &mut dyn FnMut(RowKey)) {
            match kind.kind() {
                $(EntityKind::$kind => fleet.$table().unordered_keys().for_each(|($($field),+)| {
                    visit(RowKey::$kind($($field.clone()),+));
                }),)*
                // Commands have no table: they are those of incarnations.
                _ => {
                    let incarnations = fleet.incarnations().unordered();
                    incarnations.filter_map(|of| command(fleet, of.id)).for_each(|row| visit(row.key()));
                }
            }
        }
    };
}

each_kind!(row_kinds);

impl RowKind {
    /// Returns the name in a path.
    pub const fn word(self) -> &'static str {
        self.kind().plural()
    }

    /// Returns the kind with this name in a path.
    pub fn from_word(word: &str) -> Option<RowKind> {
        RowKind::ALL.iter().copied().find(|kind| kind.word() == word)
    }

    /// Returns the filters that a list of the kind takes.
    pub fn filters(self) -> Vec<&'static str> {
        with_row!(self, R => R::FILTERS.iter().map(|def| def.name).collect())
    }

    /// Returns the rule for the values of a filter, as in `must be one of yes, no`; `None` if the kind does not have the filter, or
    /// the rule is that of a name.
    pub fn filter_rule(self, name: &str) -> Option<String> {
        with_row!(self, R => {
            let filter = R::FILTERS.iter().find(|filter| filter.name == name)?;
            // No rule admits a control character.
            let error = (filter.read)("\u{1}").err()?;
            Some(error[error.find("must ")?..].to_owned())
        })
    }

    /// Returns the JSON Schema of a row.
    pub fn schema(self, types: &mut SchemaGenerator) -> Schema {
        with_row!(self, R => types.subschema_for::<R>())
    }
}

impl fmt::Display for RowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Text that is not a key of the kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid key {text:?} for {kind}: {reason}")]
pub struct InvalidKey {
    /// Kind of the row.
    pub kind: RowKind,
    /// Text that was given, at most 100 characters of it.
    pub text: String,
    /// Problem of the text.
    pub reason: String,
}

impl RowKey {
    /// Reads the key that follows the kind in a path.
    pub fn parse(kind: RowKind, text: &str) -> Result<RowKey, InvalidKey> {
        RowKey::read(kind, text).map_err(|reason| InvalidKey {
            kind,
            text: text.chars().take(100).collect(),
            reason,
        })
    }

    /// Returns the key in the store: the kind's number, then its parts. Names have no zero byte, which ends a
    /// name that is not the last part; ids have 16 bytes and sort in order of issue.
    pub(crate) fn stored(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(40);
        bytes.push(self.kind() as u8);
        self.with_parts(|parts| {
            for (index, part) in parts.iter().enumerate() {
                part.put(&mut bytes);
                if part.is_text() && index + 1 < parts.len() {
                    bytes.push(0);
                }
            }
        });
        bytes
    }
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_parts(|parts| {
            let (first, more) = parts.split_first().expect("every key has a part");
            write!(f, "{first}")?;
            more.iter().try_for_each(|part| write!(f, "/{part}"))
        })
    }
}

/// Identity of a row, which follows from the register.
pub trait KeyedRow: Sized {
    /// Kind of the row.
    const KIND: RowKind;

    /// Typed key of the row.
    type Key;

    /// Converts a typed key of this kind into a key of any kind.
    fn row_key(key: &Self::Key) -> RowKey;
    /// Converts a key of any kind into a typed key; `None` if the key is of another kind.
    fn typed_key(key: &RowKey) -> Option<Self::Key>;
    /// Returns the row's own key.
    fn key(&self) -> RowKey;
    /// Returns the version, for `ETag`.
    fn version(&self) -> u64;
    /// Returns the position of the fact that last changed the row.
    fn position(&self) -> Position;
}

/// Row of some kind: how it follows from the state, and how it is found.
pub trait ReadModelRow:
    KeyedRow + Serialize + DeserializeOwned + Clone + PartialEq + fmt::Debug + JsonSchema + Send + Sync + 'static
{
    /// Filters that a list of the kind takes.
    #[doc(hidden)]
    const FILTERS: &'static [FilterDef<Self>];

    /// Facts about the entity that set fields of the row. Other fields follow from other entities.
    #[doc(hidden)]
    const SETTERS: &'static [FieldFacts] = &[];

    /// Returns the row of an entity; `None` if the entity does not exist. Depends on the state only: the
    /// counts are derived from the state.
    fn of(fleet: &FleetState, counts: &dyn CountSource, key: &Self::Key) -> Option<Self>;

    /// Returns the row by a key of any kind.
    #[doc(hidden)]
    fn of_key(fleet: &FleetState, counts: &dyn CountSource, key: &RowKey) -> Option<Self> {
        Self::of(fleet, counts, &Self::typed_key(key)?)
    }

    /// Adds the index entries.
    #[doc(hidden)]
    fn index(&self, _to: &mut IndexEntries) {}

    /// Whether the row has the same index entries as another row of its key.
    #[doc(hidden)]
    fn is_indexed_as(&self, _other: &Self) -> bool {
        true
    }

    /// Returns the plan whose reasons belong in the message, if the row waits for a placement.
    #[doc(hidden)]
    fn waits_with(&mut self) -> Option<(&PlanName, &mut String)> {
        None
    }

    /// Returns the executor that the entity is reached through, if any, and the fields for the result.
    #[doc(hidden)]
    fn reached_through(&mut self) -> Option<(ReachabilitySource, ReachabilityFields<'_>)> {
        None
    }
}
