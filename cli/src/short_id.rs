//! Short ids: the first characters of an id that the server issued.
//!
//! An id starts with the position of the event that issued it, then its kind; the rest is the lineage, which ids of a fleet
//! share. So the first three groups distinguish all ids of a fleet, and tables show them alone. Wherever a command
//! takes an id, it takes the first characters of it, which one request resolves; a whole id needs no request. Names are
//! never shortened: people choose them, and they are short already.

use super::client::ApiClient;
use super::error::{CliError, CliExit};
use super::get::{list, name_of};
use super::kind::EntityKind;
use super::table::add;

/// Number of characters of an id.
const WHOLE: usize = 36;
/// Number of characters of a short id: the position and the kind.
const SHORT: usize = 18;
/// Maximum number of candidates that an error lists.
const CANDIDATES: usize = 5;

/// Returns the id as tables show it.
pub(super) fn shown(id: &str) -> &str {
    if id.len() == WHOLE && is_prefix(id) { &id[..SHORT] } else { id }
}

/// Whether the text is an id, or the first characters of one.
pub(super) fn is_prefix(text: &str) -> bool {
    let fits = |(at, c): (usize, char)| {
        if matches!(at, 8 | 13 | 18 | 23) { c == '-' } else { c.is_ascii_hexdigit() }
    };
    (1..=WHOLE).contains(&text.len()) && text.chars().enumerate().all(fits)
}

/// Returns the name of an entity whose id may be given by its first characters, which must be those of one entity alone.
/// Any other name is returned as it is.
pub(super) fn resolve(client: &ApiClient<'_>, kind: EntityKind, name: &str) -> Result<String, CliError> {
    if kind.entry().key != ["id"] || name.len() == WHOLE || !is_prefix(name) {
        return Ok(name.to_owned());
    }
    let word = kind.word();
    let found = list(client, kind, &[("id", name.to_owned())], CANDIDATES as u64)?;
    match found.items.as_slice() {
        [] => {
            let what = format!(
                "cannot read {word}/{name}: no {word} has an id that starts with it\n\
                 hint: a removed {word} is found by its whole id"
            );
            Err(CliError::new(CliExit::NotFound, what))
        }
        [one] => Ok(name_of(kind, one)),
        several => {
            let mut what = format!("invalid {word} {name:?}: more than one id starts with it");
            for item in several {
                add(&mut what, format_args!("\n  {word}/{}", name_of(kind, item)));
            }
            if found.more {
                what.push_str("\n  and more");
            }
            Err(CliError::usage(what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_id_has_the_position_and_the_kind_and_names_stay_whole() {
        for (text, wanted) in [
            ("00000000-0000-8755-9f3a-5c7e9b2d4f60", "00000000-0000-8755"),
            ("00000000-0000-8755", "00000000-0000-8755"),
            ("web-7f3k", "web-7f3k"),
            ("a-name-of-thirty-six-characters-here", "a-name-of-thirty-six-characters-here"),
        ] {
            assert_eq!(shown(text), wanted);
        }
        for (text, wanted) in [
            ("0", true),
            ("00000000-", true),
            ("00000000-0000-87", true),
            ("", false),
            ("0000-", false),
            ("000000000", false),
            ("web-7f3k", false),
            ("00000000-0000-8755-9f3a-5c7e9b2d4f600", false),
        ] {
            assert_eq!(is_prefix(text), wanted, "{text}");
        }
    }
}
