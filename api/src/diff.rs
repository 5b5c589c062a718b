//! Difference of two moments: a page of the entities whose rows differ.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use chancery_projector::moment::{NamedMoment, diff};
use chancery_projector::{ListQuery, MomentEnd, PageToken, RowKind};
use serde_json::json;

use super::FleetApi;
use super::middleware::RoutedRequest;
use super::moments;
use super::problem::{INVALID_PARAMETER, MomentBody, ProblemDetails, RequestPart};
use super::query::{QueryParams, unknown};
use super::read::{ReadFrom, at_moment, not_read, settle};
use super::reserved_answer::{ReservedAnswer, compressor_of};

/// Parameters of a difference, besides the filters that all of its kinds have.
const OWN: [&str; 7] = ["from", "to", "kinds", "limit", "page_token", "min_position", "consistency"];

/// Returns a page of the difference between the moments `from` and `to`; `to` is the last record unless given.
pub(super) async fn get(
    app: &FleetApi,
    call: &RoutedRequest,
    mut params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    let from = moments::take(app, &mut params, "from")?;
    let to = moments::take(app, &mut params, "to")?;
    let kinds = kinds(&mut params)?;
    let limit = params.number("limit")?.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let token = params.parsed::<PageToken>("page_token")?;
    settle(app, &mut params, ReadFrom::Journal).await?;
    let filters = params.rest();
    let is_known = |name: &str| kinds.iter().all(|kind| kind.filters().contains(&name));
    if let Some((name, _)) = filters.iter().find(|(name, _)| !is_known(name)) {
        let mut known = kinds.first().map_or_else(Vec::new, |kind| kind.filters());
        known.retain(|name| is_known(name));
        return Err(unknown(name, &[&known[..], &OWN[..]].concat()));
    }
    let from = from.ok_or_else(|| ProblemDetails::query("from", "is required"))?;
    let from = moments::find(app, from).await?;
    let to = moments::find(app, to.unwrap_or_else(|| last(app))).await?;
    if from.position > to.position {
        let what = format!("must not be after the later moment, which is position {}", to.position);
        return Err(ProblemDetails::query("from", what));
    }
    let old = moments::state(app, from).await?;
    let new = moments::state(app, to).await?;
    let (common, compressor) = (Arc::clone(&app.common), compressor_of(call));
    let compared = moments::in_read_turn(app, "compare moments", move || {
        let answer = ReservedAnswer::reserve(&common, compressor);
        let query = ListQuery { filters, limit, token, max_bytes: Some(answer.max_bytes()) };
        let page = diff(&old, &new, &kinds, &query);
        (answer, page.map_err(|error| not_read(kinds.first().copied().unwrap_or(RowKind::Nodes), error)))
    });
    let (mut answer, page) = compared.await?;
    let page = page?;
    let next = page.next.map_or(serde_json::Value::Null, |token| token.to_string().into());
    let [from, shown_to] = [from, to].map(|at| json!(MomentBody::from(MomentEnd::from(at))));
    let mut body = page.start;
    let _ = write!(body, r#","next_page_token":{next},"from":{from},"to":{shown_to}}}"#);
    Ok(at_moment(answer.with(app, body)?, to.position, Some(&to)))
}

/// Returns the moment after the last record of the journal.
pub(super) fn last(app: &FleetApi) -> NamedMoment {
    let position = app.source.head().map_or_else(Default::default, |head| head.position);
    NamedMoment::Position(chancery_events::lineage::NamedPosition { position, lineage: None })
}

/// Takes the kinds out of a query; all of them unless given.
fn kinds(params: &mut QueryParams) -> Result<Vec<RowKind>, ProblemDetails> {
    let Some(text) = params.take("kinds")? else { return Ok(RowKind::ALL.to_vec()) };
    let read = |word: &str| {
        RowKind::from_word(word.trim()).ok_or_else(|| {
            let known: Vec<_> = RowKind::ALL.iter().map(|kind| kind.word()).collect();
            let what = format!("must be kinds separated by commas, of {}", known.join(", "));
            ProblemDetails::new(INVALID_PARAMETER, format!("invalid query parameter kinds: {what}")).at(
                RequestPart::Query,
                "/kinds",
                what,
            )
        })
    };
    text.split(',').map(read).collect()
}
