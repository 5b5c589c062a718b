//! Header `Accept`: whether the client takes the media type of a route. Problems are sent regardless of it.

use axum::http::{HeaderMap, header};

use super::problem::{NOT_ACCEPTABLE, ProblemDetails};
use super::routes::RouteTarget;

/// Refuses a request whose client does not accept the answer of the route. Nothing was done for it.
pub(super) fn check(headers: &HeaderMap, does: RouteTarget) -> Result<(), ProblemDetails> {
    let Some(media_type) = does.media_type().filter(|media_type| !accepts(headers, media_type)) else {
        return Ok(());
    };
    let detail = format!("cannot answer: the client must accept {media_type}");
    Err(ProblemDetails::new(NOT_ACCEPTABLE, detail))
}

/// Whether a media type is accepted.
fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    preference(headers, media_type).is_some()
}

/// Returns how much the client prefers a media type: the weight, and the precision of the most specific range that matches the
/// media type. `None` if no range matches, or the weight is 0.
pub(super) fn preference(headers: &HeaderMap, media_type: &str) -> Option<(f32, u8)> {
    let mut best: Option<(f32, u8)> = None;
    let values = headers.get_all(header::ACCEPT).iter().map(|value| value.to_str().unwrap_or_default());
    let mut ranges =
        values.flat_map(|text| text.split(',')).map(str::trim).filter(|range| !range.is_empty()).peekable();
    if ranges.peek().is_none() {
        return Some((1.0, 0));
    }
    for range in ranges {
        let mut parts = range.split(';').map(str::trim);
        let Some(precision) = precision(parts.next().unwrap_or_default(), media_type) else { continue };
        let weight = parts.find_map(|part| part.strip_prefix(['q', 'Q'])?.trim().strip_prefix('='));
        let weight = weight.map_or(Ok(1.0), |weight| weight.trim().parse::<f32>()).unwrap_or(0.0);
        if best.is_none_or(|(_, found)| precision > found) {
            best = Some((weight, precision));
        }
    }
    best.filter(|(weight, _)| *weight > 0.0)
}

/// Returns how precisely a range names the media type; `None` if the range does not match.
fn precision(range: &str, media_type: &str) -> Option<u8> {
    if range.eq_ignore_ascii_case(media_type) {
        return Some(2);
    }
    match range.split_once('/')? {
        ("*", "*") => Some(0),
        (group, "*") => media_type.split('/').next().filter(|of| of.eq_ignore_ascii_case(group)).map(|_| 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_range_with_its_weight_decides() {
        for (accept, is_accepted) in [
            ("", true),
            ("*/*", true),
            ("application/*", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/html, */*;q=0.8", true),
            ("text/html", false),
            ("application/json;q=0, */*", false),
            ("*/*;q=0, application/json", true),
            ("application/*;q=0.0", false),
            ("application", false),
        ] {
            let headers = [(header::ACCEPT, accept.parse().expect("a value"))].into_iter().collect();
            assert_eq!(accepts(&headers, "application/json"), is_accepted, "{accept}");
        }
        assert!(accepts(&HeaderMap::new(), "text/plain"));
    }
}
