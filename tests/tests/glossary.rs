//! The glossary is complete for the register of kinds, has each term once in order, and is linked.

use chancery_events::kind::EntityKind;

const GLOSSARY: &str = include_str!("../../docs/glossary.md");
const README: &str = include_str!("../../README.md");
const ARCHITECTURE: &str = include_str!("../../docs/architecture.md");

/// Cells of each row, without the header.
fn rows() -> Vec<Vec<&'static str>> {
    let (terms, _) = GLOSSARY.split_once("\n## Kept apart\n").expect("the pairs");
    let rows = terms.lines().filter_map(|line| line.strip_prefix("| **")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").collect()).collect()
}

/// Term of a row.
fn term(row: &[&'static str]) -> &'static str {
    row[0].strip_suffix("**").expect("a term")
}

#[test]
fn the_glossary_has_every_kind_and_each_term_once_in_order() {
    let rows = rows();
    let terms: Vec<_> = rows.iter().map(|row| term(row)).collect();
    assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
    for kind in EntityKind::ALL {
        assert!(terms.contains(&kind.word()), "docs/glossary.md has no {kind}");
    }
    for row in &rows {
        assert!(row.len() == 3 && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
    }
}

#[test]
fn the_glossary_is_linked_where_people_start() {
    assert!(README.contains("(docs/glossary.md)"), "README.md");
    assert!(ARCHITECTURE.contains("(glossary.md)"), "docs/architecture.md");
}
