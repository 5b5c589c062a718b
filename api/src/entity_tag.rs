//! Entity tags: `"VERSION-IDENTITY-CHECKSUM"`. `If-Match` compares the version and the identity. The identity distinguishes an
//! entity from a deleted one of the same name, whose versions were the same numbers. The checksum is of the whole row: a row
//! also shows what other entities determine, which changes without a new version.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use chancery_events::digest::Digest;
use chancery_projector::JsonRow;
use serde::Deserialize;

/// Strong tag that a client names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamedTag {
    /// Version of the entity.
    pub(super) version: u64,
    /// Identity of the entity; `None` if the client names only a version.
    pub(super) identity: Option<String>,
}

/// Part of a row from which the identity of its entity follows.
#[derive(Deserialize)]
struct RowCreation<'a> {
    created_at: &'a str,
}

/// Returns the tag of a row.
pub(super) fn of(row: &JsonRow) -> String {
    let checksum = Digest::of(&[row.body.as_bytes()]).prefix();
    format!("\"{}-{}-{checksum:012x}\"", row.version, identity(row))
}

/// Returns the identity of a row's entity: a digest of the time of its creation, which no change of the entity changes.
pub(super) fn identity(row: &JsonRow) -> String {
    let creation = serde_json::from_str::<RowCreation<'_>>(&row.body);
    let created_at = creation.map_or("", |creation| creation.created_at);
    format!("{:012x}", Digest::of(&[created_at.as_bytes()]).prefix())
}

/// Reads a tag, or a version in quotes. A tag without an identity is of an earlier build.
fn read(tag: &str) -> Option<NamedTag> {
    let text = tag.strip_prefix('"')?.strip_suffix('"')?;
    let (version, digests) =
        text.split_once('-').map_or((text, None), |(version, rest)| (version, Some(rest)));
    let digests: Vec<_> = digests.into_iter().flat_map(|digests| digests.split('-')).collect();
    let is_digest = |digest: &&str| !digest.is_empty() && digest.bytes().all(|b| b.is_ascii_hexdigit());
    let identity = match digests.as_slice() {
        [identity, _] => Some((*identity).to_owned()),
        [] | [_] => None,
        _ => return None,
    };
    let is_tag = version.bytes().all(|b| b.is_ascii_digit()) && digests.iter().all(is_digest);
    if is_tag { Some(NamedTag { version: version.parse().ok()?, identity }) } else { None }
}

/// Returns the tags of a list. A weak tag and one of another server are left out: `If-Match` never matches them. `None` if one is
/// no tag.
pub(super) fn tags(list: &str) -> Option<Vec<NamedTag>> {
    let (mut tags, mut rest) = (Vec::new(), list.trim());
    loop {
        let strong = rest.strip_prefix("W/").unwrap_or(rest);
        let inside = strong.strip_prefix('"')?;
        let end = inside.find('"')?;
        if !inside[..end].bytes().all(|byte| (b'!'..=b'~').contains(&byte)) {
            return None;
        }
        if strong.len() == rest.len() {
            tags.extend(read(&strong[..end + 2]));
        }
        let after = inside[end + 1..].trim_start();
        if after.is_empty() {
            return Some(tags);
        }
        rest = after.strip_prefix(',')?.trim_start();
    }
}

/// Whether the row is one that `If-Match` names, if the request has the header.
pub(super) fn is_expected(headers: &HeaderMap, row: &JsonRow) -> bool {
    let own = identity(row);
    let is_own = |tag: &NamedTag| {
        tag.version == row.version && tag.identity.as_ref().is_none_or(|identity| *identity == own)
    };
    let names = |list: &str| list == "*" || tags(list).is_some_and(|all| all.iter().any(is_own));
    let mut lists = headers.get_all(header::IF_MATCH).iter().peekable();
    lists.peek().is_none() || lists.any(|list| list.to_str().is_ok_and(|list| names(list.trim())))
}

/// Whether the client has the row with this tag, by `If-None-Match`.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let tags = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = tags.flat_map(|text| text.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// Adds the tag to an answer. The client may keep the row, and must ask whether it has changed before it uses it.
pub(super) fn named(mut response: Response<Body>, tag: &str) -> Response<Body> {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tags_has_the_versions_of_the_strong_ones() {
        for (list, found) in [
            ("\"3\"", Some(vec![3])),
            ("\"3-a-1\",  \"3-b\"", Some(vec![3, 3])),
            ("\"4\", W/\"5\", \"3\"", Some(vec![4, 3])),
            ("W/\"3\"", Some(vec![])),
            ("\"abc\", \"3-x\", \"3\"", Some(vec![3])),
            ("\"\"", Some(vec![])),
            ("\"a,b\", \"3\"", Some(vec![3])),
            ("\"3\" \"4\"", None),
            ("\"a b\"", None),
            ("\"a\"b\"", None),
            ("\"3\",", None),
            ("\"3\", *", None),
            ("W/3", None),
            ("", None),
        ] {
            let versions = tags(list).map(|tags| tags.iter().map(|tag| tag.version).collect::<Vec<_>>());
            assert_eq!(versions, found, "{list}");
        }
    }

    #[test]
    fn a_tag_has_the_version_and_the_identity_that_a_write_expects() {
        for (tag, found) in [
            ("\"3\"", Some((3, None))),
            ("\"3-00ff12\"", Some((3, None))),
            ("\"3-0a-00ff12\"", Some((3, Some("0a")))),
            ("\"3-0a-\"", None),
            ("\"3--0a\"", None),
            ("\"3-0a-0b-0c\"", None),
            ("\"3-\"", None),
            ("\"-3\"", None),
            ("\"3-x\"", None),
            ("3", None),
            ("W/\"3\"", None),
            ("\"3\", \"4\"", None),
            ("\"+3\"", None),
        ] {
            let read = read(tag);
            let parts = read.as_ref().map(|tag| (tag.version, tag.identity.as_deref()));
            assert_eq!(parts, found, "{tag}");
        }
    }
}
