//! Disruption at its own path. It is part of the row of its node, and has no row of its own.

use axum::body::Body;
use axum::http::Response;
use chancery_projector::{RowKey, RowKind};
use serde_json::Value;

use super::FleetApi;
use super::middleware::{RoutedRequest, json};
use super::moments;
use super::problem::{NOT_FOUND, ProblemDetails, RequestPart};
use super::query::QueryParams;
use super::read::{at_moment, missing_at, row_at, settle, source_of};

/// Returns a disruption, from the row of its node.
pub(super) async fn get(
    app: &FleetApi,
    call: &RoutedRequest,
    mut params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    let [node, name] = ["node", "name"].map(|name| call.found.param(name).unwrap_or_default());
    let key = RowKey::parse(RowKind::Nodes, node)
        .map_err(|error| ProblemDetails::parameter(RequestPart::Path, "node", error.reason))?;
    let moment = moments::take(app, &mut params, "as_of")?;
    settle(app, &mut params, source_of(moment)).await?;
    params.end(&["as_of", "min_position", "consistency"])?;
    let (row, position, at) = row_at(app, &key, moment).await?;
    let Some(row) = row else {
        let path = call.parts.uri.path();
        let path = path.rsplit_once("/disruptions/").map_or(path, |(node, _)| node);
        return Err(missing_at(app, &key, path, position).await.position(position.get()));
    };
    let row: Value =
        serde_json::from_str(&row.body).map_err(|error| ProblemDetails::internal("read a row", &error))?;
    let found = row["disruptions"].as_array().into_iter().flatten().find(|one| one["name"] == name);
    let found = found.ok_or_else(|| {
        let detail = format!("there is no disruption {name:?} of {}", key.subject());
        ProblemDetails::new(NOT_FOUND, detail).position(position.get())
    })?;
    Ok(at_moment(json(found.to_string()), position, at.as_ref()))
}
