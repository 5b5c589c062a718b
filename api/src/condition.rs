//! Identity that `If-Match` of a write names. The decider compares only versions, which start at 1 again for a new entity of the
//! same name. So the identity is compared before the intent is submitted.
//!
//! | row of the intent's subject | answer |
//! |---|---|
//! | none | that of the decider |
//! | with an identity of the tags | that of the decider |
//! | with another identity, and the client gave an id that the decider knows | that of the decider: the recorded verdict |
//! | with another identity, otherwise | 412; nothing is recorded |
//!
//! Decision 0053 has the window that remains.

use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::intent::IntentRequest;
use chancery_events::name::IntentId;
use chancery_projector::{JsonRow, ReadConsistency, RowKey};

use super::FleetApi;
use super::dry_run;
use super::entity_tag;
use super::headers::WriteCondition;
use super::problem::{PRECONDITION_FAILED, ProblemDetails};
use super::read::{not_read, reached};
use super::routes::RouteMatch;

/// Refuses an intent whose condition names another entity than the current one. `id` is the id of the intent if the client gave it,
/// so that the intent may be a repeat.
pub(super) async fn check(
    app: &Arc<FleetApi>,
    found: &RouteMatch,
    condition: Option<&WriteCondition>,
    request: &IntentRequest,
    id: Option<&IntentId>,
) -> Result<(), ProblemDetails> {
    let Some(condition) = condition.filter(|condition| !condition.identities.is_empty()) else {
        return Ok(());
    };
    let Some(key) = request.intent.subject().and_then(RowKey::of) else { return Ok(()) };
    // A new leader has decided nothing yet, and its rows may be behind its journal.
    let head = app.source.head().map(|head| head.position);
    let wanted = app.last_verdict.wanted(ReadConsistency::Verdicts, head);
    // With the time for the verdict, less than the limit of the request.
    reached(app, wanted, app.common.limits.request_timeout.mul_f32(0.08)).await?;
    let (row, position) = app.reader.get_json_at(&key).map_err(|error| not_read(key.kind(), error))?;
    let Some(problem) = refusal(condition, &key, row.as_ref(), position) else { return Ok(()) };
    if id.is_some() && dry_run::is_decided(app, found, request).await? { Ok(()) } else { Err(problem) }
}

/// Returns the problem of a condition that names another entity than the row.
pub(super) fn refusal(
    condition: &WriteCondition,
    key: &RowKey,
    row: Option<&JsonRow>,
    position: Position,
) -> Option<ProblemDetails> {
    let row = row.filter(|row| {
        !condition.identities.is_empty() && !condition.identities.contains(&entity_tag::identity(row))
    })?;
    let detail = format!("cannot write {}: the expected ETag is of another entity", key.subject());
    Some(ProblemDetails::new(PRECONDITION_FAILED, detail).version(row.version).position(position.get()))
}
