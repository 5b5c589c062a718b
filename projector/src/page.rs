//! Pages of a list: what is asked for, what comes back, and the token that leads to the next one.

use std::fmt;
use std::str::FromStr;

use chancery_events::id::Position;
use chancery_events::record::Hash;
use data_encoding::BASE64URL_NOPAD;

use crate::filter::BadFilter;
use crate::kind::RowKind;
use crate::store::StoreError;

/// Rows on a page, if nothing is said.
pub const LIMIT_DEFAULT: usize = 100;
/// Rows on a page, at most.
pub const LIMIT_MAX: usize = 1000;
/// The longest token that is looked at.
const TOKEN_MAX: usize = 1024;

/// What is asked of a list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Query {
    /// Filters by name and value, as they stand in a request. All must hold; a name may stand there twice.
    pub filters: Vec<(String, String)>,
    /// Rows wanted: 1 to [`LIMIT_MAX`], [`LIMIT_DEFAULT`] if not said.
    pub limit: Option<usize>,
    /// Where to go on: the token of the page before.
    pub token: Option<PageToken>,
    /// Bytes of JSON on a page, at most, except for its first row; no limit if not said.
    pub max_bytes: Option<usize>,
}

impl Query {
    /// Asks for all of a kind, a page at a time.
    pub fn all() -> Query {
        Query::default()
    }

    /// Asks for those alone for which the filter holds too.
    #[must_use]
    pub fn by(mut self, name: &str, value: impl fmt::Display) -> Query {
        self.filters.push((name.to_owned(), value.to_string()));
        self
    }

    /// Asks for so many.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Query {
        self.limit = Some(limit);
        self
    }

    /// Asks for what comes after a page.
    #[must_use]
    pub fn after(mut self, token: PageToken) -> Query {
        self.token = Some(token);
        self
    }

    /// Tells apart what is asked for, so that a token is used for the list alone that it came from.
    pub(crate) fn digest(&self, kind: RowKind) -> [u8; 8] {
        let mut filters: Vec<_> = self.filters.iter().collect();
        filters.sort();
        let text = serde_json::to_vec(&(kind.word(), filters)).expect("pairs of strings are JSON");
        let mut digest = [0; 8];
        digest.copy_from_slice(&Hash::of(&text).bytes()[..8]);
        digest
    }
}

/// A page of rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T> {
    /// The rows, in a stable order: that of their keys, or that of the index that the filters led to.
    pub items: Vec<T>,
    /// Where to go on; `None` on the last page. A page may hold fewer rows than were asked for, or none, and still
    /// not be the last: looking for rare rows is spread over pages.
    pub next: Option<PageToken>,
    /// Everything up to this position is in the rows.
    pub position: Position,
}

/// A page of rows, as JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JsonPage {
    /// A JSON array of the rows.
    pub items: String,
    /// How many they are.
    pub count: usize,
    /// Where to go on, as in [`Page`].
    pub next: Option<PageToken>,
    /// Everything up to this position is in the rows.
    pub position: Position,
}

/// A row, as JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JsonRow {
    /// A JSON object.
    pub body: String,
    /// The row's version, for `ETag`.
    pub version: u64,
    /// The position of the fact that last changed it.
    pub position: Position,
}

/// Leads to the next page. Opaque, and good for the same list alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageToken {
    pub(crate) digest: [u8; 8],
    /// Which of the ways to the rows was taken: the next page takes the same.
    pub(crate) way: u8,
    /// What stands behind the beginning that all entries of the way share.
    pub(crate) last: Vec<u8>,
}

/// Text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read the page token: use one that a page came with, unchanged")]
pub struct BadToken;

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.digest.to_vec();
        bytes.push(self.way);
        bytes.extend_from_slice(&self.last);
        f.write_str(&BASE64URL_NOPAD.encode(&bytes))
    }
}

impl FromStr for PageToken {
    type Err = BadToken;
    fn from_str(text: &str) -> Result<PageToken, BadToken> {
        if text.len() > TOKEN_MAX {
            return Err(BadToken);
        }
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| BadToken)?;
        let (digest, rest) = bytes.split_first_chunk().ok_or(BadToken)?;
        let (way, last) = rest.split_first().ok_or(BadToken)?;
        Ok(PageToken { digest: *digest, way: *way, last: last.to_vec() })
    }
}

/// A list or a row that cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// A filter makes no sense: ask otherwise.
    #[error(transparent)]
    Filter(#[from] BadFilter),
    /// The token is of another list: begin anew, or ask with the filters that it came from.
    #[error("list {kind}: the page token is of a list with other filters")]
    OtherToken {
        /// The kind.
        kind: RowKind,
    },
    /// The limit makes no sense.
    #[error("list {kind}: ask for 1 to {LIMIT_MAX} at a time, not {limit}")]
    Limit {
        /// The kind.
        kind: RowKind,
        /// What was asked for.
        limit: usize,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
