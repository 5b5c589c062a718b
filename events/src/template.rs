//! Placeholders in text of plans: `${version}`, `${port.http}`; `$$` is a dollar.

/// Maximum size of a filled text, in bytes: the maximum of an argument or variable of a Linux program.
pub const FILLED_BYTES: usize = 128 << 10;

/// Reason why placeholders cannot be filled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// A dollar starts neither `${…}` nor `$$`.
    #[error("invalid placeholder at byte {at}: must be ${{NAME}}, or $$ for a dollar")]
    Dollar {
        /// Position of the dollar in bytes, from 1.
        at: usize,
    },
    /// The filled text is too long.
    #[error("invalid text: must have at most {FILLED_BYTES} bytes after filling")]
    TooLong,
    /// A placeholder has no value.
    #[error("invalid placeholder ${{{name}}}: no value of this name")]
    Unknown {
        /// Name of the placeholder.
        name: String,
    },
}

/// Returns the text with its placeholders filled by `value`.
pub fn fill(text: &str, mut value: impl FnMut(&str) -> Option<String>) -> Result<String, InvalidTemplate> {
    let mut filled = String::with_capacity(text.len().min(FILLED_BYTES));
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        let bad = || InvalidTemplate::Dollar { at: text.len() - rest.len() + dollar + 1 };
        filled.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        if let Some(more) = after.strip_prefix('$') {
            filled.push('$');
            rest = more;
        } else {
            let (name, more) =
                after.strip_prefix('{').and_then(|inner| inner.split_once('}')).ok_or_else(bad)?;
            let value = value(name).ok_or_else(|| InvalidTemplate::Unknown { name: name.into() })?;
            filled.push_str(&value);
            rest = more;
        }
        // A few placeholders with a long value would exhaust memory.
        if filled.len() > FILLED_BYTES {
            return Err(InvalidTemplate::TooLong);
        }
    }
    filled.push_str(rest);
    if filled.len() > FILLED_BYTES { Err(InvalidTemplate::TooLong) } else { Ok(filled) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_and_dollars_kept() {
        let value = |name: &str| (name == "version").then(|| "v2".to_owned());
        assert_eq!(fill("web:${version} costs $$1", value), Ok("web:v2 costs $1".into()));
        assert_eq!(fill("${port}", value), Err(InvalidTemplate::Unknown { name: "port".into() }));
        assert_eq!(fill("ab$c", value), Err(InvalidTemplate::Dollar { at: 3 }));
        assert_eq!(fill("${version", value), Err(InvalidTemplate::Dollar { at: 1 }));
        let long = |_: &str| Some("v".repeat(FILLED_BYTES / 2));
        assert_eq!(fill("${a}${a}", long).map(|filled| filled.len()), Ok(FILLED_BYTES));
        assert_eq!(fill(&"${a}".repeat(100_000), long), Err(InvalidTemplate::TooLong));
        assert_eq!(fill("${a}${a}x", long), Err(InvalidTemplate::TooLong));
    }
}
