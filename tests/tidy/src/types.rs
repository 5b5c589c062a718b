//! Names of types have two or more words unless the vocabulary keeps them, and in the product occur once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::source::{
    RuleViolation, SourceFile, SourceToken, TokenKind, code, group_end, product_code, product_files,
};

/// Names of one word: the terms that the vocabulary keeps or adds, standard terms, and names that it gives.
const ONE_WORD: &[&str] = &[
    "Intent",
    "Observation",
    "Fact",
    "Event",
    "Commit",
    "Record",
    "Position",
    "Term",
    "Lineage",
    "Snapshot",
    "Journal",
    "Segment",
    "Decider",
    "Projector",
    "Executor",
    "Orchestrator",
    "Session",
    "Lease",
    "Revision",
    "Tombstone",
    "Incarnation",
    "Replica",
    "Plan",
    "Deployment",
    "Operation",
    "Node",
    "Cluster",
    "Capability",
    "Payload",
    "Volume",
    "Policy",
    "Disruption",
    "Fleet",
    "Generation",
    "Approval",
    "Verdict",
    "Cause",
    "Actor",
    "Row",
    "Cursor",
    "Supervisor",
    "Channel",
    "Connection",
    "Reservation",
    "Orphan",
    "Quarantine",
    "Command",
    "Frame",
    "Subject",
    "Digest",
    "Resources",
    "Mutation",
    "Weekday",
    "Requester",
    "Placement",
    "Namespace",
    "Reachability",
    "Refusal",
    "Time",
];

/// Macros that declare types, and what follows the name of a type in a call.
const DECLARING: &[(&str, &str)] = &[
    ("bodies", "{"),
    ("facts", "="),
    ("ids", "="),
    ("intents", "="),
    ("names", ":"),
    ("rows", "{"),
    ("texts", "("),
    ("token", ","),
    ("words", "{"),
];

/// Names of structs, enums, traits and aliases, also those in calls of macros. Tests, benchmarks and patches
/// must follow the rule of two words, but may use a name twice.
pub(crate) fn types(files: &[SourceFile]) -> Vec<RuleViolation> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() || file.is_patch()) {
        let text =
            if file.is_patch() { Cow::Owned(patched(&file.text)) } else { Cow::Borrowed(file.text.as_str()) };
        for name in declared(&code(&text)) {
            if !ONE_WORD.contains(&name.text) && has_one_word(name.text) {
                violations.push(file.violation(name.line, "types", format!("{} has one word", name.text)));
            }
        }
    }
    let mut names: BTreeMap<&str, Vec<(&SourceFile, usize)>> = BTreeMap::new();
    for file in product_files(files) {
        for name in declared(&product_code(&file.text)) {
            names.entry(name.text).or_default().push((file, name.line));
        }
    }
    for (name, places) in names {
        for (index, (file, line)) in places.iter().enumerate() {
            let mut others = places.iter().enumerate().filter(|(other, _)| *other != index);
            if let Some((_, (other, line_of_other))) = others.next() {
                let text = format!("{name} is also in {}:{line_of_other}", other.path);
                violations.push(file.violation(*line, "types", text));
            }
        }
    }
    violations
}

/// Text that a patch leaves: its context and added lines, each at the line where the patch has it.
fn patched(patch: &str) -> String {
    let has_text = |line: &&str| line.starts_with([' ', '+']) && !line.starts_with("+++");
    let lines = patch.lines().map(|line| Some(line).filter(has_text).map_or("", |line| &line[1..]));
    lines.collect::<Vec<_>>().join("\n")
}

/// Names of types that `tokens` declare.
fn declared<'a>(tokens: &[SourceToken<'a>]) -> Vec<SourceToken<'a>> {
    let mut found = Vec::new();
    declared_in(tokens, false, &mut found);
    found
}

/// Appends the names of types that `tokens` declare. `is_associated` is for the body of a trait or implementation.
fn declared_in<'a>(tokens: &[SourceToken<'a>], is_associated: bool, found: &mut Vec<SourceToken<'a>>) {
    // Keyword of the item so far.
    let mut item = "";
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if token.is("{") || token.is("(") || token.is("[") {
            let end = group_end(tokens, at);
            let is_body = token.is("{") && matches!(item, "impl" | "trait");
            let inherits = is_associated && !token.is("{");
            // A patch may end within a group.
            declared_in(tokens.get(at + 1..end - 1).unwrap_or_default(), is_body || inherits, found);
            if token.is("{") {
                item = "";
            }
            at = end;
            continue;
        }
        if token.is(";") {
            item = "";
        } else if item.is_empty() && token.kind == TokenKind::Name && !before_is_dollar(tokens, at) {
            match token.text {
                "fn" | "impl" => item = token.text,
                "struct" | "enum" | "trait" | "type" => {
                    item = token.text;
                    let name = tokens.get(at + 1).filter(|name| name.kind == TokenKind::Name);
                    found.extend(name.filter(|_| item != "type" || !is_associated));
                }
                _ => at = call_end(tokens, at, found),
            }
        }
        at += 1;
    }
}

fn before_is_dollar(tokens: &[SourceToken<'_>], at: usize) -> bool {
    at.checked_sub(1).is_some_and(|before| tokens[before].is("$"))
}

/// Appends the names that a call of a declaring macro at `at` declares. Returns the index of the last token.
fn call_end<'a>(tokens: &[SourceToken<'a>], at: usize, found: &mut Vec<SourceToken<'a>>) -> usize {
    let Some((_, follows)) = DECLARING.iter().find(|(name, _)| tokens[at].is(name)) else { return at };
    if !tokens.get(at + 1).is_some_and(|bang| bang.is("!"))
        || !tokens.get(at + 2).is_some_and(|open| open.is("{"))
    {
        return at;
    }
    let end = group_end(tokens, at + 2);
    let call = &tokens[at + 3..end - 1];
    let (mut index, mut starts) = (0, true);
    while let Some(token) = call.get(index) {
        let is_open = token.is("{") || token.is("(") || token.is("[");
        if starts && token.kind == TokenKind::Name && !before_is_dollar(call, index) {
            let names = call[index..].iter().take_while(|name| name.kind == TokenKind::Name).count();
            if call.get(index + names).is_some_and(|next| next.is(follows)) {
                found.extend(&call[index..index + names]);
            }
            index += names;
            starts = false;
            continue;
        }
        // A name is at the start, behind a block, or behind a semicolon.
        starts = token.is("{") || token.is(";") || (starts && (is_open || token.is("#")));
        index = if is_open { group_end(call, index) } else { index + 1 };
    }
    end - 1
}

fn has_one_word(name: &str) -> bool {
    let characters: Vec<_> = name.chars().collect();
    !characters.windows(2).any(|pair| !pair[0].is_uppercase() && pair[1].is_uppercase())
        && !characters
            .windows(3)
            .any(|three| three[0].is_uppercase() && three[1].is_uppercase() && three[2].is_lowercase())
}
