//! Doc comments have two words or more, and do not start with a pronoun or a question word.

use crate::source::{RuleViolation, SourceFile, SourceToken, TokenKind, tokens};

const STARTS: &[&str] = &["Which", "What", "Whose", "How", "Who", "Where", "Of", "On", "It", "Those", "So"];

/// Doc comments of Rust sources.
pub(crate) fn docs(files: &[SourceFile]) -> Vec<RuleViolation> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (line, text) in doc_comments(&tokens(&file.text)) {
            let words = text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
            let first = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            if words.count() < 2 {
                violations.push(file.violation(line, "docs", format!("fewer than two words: {text}")));
            } else if STARTS.iter().any(|start| start.eq_ignore_ascii_case(first)) {
                let start = text.lines().next().unwrap_or_default();
                violations.push(file.violation(line, "docs", format!("starts with {first}: {start}")));
            }
        }
    }
    violations
}

/// First line and text of each doc comment, also of `#[doc = "..."]`.
fn doc_comments(tokens: &[SourceToken<'_>]) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let before = |distance: usize| index.checked_sub(distance).map(|index| tokens[index]);
        if token.kind == TokenKind::Doc {
            let continues =
                before(1).is_some_and(|last| last.kind == TokenKind::Doc && last.line + 1 == token.line);
            match comments.last_mut() {
                Some((_, text)) if continues => {
                    *text = format!("{text}\n{}", token.text.trim()).trim().to_owned();
                }
                _ => comments.push((token.line, token.text.trim().to_owned())),
            }
        } else if token.kind == TokenKind::Text
            && before(1).is_some_and(|last| last.is("="))
            && before(2).is_some_and(|last| last.is("doc"))
        {
            comments.push((token.line, token.text.trim().to_owned()));
        }
    }
    comments
}
