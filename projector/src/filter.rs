//! Filters of lists, and the indexes for them.

use std::fmt;
use std::str::FromStr;

use chancery_events::id::{EntityId, IdKind};
use chancery_events::name::ReplicaName;
use data_encoding::HEXLOWER;

use crate::index::RowIndex;
use crate::kind::{ReadModelRow, RowKind};

/// Maximum number of values of a filter: each is compared with every row that is read.
const VALUES: usize = 100;

/// Condition of a filter on a row.
type RowPredicate<R> = Box<dyn Fn(&R) -> bool + Send + Sync>;

/// Filter that a kind has.
pub struct FilterDef<R> {
    pub(crate) name: &'static str,
    pub(crate) read: fn(&str) -> Result<RowFilter<R>, String>,
}

impl<R> fmt::Debug for FilterDef<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Access path to the rows that pass a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AccessPath {
    /// Prefix of row keys.
    Rows(Vec<u8>),
    /// Prefix of index entries.
    Entries(Vec<u8>),
    /// Index by plan and replica, and a replica, whose row has the plan.
    Replica(RowIndex, ReplicaName),
}

/// Filter with its value.
pub(crate) struct RowFilter<R> {
    pub(crate) holds: RowPredicate<R>,
    pub(crate) way: Option<AccessPath>,
}

impl<R> fmt::Debug for RowFilter<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filter by {:?}", self.way)
    }
}

impl<R: 'static> RowFilter<R> {
    /// Filters by a value with a text form, perhaps with an index.
    pub(crate) fn led<T>(
        text: &str,
        holds: fn(&R, &T) -> bool,
        way: fn(T) -> Option<AccessPath>,
    ) -> Result<RowFilter<R>, String>
    where
        T: FromStr<Err: fmt::Display> + Send + Sync + 'static,
    {
        let read = || text.parse::<T>().map_err(|error| error.to_string());
        let (value, way) = (read()?, way(read()?));
        Ok(RowFilter { holds: Box::new(move |row| holds(row, &value)), way })
    }

    /// Combines the filters of several values: one must hold. No access path has the rows of several values in the
    /// order of pages, so that such a filter reads the rows of another filter, or all.
    fn any(mut filters: Vec<RowFilter<R>>) -> RowFilter<R> {
        if filters.len() == 1
            && let Some(one) = filters.pop()
        {
            return one;
        }
        RowFilter { holds: Box::new(move |row| filters.iter().any(|filter| (filter.holds)(row))), way: None }
    }

    /// Filters by one of a set of values.
    pub(crate) fn word<T>(
        text: &str,
        all: &'static [T],
        of: fn(&R) -> T,
        way: fn(T) -> Option<AccessPath>,
    ) -> Result<RowFilter<R>, String>
    where
        T: Copy + fmt::Display + PartialEq + Send + Sync,
    {
        let value = all.iter().copied().find(|word| word.to_string() == text).ok_or_else(|| {
            let words: Vec<_> = all.iter().map(ToString::to_string).collect();
            format!("must be one of {}", words.join(", "))
        })?;
        Ok(RowFilter { holds: Box::new(move |row| of(row) == value), way: way(value) })
    }
}

/// First characters of an id, as in `00000000-0000-8755`.
pub(crate) struct IdPrefix(String);

impl IdPrefix {
    /// Whether the id starts with the characters.
    pub(crate) fn starts<K: IdKind>(&self, id: EntityId<K>) -> bool {
        id.to_string().starts_with(&self.0)
    }

    /// Returns the access path to the rows of the kind whose ids start with the whole bytes of the prefix.
    pub(crate) fn way(&self, kind: RowKind) -> AccessPath {
        let digits = self.0.replace('-', "");
        let bytes = HEXLOWER.decode(&digits.as_bytes()[..digits.len() & !1]).expect("hexadecimal digits");
        AccessPath::Rows([vec![kind as u8], bytes].concat())
    }
}

impl FromStr for IdPrefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<IdPrefix, &'static str> {
        let fits = |(at, c): (usize, char)| {
            if matches!(at, 8 | 13 | 18 | 23) { c == '-' } else { c.is_ascii_hexdigit() }
        };
        if (1..=36).contains(&text.len()) && text.chars().enumerate().all(fits) {
            Ok(IdPrefix(text.to_ascii_lowercase()))
        } else {
            Err("must be an id or its first characters, as in 00000000-0000-8755")
        }
    }
}

/// Filter that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFilter {
    /// Filter that the kind does not have.
    #[error("invalid filter {name:?} for {kind}: must be one of {}", known.join(", "))]
    Unknown {
        /// Kind of the list.
        kind: RowKind,
        /// Name of the filter.
        name: String,
        /// Filters that the kind has.
        known: Vec<&'static str>,
    },
    /// Filter with an invalid value.
    #[error("invalid filter {name} for {kind}: {reason}")]
    Value {
        /// Kind of the list.
        kind: RowKind,
        /// Name of the filter.
        name: &'static str,
        /// Problem of the value.
        reason: String,
    },
}

/// Reads the filters of a query: all must hold. A filter may have several values, separated by commas, of which one
/// must hold: `state=allocated,evicted`.
pub(crate) fn read<R: ReadModelRow>(given: &[(String, String)]) -> Result<Vec<RowFilter<R>>, InvalidFilter> {
    let kind = R::KIND;
    let mut filters = Vec::with_capacity(given.len());
    for (at, (name, value)) in given.iter().enumerate() {
        let def = R::FILTERS.iter().find(|def| def.name == name).ok_or_else(|| InvalidFilter::Unknown {
            kind,
            name: name.chars().take(100).collect(),
            known: kind.filters(),
        })?;
        let wrong = |reason| InvalidFilter::Value { kind, name: def.name, reason };
        if given[..at].iter().any(|(other, _)| other == name) {
            return Err(wrong(format!("must be given once, with commas between its values: {name}=A,B")));
        }
        if value.split(',').nth(VALUES).is_some() {
            return Err(wrong(format!("must have at most {VALUES} values")));
        }
        let values: Result<Vec<_>, _> = value.split(',').map(def.read).collect();
        filters.push(RowFilter::any(values.map_err(wrong)?));
    }
    Ok(filters)
}

/// Defines a filter by a value with a text form, perhaps with an index of names, or another access path.
macro_rules! by_name {
    ($name:literal, $type:ty, $holds:expr) => {
        $crate::filter::by_name!($name, $type, $holds, |_| None)
    };
    ($name:literal, $type:ty, $holds:expr, $index:path) => {
        $crate::filter::by_name!($name, $type, $holds, |name| Some($crate::filter::AccessPath::Entries(
            $index.of(name.as_str())
        )))
    };
    ($name:literal, $type:ty, $holds:expr, $way:expr) => {
        $crate::filter::FilterDef {
            name: $name,
            read: |text| $crate::filter::RowFilter::<Self>::led::<$type>(text, $holds, $way),
        }
    };
}
pub(crate) use by_name;

/// Defines the filter `id` of a kind of rows that have ids: by the first characters of the id.
macro_rules! by_id {
    ($kind:ident) => {
        $crate::filter::by_name!(
            "id",
            $crate::filter::IdPrefix,
            |row, prefix| prefix.starts(row.id),
            |prefix| Some(prefix.way($crate::kind::RowKind::$kind))
        )
    };
}
pub(crate) use by_id;

/// Defines a filter by one of a set of values, perhaps with an access path.
macro_rules! by_word {
    ($name:literal, $all:expr, $of:expr) => {
        $crate::filter::by_word!($name, $all, $of, |_| None)
    };
    ($name:literal, $all:expr, $of:expr, $way:expr) => {
        $crate::filter::FilterDef {
            name: $name,
            read: |text| $crate::filter::RowFilter::<Self>::word(text, $all, $of, $way),
        }
    };
}
pub(crate) use by_word;
