//! Sources, their tokens, and the passages of prose in them.

use std::fmt;
use std::ops::Range;

/// File of the workspace: its path from the root, and its text.
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    pub(crate) fn new(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    pub(crate) fn is_markdown(&self) -> bool {
        self.has_extension("md")
    }

    pub(crate) fn is_patch(&self) -> bool {
        self.has_extension("patch")
    }

    /// Whether the file is a schema or the OpenAPI description.
    pub(crate) fn is_schema(&self) -> bool {
        self.path.starts_with("schemas/events/") || self.path == "schemas/openapi.json"
    }

    /// Whether the file belongs to tests or benchmarks.
    pub(crate) fn is_test(&self) -> bool {
        let parts = self.path.split('/');
        self.path.starts_with("bench/")
            || self.path.starts_with("fuzz/")
            || parts.into_iter().any(|part| matches!(part, "tests" | "tests.rs"))
    }

    /// Whether the file contains banned phrases and retired names as data.
    pub(crate) fn has_tables(&self) -> bool {
        let name = self.path.strip_prefix("tests/tidy/src/");
        name.is_some_and(|name| matches!(name, "banned.rs" | "examples.rs" | "wire.rs"))
    }

    pub(crate) fn violation(&self, line: usize, rule: &'static str, text: String) -> RuleViolation {
        RuleViolation { path: self.path.clone(), line, rule, text }
    }

    fn has_extension(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, end)| end == extension)
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleViolation {
    path: String,
    line: usize,
    pub(crate) rule: &'static str,
    text: String,
}

impl fmt::Display for RuleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Name,
    /// String literal without its quotes; escapes are kept.
    Text,
    /// Comment without its marker.
    Comment,
    /// Doc comment without its marker.
    Doc,
    /// Number, character or lifetime.
    Other,
    /// Any other single character.
    Sign,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceToken<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    /// Line of the first character, from 1.
    pub(crate) line: usize,
}

impl SourceToken<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, TokenKind::Name | TokenKind::Sign) && self.text == text
    }

    pub(crate) fn is_code(&self) -> bool {
        !matches!(self.kind, TokenKind::Comment | TokenKind::Doc)
    }
}

/// Tokens of a Rust source.
pub(crate) fn tokens(source: &str) -> Vec<SourceToken<'_>> {
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < source.len() {
        let (kind, text, length) = token(&source[at..]);
        if let Some(kind) = kind {
            tokens.push(SourceToken { kind, text, line });
        }
        line += source[at..at + length].matches('\n').count();
        at += length;
    }
    tokens
}

/// Tokens of a Rust source without comments.
pub(crate) fn code(source: &str) -> Vec<SourceToken<'_>> {
    tokens(source).into_iter().filter(SourceToken::is_code).collect()
}

/// First token of a source: its kind, `None` for space; its text; its length in bytes.
fn token(rest: &str) -> (Option<TokenKind>, &str, usize) {
    let first = rest.chars().next().unwrap_or_default();
    if first.is_whitespace() {
        return (None, "", first.len_utf8());
    }
    if let Some(comment) = comment(rest).or_else(|| string(rest)) {
        return comment;
    }
    if first == '\'' {
        let length = character(rest);
        return (Some(TokenKind::Other), &rest[..length], length);
    }
    if first.is_alphabetic() || first == '_' {
        let raw = if rest.starts_with("r#") { 2 } else { 0 };
        let length = raw + word_length(&rest[raw..]);
        return (Some(TokenKind::Name), &rest[raw..length], length);
    }
    if first.is_ascii_digit() {
        let length = word_length(rest);
        return (Some(TokenKind::Other), &rest[..length], length);
    }
    let length = first.len_utf8();
    (Some(TokenKind::Sign), &rest[..length], length)
}

fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

fn comment(rest: &str) -> Option<(Option<TokenKind>, &str, usize)> {
    if rest.starts_with("//") {
        let length = rest.find('\n').unwrap_or(rest.len());
        let is_doc = rest.starts_with("//!") || (rest.starts_with("///") && !rest.starts_with("////"));
        let (kind, marker) = if is_doc { (TokenKind::Doc, 3) } else { (TokenKind::Comment, 2) };
        return Some((Some(kind), &rest[marker..length], length));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let (mut depth, mut length) = (1, 2);
    while depth > 0 && length < rest.len() {
        if rest[length..].starts_with("/*") {
            (depth, length) = (depth + 1, length + 2);
        } else if rest[length..].starts_with("*/") {
            (depth, length) = (depth - 1, length + 2);
        } else {
            length += rest[length..].chars().next().map_or(1, char::len_utf8);
        }
    }
    let is_doc =
        rest.starts_with("/*!") || (rest.starts_with("/**") && !rest.starts_with("/***") && length > 4);
    let (kind, marker) = if is_doc { (TokenKind::Doc, 3) } else { (TokenKind::Comment, 2) };
    Some((Some(kind), rest[marker..length].trim_end_matches("*/"), length))
}

fn string(rest: &str) -> Option<(Option<TokenKind>, &str, usize)> {
    let start = rest.find(|c| !matches!(c, 'b' | 'c' | 'r'))?;
    let is_raw = rest[..start].contains('r');
    if start > 2 || (!is_raw && start > 1) {
        return None;
    }
    let body = &rest[start..];
    let hashes = if is_raw { body.len() - body.trim_start_matches('#').len() } else { 0 };
    let inner = body[hashes..].strip_prefix('"')?;
    let length = if is_raw {
        inner.find(&format!("\"{}", "#".repeat(hashes)))?
    } else {
        let mut is_escaped = false;
        inner.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        })?
    };
    Some((Some(TokenKind::Text), &inner[..length], start + hashes + 1 + length + 1 + hashes))
}

/// Length of a character or a lifetime.
fn character(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => rest[3..].find('\'').map_or(rest.len(), |end| end + 4),
        Some(_) => match characters.next() {
            Some((end, '\'')) => end + 1,
            _ => 1 + word_length(&rest[1..]),
        },
        None => 1,
    }
}

/// Index behind the group that a bracket at `open` starts.
pub(crate) fn group_end(tokens: &[SourceToken<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        if token.kind == TokenKind::Sign {
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// Rust sources of the product: without tests, benchmarks, and modules that are declared for tests.
pub(crate) fn product_files(files: &[SourceFile]) -> Vec<&SourceFile> {
    let product = || files.iter().filter(|file| file.is_rust() && !file.is_test());
    let for_tests: Vec<_> = product().flat_map(test_modules).collect();
    let is_for_tests = |file: &SourceFile| {
        for_tests.iter().any(|module| {
            file.path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    product().filter(|file| !is_for_tests(file)).collect()
}

/// Paths without extension of the modules that a source declares for tests.
fn test_modules(file: &SourceFile) -> Vec<String> {
    let path = file.path.trim_end_matches(".rs");
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = if matches!(name, "lib" | "main" | "mod") { directory } else { path };
    let tokens = code(&file.text);
    let module = |item: Range<usize>| match &tokens[item] {
        [.., keyword, name, end] if keyword.is("mod") && end.is(";") => {
            Some(format!("{parent}/{}", name.text))
        }
        _ => None,
    };
    test_items(&tokens).into_iter().filter_map(module).collect()
}

/// Tokens outside items for tests.
pub(crate) fn product_code(source: &str) -> Vec<SourceToken<'_>> {
    let tokens = code(source);
    let (mut product, mut at) = (Vec::new(), 0);
    for item in test_items(&tokens) {
        product.extend(&tokens[at..item.start]);
        at = item.end;
    }
    product.extend(&tokens[at..]);
    product
}

/// Items with an attribute for tests, and everything behind an inner attribute for tests.
fn test_items(tokens: &[SourceToken<'_>]) -> Vec<Range<usize>> {
    let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.is(text));
    let (mut items, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let is_inner = is(at + 1, "!");
        let open = if is_inner { at + 2 } else { at + 1 };
        if !is(at, "#") || !is(open, "[") {
            at += 1;
            continue;
        }
        let end = group_end(tokens, open);
        let attribute = &tokens[open..end];
        let has = |text: &str| attribute.iter().any(|token| token.is(text));
        if !has("test") || has("not") || has("any") {
            at = end;
            continue;
        }
        let behind = if is_inner { tokens.len() } else { item_end(tokens, end) };
        items.push(at..behind);
        at = behind;
    }
    items
}

/// Index behind the item at `at`: behind its block, its semicolon, or its comma.
fn item_end(tokens: &[SourceToken<'_>], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        if token.is("{") {
            return group_end(tokens, at);
        }
        if token.is(";") || token.is(",") {
            return at + 1;
        }
        if token.is("}") {
            return at;
        }
        at = if token.is("(") || token.is("[") { group_end(tokens, at) } else { at + 1 };
    }
    at
}

/// Text without markup between its lines, and its first line.
pub(crate) struct TextPassage {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Comments, string literals, descriptions of schemas, and Markdown.
pub(crate) fn passages(file: &SourceFile) -> Vec<TextPassage> {
    if file.is_rust() {
        rust_passages(&file.text)
    } else if file.is_markdown() {
        vec![TextPassage { line: 1, text: file.text.clone() }]
    } else if file.is_schema() {
        let lines = file.text.lines().enumerate();
        lines
            .filter_map(|(index, line)| {
                Some(TextPassage { line: index + 1, text: description(line)?.to_owned() })
            })
            .collect()
    } else {
        Vec::new()
    }
}

fn description(line: &str) -> Option<&str> {
    let (key, value) = line.trim().split_once(": ")?;
    matches!(key, "\"description\"" | "\"summary\"" | "\"title\"").then_some(value.trim_matches(['"', ',']))
}

fn rust_passages(source: &str) -> Vec<TextPassage> {
    let mut passages: Vec<TextPassage> = Vec::new();
    // Kind and line of the last comment: a comment on the next line continues it.
    let mut last = (TokenKind::Other, 0);
    for token in tokens(source) {
        match token.kind {
            TokenKind::Comment | TokenKind::Doc => {
                match passages.last_mut() {
                    Some(passage) if last == (token.kind, token.line - 1) => {
                        passage.text.push('\n');
                        passage.text.push_str(token.text);
                    }
                    _ => passages.push(TextPassage { line: token.line, text: token.text.to_owned() }),
                }
                last = (token.kind, token.line + token.text.matches('\n').count());
            }
            TokenKind::Text => {
                let text = token.text.replace("\\\n", " \n").replace("\\n", "  ").replace("\\\"", " \"");
                passages.push(TextPassage { line: token.line, text });
                last.0 = TokenKind::Text;
            }
            _ => last.0 = token.kind,
        }
    }
    passages
}
