//! Banned phrases of prose, and what replaces them.
//!
//! `tidy: allow(PHRASE)` on the same line or the line before permits a phrase as it occurs there.
//!
//! By review, because a phrase does not show the meaning: `those` and `one` without a noun, `hold` and `place` of
//! capacity, `run` as a noun, `turn` of a queue, `word` of an enum; `gone` except in `gone for ever`.

use std::collections::BTreeMap;

use crate::source::{RuleViolation, SourceFile, TextPassage, passages};

/// Phrase, words behind it with which it is permitted, and its replacement. `|` separates forms of a word, `*` is any
/// word, and a full stop is any punctuation or the end.
type PhraseRow = (&'static str, &'static [&'static str], &'static str);

const THAN: &[&str] = &["than"];
const NOUN_STARTS: &[&str] =
    &["a", "all", "an", "any", "each", "every", "it", "its", "one", "that", "the", "them", "this", "those"];

const PHRASES: &[PhraseRow] = &[
    ("is|are|was|were|be|been|being told", &[], "is notified, receives"),
    ("hear|hears|heard of", &[], "receives"),
    ("says|tells", &[], "reports, returns"),
    ("befall|befalls|befell|befallen", &[], "happens to"),
    ("come|comes|came of", &[], "results in"),
    ("become|becomes|became of", &[], "happens to"),
    ("give|gives|gave|given|giving way", &[], "is replaced by"),
    ("take|takes|took|taken|taking the place of", &[], "replaces"),
    ("is|are|was|were|be so.", &[], "is set"),
    ("make|makes|made * so.", &[], "creates or updates"),
    ("make|makes|made * * so.", &[], "creates or updates"),
    ("is|are|was|were no more", THAN, "is deleted"),
    ("goes", &[], "is deleted; the verb of the action"),
    ("forget|forgets|forgot|forgotten|forgetting", &[], "delete, purge"),
    ("let|lets|letting go of", &[], "release"),
    ("give|gives|gave|given|giving back", &[], "release"),
    ("give|gives|gave|given|giving * back", &[], "release"),
    ("give|gives|gave|given|giving * * back", &[], "release"),
    ("that which", &[], "the noun"),
    ("so many", &[], "maximum"),
    ("whoever|whomever", &[], "caller, client, operator"),
    ("somebody|nobody", &[], "caller, client, operator; no ..."),
    ("in vain", &[], "fails"),
    ("come|comes|came|coming to nothing", &[], "fails"),
    ("break|breaks|broke|broken|breaking off", &[], "fails"),
    ("by itself|themselves", &[], "automatically"),
    ("begin|begins|began|begun", &[], "start, started"),
    ("is|are|was|were|be over.", &[], "ended"),
    ("is|are|was|were|be over and|before|but|once|when", &[], "ended"),
    ("go|goes|going|went|gone on", &[], "continue"),
    ("bring|brings|brought|bringing up", &[], "start"),
    ("bring|brings|brought|bringing * up", &[], "start"),
    ("bring|brings|brought|bringing * * up", &[], "start"),
    ("come|comes|came|coming up", &[], "become ready"),
    ("is|are|was|were|be up.", &[], "is running"),
    ("is|are|was|were|be up again|and|before|but|once|when", &[], "is running"),
    ("stand|stands|stood", &[], "is stored, is located"),
    ("at once", &[], "immediately, concurrently"),
    ("for ever", &[], "permanently"),
    ("anew", &[], "again"),
    ("in the making", &[], "draft, pending"),
    ("on its|their|the way", &[], "in flight"),
    ("is|are|was|were to", NOUN_STARTS, "will, must"),
    ("may not", &[], "must not"),
    ("mend|mends|mended|mending", &[], "fix"),
    ("slip|slips|slipped|slipping", &[], "typo"),
    ("mistake|mistakes of ours", &[], "internal error"),
    ("look|looks|looked|looking", &["up"], "check, monitor"),
    ("folder|folders", &[], "directory"),
    ("a|each|every|its|that|the|this room", &[], "module"),
    ("rooms", &[], "module"),
    ("letter|letters", &["or"], "inbox message"),
    ("keeper|keepers", &[], "supervisor"),
    ("overtake|overtakes|overtook|overtaken|overtaking", &[], "fenced"),
    ("noise", &[], "invalid record"),
    ("beside", &[], "alongside"),
];

struct PhrasePattern {
    words: Vec<Vec<&'static str>>,
    is_last: bool,
    unless: &'static [&'static str],
    instead: &'static str,
}

/// Patterns by their first word.
fn patterns() -> BTreeMap<&'static str, Vec<PhrasePattern>> {
    let mut patterns: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (phrase, unless, instead) in PHRASES {
        let words: Vec<Vec<_>> =
            phrase.trim_end_matches('.').split(' ').map(|word| word.split('|').collect()).collect();
        for first in words[0].clone() {
            let (words, is_last) = (words.clone(), phrase.ends_with('.'));
            patterns.entry(first).or_default().push(PhrasePattern { words, is_last, unless, instead });
        }
    }
    patterns
}

/// Banned phrases in comments, string literals, Markdown, and descriptions of schemas.
pub(crate) fn banned(files: &[SourceFile]) -> Vec<RuleViolation> {
    let patterns = patterns();
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| !file.has_tables()) {
        let lines: Vec<_> = file.text.lines().collect();
        for passage in passages(file) {
            for (line, phrase, instead) in phrases(&passage, &patterns) {
                let permit = format!("tidy: allow({phrase})");
                let near = &lines[line.saturating_sub(2).min(lines.len())..line.min(lines.len())];
                if !near.iter().any(|line| line.contains(&permit)) {
                    violations.push(file.violation(line, "banned", format!("{phrase}: write {instead}")));
                }
            }
        }
    }
    violations
}

/// Word of a passage.
struct PassageWord {
    line: usize,
    text: String,
    /// Whether only space separates the word from the one before it.
    follows: bool,
    /// Whether punctuation or the end follows.
    is_last: bool,
}

/// Line, phrase and replacement of each banned phrase.
fn phrases(
    passage: &TextPassage,
    patterns: &BTreeMap<&str, Vec<PhrasePattern>>,
) -> Vec<(usize, String, &'static str)> {
    let words = words(passage);
    let mut found = Vec::new();
    for (start, word) in words.iter().enumerate() {
        for pattern in patterns.get(&*word.text).into_iter().flatten() {
            let Some(taken) = words.get(start..start + pattern.words.len()) else { continue };
            let is_found = taken.iter().zip(&pattern.words).enumerate().all(|(index, (word, forms))| {
                (index == 0 || word.follows) && (forms[0] == "*" || forms.contains(&&*word.text))
            });
            let is_last = taken.last().is_some_and(|word| word.is_last);
            let next = words.get(start + taken.len()).filter(|next| next.follows);
            let is_permitted = next.is_some_and(|next| pattern.unless.contains(&&*next.text));
            if is_found && (is_last || !pattern.is_last) && !is_permitted {
                let phrase: Vec<_> = taken.iter().map(|word| &*word.text).collect();
                found.push((word.line, phrase.join(" "), pattern.instead));
            }
        }
    }
    found
}

/// Words in lower case; a hyphen or an underscore joins two to one word. Placeholders of formats are empty words.
fn words(passage: &TextPassage) -> Vec<PassageWord> {
    let text = &passage.text;
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let (mut words, mut at, mut line) = (Vec::new(), 0, passage.line);
    while let Some(start) = text[at..].find(is_part).map(|start| at + start) {
        let end = text[start..].find(|c| !is_part(c)).map_or(text.len(), |length| start + length);
        line += text[at..start].matches('\n').count();
        words.push(PassageWord {
            line,
            text: if text[..start].ends_with('{') { String::new() } else { text[start..end].to_lowercase() },
            follows: text[at..start].trim().is_empty(),
            is_last: text[end..].trim_start().is_empty()
                || text[end..].starts_with(['.', ',', ';', ':', ')']),
        });
        at = end;
    }
    words
}
