//! Pages of a list: the query, the result, and the token of the next page.

use std::fmt;
use std::str::FromStr;

use chancery_events::id::Position;
use chancery_events::record::RecordHash;
use data_encoding::BASE64URL_NOPAD;
use serde::Serialize;

use crate::filter::InvalidFilter;
use crate::kind::RowKind;
use crate::store::StoreError;

/// Default number of rows on a page.
pub const LIMIT_DEFAULT: usize = 100;
/// Maximum number of rows on a page.
pub const LIMIT_MAX: usize = 1000;
/// Maximum length of a token.
const TOKEN_MAX: usize = 1024;

/// Query of a list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ListQuery {
    /// Filters by name and value, as in a request. All must hold; a name may occur twice.
    pub filters: Vec<(String, String)>,
    /// Number of rows: 1 to [`LIMIT_MAX`] (default: [`LIMIT_DEFAULT`]).
    pub limit: Option<usize>,
    /// Token of the page before, to continue after it.
    pub token: Option<PageToken>,
    /// Maximum bytes of JSON on a page, except for its first row (default: no limit).
    pub max_bytes: Option<usize>,
}

impl ListQuery {
    /// Returns a query for all rows of a kind, a page at a time.
    pub fn all() -> ListQuery {
        ListQuery::default()
    }

    /// Adds a filter that must hold too.
    #[must_use]
    pub fn by(mut self, name: &str, value: impl fmt::Display) -> ListQuery {
        self.filters.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets the number of rows.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> ListQuery {
        self.limit = Some(limit);
        self
    }

    /// Continues after a page.
    #[must_use]
    pub fn after(mut self, token: PageToken) -> ListQuery {
        self.token = Some(token);
        self
    }

    /// Returns a digest of the query, so that a token is used only for its own list, at its own moment.
    pub(crate) fn digest(&self, kind: RowKind, moment: Option<RecordHash>) -> [u8; 8] {
        let mut filters: Vec<_> = self.filters.iter().collect();
        filters.sort();
        let mut text = serde_json::to_vec(&(kind.word(), filters)).expect("pairs of strings are JSON");
        if let Some(moment) = moment {
            text.extend_from_slice(moment.bytes());
        }
        shortened(&text)
    }

    /// Returns a digest of the query of a difference, so that a token is used only for the same difference.
    pub(crate) fn digest_of_diff(&self, kinds: &[RowKind], moments: [RecordHash; 2]) -> [u8; 8] {
        let mut text = Vec::new();
        for kind in kinds {
            text.extend_from_slice(&self.digest(*kind, None));
        }
        for moment in moments {
            text.extend_from_slice(moment.bytes());
        }
        shortened(&text)
    }
}

/// Returns the first bytes of the hash of a text.
fn shortened(text: &[u8]) -> [u8; 8] {
    let mut digest = [0; 8];
    digest.copy_from_slice(&RecordHash::of(text).bytes()[..8]);
    digest
}

/// Page of rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowPage<T> {
    /// Rows in a stable order: that of their keys, or that of the index for the filters.
    pub items: Vec<T>,
    /// Token of the next page; `None` on the last page. A page before the last may have fewer rows than
    /// requested, or none: the search for rare rows is spread over pages.
    pub next: Option<PageToken>,
    /// Position up to which every event is in the rows.
    pub position: Position,
}

/// Bytes of the other members of a page and of its end; only a long token needs more.
const OTHERS: usize = 300;

/// Start of a JSON object: the member `items`, without the end of the object. Further members are added without another copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JsonItems {
    text: Vec<u8>,
    pub(crate) count: usize,
}

impl JsonItems {
    const START: &[u8] = br#"{"items":["#;

    /// Adds an item, unless the items would then have more than `max` bytes. The first item is always taken. Returns whether it was.
    pub(crate) fn add(&mut self, item: &impl Serialize, max: usize) -> bool {
        let before = self.text.len();
        if self.count > 0 {
            self.text.push(b',');
        }
        serde_json::to_writer(&mut self.text, item).expect("rows can be encoded as JSON");
        let is_taken = self.count == 0 || self.text.len() - JsonItems::START.len() <= max;
        if is_taken {
            self.count += 1;
        } else {
            self.text.truncate(before);
        }
        is_taken
    }

    /// Returns the text, as in `{"items":[{"name":"web"}]`, with memory for [`OTHERS`] further bytes. Answers reserve memory for
    /// the length of their text, and a text that grew row by row may have memory for twice that.
    pub(crate) fn end(self) -> String {
        let mut text = String::with_capacity(self.text.len() + OTHERS);
        text.push_str(std::str::from_utf8(&self.text).expect("JSON is UTF-8"));
        text.push(']');
        text
    }
}

impl Default for JsonItems {
    fn default() -> JsonItems {
        JsonItems { text: JsonItems::START.to_vec(), count: 0 }
    }
}

/// Page of rows, as JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JsonPage {
    /// Start of a JSON object with the rows, without the end of the object: `{"items":[…]`.
    pub start: String,
    /// Number of rows.
    pub count: usize,
    /// Token of the next page, as in [`RowPage`].
    pub next: Option<PageToken>,
    /// Position up to which every event is in the rows.
    pub position: Position,
}

/// Row as JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JsonRow {
    /// JSON object.
    pub body: String,
    /// Version of the row, for `ETag`.
    pub version: u64,
    /// Position of the fact that last changed the row.
    pub position: Position,
}

/// Opaque token of the next page, only for the same list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageToken {
    pub(crate) digest: [u8; 8],
    /// Access path of the page: the next page uses the same path.
    pub(crate) way: u8,
    /// Last key, without the prefix of the access path.
    pub(crate) last: Vec<u8>,
}

/// Text that is not a page token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid page token: must be one that a page returned, unchanged")]
pub struct InvalidPageToken;

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.digest.to_vec();
        bytes.push(self.way);
        bytes.extend_from_slice(&self.last);
        f.write_str(&BASE64URL_NOPAD.encode(&bytes))
    }
}

impl FromStr for PageToken {
    type Err = InvalidPageToken;
    fn from_str(text: &str) -> Result<PageToken, InvalidPageToken> {
        if text.len() > TOKEN_MAX {
            return Err(InvalidPageToken);
        }
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| InvalidPageToken)?;
        let (digest, rest) = bytes.split_first_chunk().ok_or(InvalidPageToken)?;
        let (way, last) = rest.split_first().ok_or(InvalidPageToken)?;
        Ok(PageToken { digest: *digest, way: *way, last: last.to_vec() })
    }
}

/// Reason why a list or a row cannot be returned.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// Invalid filter: change the query.
    #[error(transparent)]
    Filter(#[from] InvalidFilter),
    /// Token of another list: start again, or use the filters and the moment that it came from.
    #[error(
        "invalid page token: it is of another list than this one of {kind}, of other filters, or of another moment"
    )]
    OtherToken {
        /// Kind of the list.
        kind: RowKind,
    },
    /// Invalid limit.
    #[error("invalid limit {limit} for {kind}: must be 1 to {LIMIT_MAX}")]
    Limit {
        /// Kind of the list.
        kind: RowKind,
        /// Requested limit.
        limit: usize,
    },
    /// Failure of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}
