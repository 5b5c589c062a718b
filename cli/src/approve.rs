//! `approve` and `reject`: pending operations are shown first, and the hash of what was shown is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use chancery_events::intent::{ApprovedOperation, Intent, OperationApprove, OperationReject};
use chancery_events::spec::OperationKind;
use chancery_events::text::counted;
use chancery_projector::rows::{OperationRow, OperationStatus};
use serde_json::{Value, json};

use super::apply::ApplyReport;
use super::client::{ApiClient, CommandIo, RepeatAdvice};
use super::columns::{table, typed};
use super::error::CliError;
use super::flags::OperationArgs;
use super::get::{list, one};
use super::kind::{EntityKind, KindNaming as _};
use super::request;

use crate::note;

/// Maximum number of operations in an intent.
const AT_ONCE: usize = 200;

/// Decision about the chosen operations or requests.
#[derive(Clone, Copy)]
pub(super) enum ApprovalDecision<'a> {
    Approve,
    Reject { reason: &'a str },
}

impl ApprovalDecision<'_> {
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self {
            ApprovalDecision::Approve => ("approve", "approved"),
            ApprovalDecision::Reject { .. } => ("reject", "rejected"),
        }
    }

    fn intent(self, operations: &[OperationRow]) -> Intent {
        match self {
            ApprovalDecision::Approve => {
                let shown =
                    |row: &OperationRow| Some(ApprovedOperation { operation: row.id, hash: row.hash? });
                OperationApprove { operations: operations.iter().filter_map(shown).collect() }.into()
            }
            ApprovalDecision::Reject { reason } => {
                let operations = operations.iter().map(|row| row.id).collect();
                OperationReject { operations, reason: reason.into() }.into()
            }
        }
    }
}

pub(super) fn run(
    decision: ApprovalDecision<'_>,
    choose: &OperationArgs,
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let (verb, done) = decision.words();
    io.client.repeats(RepeatAdvice::Unchanged);
    let mut report = ApplyReport::of(io.client, io.out)?;
    let person = io.client.context.person;
    if choose.ids.is_empty() && !choose.takes_all() && !person {
        return Err(CliError::usage(format!(
            "cannot {verb} operations: none is named\nhint: give ids, or --all for all pending operations, with \
             --plan or --replica for some"
        )));
    }
    let mut items =
        if choose.ids.is_empty() { waiting(choose, io.client)? } else { named(verb, choose, io.client)? };
    if items.is_empty() {
        // A typo in a name must not read as nothing to do.
        for (kind, of) in of(choose)? {
            one(io.client, kind, of)?;
        }
        note!("no operation is pending approval");
        report.end(Ok(()), |_, _| String::new())?;
        return if of(choose)?.is_empty() { request::waiting(io.client) } else { Ok(()) };
    }
    if choose.ids.is_empty() && !choose.takes_all() {
        items = pick(verb, items)?;
    } else {
        note!("to {verb}:\n{}", table(EntityKind::Operation, &items, false)?.lines("  ").trim_end());
    }
    let rows = items.iter().map(typed::<OperationRow>).collect::<Result<Vec<_>, _>>()?;
    let sent = rows.chunks(AT_ONCE).try_for_each(|chunk| {
        let doing = format!("cannot {verb} {}", counted(chunk.len(), "operation"));
        let verdict = io.client.ask(&doing, &decision.intent(chunk))?;
        chunk.iter().try_for_each(|row| {
            let name = format!("operation/{}", row.id);
            let json = json!({ "subject": name, "outcome": done, "position": verdict.position });
            report.line(&name, format_args!("{done}: {} {}", row.kind, place(row)), json)
        })
    });
    report.end(sent, |_, _| String::new())?;
    if rows.len() > 1 {
        note!("{done} {}", counted(rows.len(), "operation"));
    }
    if choose.ids.is_empty() && of(choose)?.is_empty() {
        return request::waiting(io.client);
    }
    Ok(())
}

fn place(row: &OperationRow) -> String {
    match &row.node {
        Some(node) if row.kind == OperationKind::Relocate => format!("{} to {node}", row.replica),
        Some(node) => format!("{} on {node}", row.replica),
        None => row.replica.to_string(),
    }
}

/// Returns all pending operations, of the plan or replica if one is named.
fn waiting(choose: &OperationArgs, client: &ApiClient<'_>) -> Result<Vec<Value>, CliError> {
    let mut filters = vec![("state", "pending_approval".to_owned())];
    filters.extend(of(choose)?.into_iter().map(|(kind, of)| (kind.word(), of.to_owned())));
    Ok(list(client, EntityKind::Operation, &filters, u64::MAX)?.items)
}

/// Returns the plan or replica that the operations must belong to, if one is named.
fn of(choose: &OperationArgs) -> Result<Vec<(EntityKind, &str)>, CliError> {
    let of = [(EntityKind::Plan, &choose.plan), (EntityKind::Replica, &choose.replica)];
    let named = of.into_iter().filter_map(|(kind, of)| Some((kind, of.as_deref()?)));
    named.map(|(kind, of)| Ok((kind, kind.name_in(of)?))).collect()
}

/// Returns the named operations. An operation that is not pending is an error before the first request is
/// sent.
fn named(verb: &str, choose: &OperationArgs, client: &ApiClient<'_>) -> Result<Vec<Value>, CliError> {
    let ids: BTreeSet<_> =
        choose.ids.iter().map(|id| EntityKind::Operation.name_in(id)).collect::<Result<_, _>>()?;
    // An operation that is named twice, by its id and by the start of it, is one.
    let mut items = BTreeMap::new();
    for id in ids {
        let item = one(client, EntityKind::Operation, id)?;
        let row: OperationRow = typed(&item)?;
        if row.state != OperationStatus::PendingApproval {
            return Err(CliError::conflict(format!(
                "cannot {verb} operation/{id}: not pending approval, but {}; nothing was sent",
                row.state
            )));
        }
        items.insert(row.id, item);
    }
    Ok(items.into_values().collect())
}

/// Shows a numbered list, and reads the chosen numbers.
fn pick(verb: &str, items: Vec<Value>) -> Result<Vec<Value>, CliError> {
    let mut screen = std::io::stderr();
    let text = table(EntityKind::Operation, &items, false)?.lines("");
    for (number, line) in text.lines().enumerate() {
        let number = if number == 0 { String::new() } else { number.to_string() };
        writeln!(screen, "{number:>4}  {line}")?;
    }
    write!(screen, "operations to {verb}, as in 1 3-5 or all (default: none): ")?;
    screen.flush()?;
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| CliError::failure(format!("cannot read answer: {error}")))?;
    let chosen = numbers(answer.trim(), items.len()).map_err(CliError::usage)?;
    if chosen.is_empty() {
        return Err(CliError::failure("no operation chosen; nothing was sent"));
    }
    let kept = items.into_iter().enumerate().filter(|(index, _)| chosen.contains(&(index + 1)));
    Ok(kept.map(|(_, item)| item).collect())
}

/// Reads `1 3-5`, `1,3`, `all`, or `n` for none.
fn numbers(text: &str, most: usize) -> Result<BTreeSet<usize>, String> {
    if text.eq_ignore_ascii_case("all") {
        return Ok((1..=most).collect());
    }
    let mut chosen = BTreeSet::new();
    if ["n", "no", "none"].iter().any(|none| text.eq_ignore_ascii_case(none)) {
        return Ok(chosen);
    }
    for part in text.split([' ', ',']).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let read = |text: &str| text.parse::<usize>().ok().filter(|number| (1..=most).contains(number));
        let (Some(first), Some(last)) = (read(first), read(last)) else {
            return Err(format!("invalid number {part:?}: must be from 1 to {most}; nothing was sent"));
        };
        chosen.extend(first..=last);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_people_write_them() {
        let cases: [(&str, &[usize]); 7] = [
            ("1 3-5", &[1, 3, 4, 5]),
            ("2,1", &[1, 2]),
            ("all", &[1, 2, 3, 4, 5]),
            ("", &[]),
            ("n", &[]),
            ("No", &[]),
            ("3-2", &[]),
        ];
        for (text, wanted) in cases {
            assert_eq!(numbers(text, 5).expect(text).into_iter().collect::<Vec<_>>(), wanted, "{text}");
        }
        for bad in ["0", "6", "x", "1-", "-1", "1-9"] {
            assert!(numbers(bad, 5).is_err(), "{bad}");
        }
    }
}
