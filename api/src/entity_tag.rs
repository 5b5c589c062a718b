//! Entity tags: `"VERSION-CHECKSUM"`. The version is that of the entity, which `If-Match` compares. The checksum is
//! of the whole row: a row also shows what other entities determine, which changes without a new version.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use chancery_events::digest::Digest;
use chancery_projector::JsonRow;

/// Returns the tag of a row.
pub(super) fn of(row: &JsonRow) -> String {
    format!("\"{}-{:012x}\"", row.version, Digest::of(&[row.body.as_bytes()]).prefix())
}

/// Returns the version in a tag, or in a version in quotes.
pub(super) fn version(tag: &str) -> Option<u64> {
    let text = tag.strip_prefix('"')?.strip_suffix('"')?;
    let (version, checksum) = text.split_once('-').unwrap_or((text, "0"));
    let is_tag =
        version.bytes().all(|b| b.is_ascii_digit()) && checksum.bytes().all(|b| b.is_ascii_hexdigit());
    if is_tag && !checksum.is_empty() { version.parse().ok() } else { None }
}

/// Returns the versions in a list of tags. A weak tag and one of another server have none: `If-Match` never matches them. `None` if
/// one is no tag.
pub(super) fn versions(list: &str) -> Option<BTreeSet<u64>> {
    let (mut versions, mut rest) = (BTreeSet::new(), list.trim());
    loop {
        let strong = rest.strip_prefix("W/").unwrap_or(rest);
        let inside = strong.strip_prefix('"')?;
        let end = inside.find('"')?;
        if !inside[..end].bytes().all(|byte| (b'!'..=b'~').contains(&byte)) {
            return None;
        }
        if strong.len() == rest.len() {
            versions.extend(version(&strong[..end + 2]));
        }
        let after = inside[end + 1..].trim_start();
        if after.is_empty() {
            return Some(versions);
        }
        rest = after.strip_prefix(',')?.trim_start();
    }
}

/// Whether the row at this version is one that `If-Match` names, if the request has the header.
pub(super) fn is_expected(headers: &HeaderMap, current: u64) -> bool {
    let names = |list: &str| list == "*" || versions(list).is_some_and(|all| all.contains(&current));
    let mut lists = headers.get_all(header::IF_MATCH).iter().peekable();
    lists.peek().is_none() || lists.any(|list| list.to_str().is_ok_and(|list| names(list.trim())))
}

/// Whether the client has the row with this tag, by `If-None-Match`.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let tags = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = tags.flat_map(|text| text.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// Returns the answer to a client that has the row.
pub(super) fn not_modified() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
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
            ("\"3-a\",  \"3-b\"", Some(vec![3])),
            ("\"4\", W/\"5\", \"3\"", Some(vec![3, 4])),
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
            assert_eq!(versions(list).map(Vec::from_iter), found, "{list}");
        }
    }

    #[test]
    fn a_tag_has_the_version_that_a_write_expects() {
        for (tag, found) in [
            ("\"3\"", Some(3)),
            ("\"3-00ff12\"", Some(3)),
            ("\"3-\"", None),
            ("\"-3\"", None),
            ("\"3-x\"", None),
            ("3", None),
            ("W/\"3\"", None),
            ("\"3\", \"4\"", None),
            ("\"+3\"", None),
        ] {
            assert_eq!(version(tag), found, "{tag}");
        }
    }
}
