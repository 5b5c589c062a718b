//! The page of races names tests that exist, and each race once: shown, or waiting.

use std::collections::BTreeSet;
use std::path::Path;

const PAGE: &str = include_str!("../../docs/races.md");

/// Races that the numbering leaves out.
const UNUSED: [u32; 7] = [53, 54, 55, 56, 57, 58, 59];

/// What stands between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The numbers in the first cell of a row: `R7`, or `R12–R22, R24`.
fn numbers(row: &str) -> Vec<u32> {
    let cell = row.split('|').nth(1).expect("a first cell").trim();
    let number =
        |text: &str| text.trim_start_matches('R').parse().unwrap_or_else(|_| panic!("{text:?} in {row}"));
    let parts = cell.split(", ").flat_map(|part| match part.split_once('–') {
        Some((first, last)) => (number(first)..=number(last)).collect(),
        None => vec![number(part)],
    });
    parts.collect()
}

#[test]
fn every_race_is_shown_by_a_test_that_exists_or_waits_for_something() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let (shown, waiting) = PAGE.split_once("\n## Waiting\n").expect("a list of those that wait");
    let rows = |part: &'static str| part.lines().filter(|line| line.starts_with("| R"));
    let mut all = BTreeSet::new();
    for row in rows(shown) {
        let tests: Vec<_> = quoted(row).filter_map(|name| name.split_once("::")).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        for (path, name) in tests {
            let source =
                std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
            let here =
                [format!("fn {name}("), format!("fn {name}<")].iter().any(|start| source.contains(start));
            assert!(here, "{path} has no test {name}");
        }
        for number in numbers(row) {
            assert!(all.insert(number), "R{number} is there twice");
        }
    }
    all.extend(rows(waiting).flat_map(numbers));
    let wanted: BTreeSet<u32> = (1..=86).filter(|number| !UNUSED.contains(number)).collect();
    assert_eq!(all, wanted, "every race is shown or waits");
}
