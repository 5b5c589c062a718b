//! Error texts of the product start with `cannot` or `invalid`.

use crate::source::{
    RuleViolation, SourceFile, SourceToken, TokenKind, group_end, product_code, product_files,
};

/// Literals of `#[error]`, `bail!`, `anyhow!`, `ensure!`, `context` and `with_context` outside tests.
pub(crate) fn errors(files: &[SourceFile]) -> Vec<RuleViolation> {
    let mut violations = Vec::new();
    for file in product_files(files) {
        let tokens = product_code(&file.text);
        for index in 0..tokens.len() {
            let Some(literal) = error_text(&tokens, index) else { continue };
            if has_words(literal.text)
                && !literal.text.starts_with("cannot ")
                && !literal.text.starts_with("invalid ")
            {
                violations.push(file.violation(literal.line, "errors", literal.text.to_owned()));
            }
        }
    }
    violations
}

/// Whether a text has words outside its placeholders: `{0}` and `{place}: {reason}` have none.
fn has_words(text: &str) -> bool {
    let outside = text.split('{').enumerate().map(|(index, part)| match part.split_once('}') {
        Some((_, outside)) if index > 0 => outside,
        _ => part,
    });
    outside.into_iter().any(|part| part.contains(char::is_alphabetic))
}

/// Literal of the error that the name at `index` makes.
fn error_text<'a>(tokens: &[SourceToken<'a>], index: usize) -> Option<SourceToken<'a>> {
    let sign = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.is(text));
    let before = |distance: usize, text: &str| index.checked_sub(distance).is_some_and(|at| sign(at, text));
    let open = match tokens[index].text {
        "error" if before(1, "[") && before(2, "#") => index + 1,
        "bail" | "anyhow" | "ensure" if sign(index + 1, "!") => index + 2,
        "context" | "with_context" if before(1, ".") => index + 1,
        _ => return None,
    };
    if !["(", "{", "["].iter().any(|bracket| sign(open, bracket)) {
        return None;
    }
    let arguments = &tokens[open + 1..group_end(tokens, open) - 1];
    let arguments = match tokens[index].text {
        "ensure" => behind_comma(arguments),
        // Behind the parameters of the closure.
        "with_context" => arguments.get(2..)?,
        _ => arguments,
    };
    let literal = match arguments {
        [name, bang, _, literal, ..] if name.is("format") && bang.is("!") => literal,
        [open, name, bang, _, literal, ..] if open.is("{") && name.is("format") && bang.is("!") => literal,
        [literal, ..] => literal,
        [] => return None,
    };
    (literal.kind == TokenKind::Text).then_some(*literal)
}

/// Tokens behind the first comma outside groups.
fn behind_comma<'a, 'b>(tokens: &'b [SourceToken<'a>]) -> &'b [SourceToken<'a>] {
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if token.is(",") {
            return &tokens[at + 1..];
        }
        let opens = token.is("(") || token.is("[") || token.is("{");
        at = if opens { group_end(tokens, at) } else { at + 1 };
    }
    &[]
}
