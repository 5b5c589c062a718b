//! Filters: what a list may be asked for, and which index leads there.

use std::fmt;
use std::str::FromStr;

use chancery_events::name::ReplicaName;

use crate::index::Index;
use crate::kind::{Row, RowKind};

/// What one filter asks of a row.
type Test<R> = Box<dyn Fn(&R) -> bool + Send + Sync>;

/// A filter that a kind knows.
pub struct Def<R> {
    pub(crate) name: &'static str,
    pub(crate) read: fn(&str) -> Result<Filter<R>, String>,
}

impl<R> fmt::Debug for Def<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Where the rows that a filter lets through stand together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Their keys begin so.
    Rows(Vec<u8>),
    /// Their index entries begin so.
    Entries(Vec<u8>),
    /// In an index by plan and replica, under the replica, whose plan its row tells.
    Replica(Index, ReplicaName),
}

/// A filter with its value.
pub(crate) struct Filter<R> {
    pub(crate) holds: Test<R>,
    pub(crate) way: Option<Way>,
}

impl<R> fmt::Debug for Filter<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filter by {:?}", self.way)
    }
}

impl<R: 'static> Filter<R> {
    /// By a value with a text form, for which there may be an index.
    pub(crate) fn led<T>(
        text: &str,
        holds: fn(&R, &T) -> bool,
        way: fn(T) -> Option<Way>,
    ) -> Result<Filter<R>, String>
    where
        T: FromStr<Err: fmt::Display> + Send + Sync + 'static,
    {
        let read = || text.parse::<T>().map_err(|error| error.to_string());
        let (value, way) = (read()?, way(read()?));
        Ok(Filter { holds: Box::new(move |row| holds(row, &value)), way })
    }

    /// By one of a set of words.
    pub(crate) fn word<T>(
        text: &str,
        all: &'static [T],
        of: fn(&R) -> T,
        way: fn(T) -> Option<Way>,
    ) -> Result<Filter<R>, String>
    where
        T: Copy + fmt::Display + PartialEq + Send + Sync,
    {
        let value = all.iter().copied().find(|word| word.to_string() == text).ok_or_else(|| {
            let words: Vec<_> = all.iter().map(ToString::to_string).collect();
            format!("write one of {}", words.join(", "))
        })?;
        Ok(Filter { holds: Box::new(move |row| of(row) == value), way: way(value) })
    }
}

/// A filter that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFilter {
    /// The kind does not know it.
    #[error("list {kind} by {name:?}: there is no such filter; known are {}", known.join(", "))]
    Unknown {
        /// The kind.
        kind: RowKind,
        /// What was asked for.
        name: String,
        /// What may be asked for.
        known: Vec<&'static str>,
    },
    /// Its value makes no sense.
    #[error("list {kind} by {name}: {reason}")]
    Value {
        /// The kind.
        kind: RowKind,
        /// The filter.
        name: &'static str,
        /// What is wrong with the value.
        reason: String,
    },
}

/// Reads filters as they stand in a query: all must hold.
pub(crate) fn read<R: Row>(given: &[(String, String)]) -> Result<Vec<Filter<R>>, BadFilter> {
    let kind = R::KIND;
    let mut filters = Vec::with_capacity(given.len());
    for (name, value) in given {
        let def = R::FILTERS.iter().find(|def| def.name == name).ok_or_else(|| BadFilter::Unknown {
            kind,
            name: name.chars().take(100).collect(),
            known: kind.filters(),
        })?;
        let filter = (def.read)(value).map_err(|reason| BadFilter::Value { kind, name: def.name, reason })?;
        filters.push(filter);
    }
    Ok(filters)
}

/// A filter by a value with a text form; with an index of names, or whatever leads to the rows of a value.
macro_rules! by_name {
    ($name:literal, $type:ty, $holds:expr) => {
        $crate::filter::by_name!($name, $type, $holds, |_| None)
    };
    ($name:literal, $type:ty, $holds:expr, $index:path) => {
        $crate::filter::by_name!($name, $type, $holds, |name| Some($crate::filter::Way::Entries(
            $index.of(name.as_str())
        )))
    };
    ($name:literal, $type:ty, $holds:expr, $way:expr) => {
        $crate::filter::Def {
            name: $name,
            read: |text| $crate::filter::Filter::<Self>::led::<$type>(text, $holds, $way),
        }
    };
}
pub(crate) use by_name;

/// A filter by one of a set of words, perhaps with what leads to the rows of a word.
macro_rules! by_word {
    ($name:literal, $all:expr, $of:expr) => {
        $crate::filter::by_word!($name, $all, $of, |_| None)
    };
    ($name:literal, $all:expr, $of:expr, $way:expr) => {
        $crate::filter::Def {
            name: $name,
            read: |text| $crate::filter::Filter::<Self>::word(text, $all, $of, $way),
        }
    };
}
pub(crate) use by_word;
