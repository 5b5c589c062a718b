//! Pages of races and checks: each named test exists, and each race and check is listed once, as shown or
//! waiting.

use std::collections::BTreeSet;
use std::path::Path;

const RACES: &str = include_str!("../../docs/races.md");
const CHECKS: &str = include_str!("../../docs/checks.md");

/// Numbers that no race has.
const UNUSED: [u32; 7] = [53, 54, 55, 56, 57, 58, 59];

/// Text between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Numbers in the first cell of a row: `R7`, or `R12–R22, R24`.
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

/// Rows of a table whose first cell starts with one of these characters.
fn rows<'a>(part: &'a str, messages: &'a [char]) -> impl Iterator<Item = &'a str> {
    part.lines().filter(move |line| line.strip_prefix("| ").is_some_and(|cell| cell.starts_with(messages)))
}

/// Checks that the tests named in a row exist.
fn names_tests(row: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for (path, name) in quoted(row).filter_map(|name| name.split_once("::")) {
        let source =
            std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let here = [format!("fn {name}("), format!("fn {name}<")].iter().any(|start| source.contains(start));
        assert!(here, "{path} has no test {name}");
    }
}

#[test]
fn every_race_is_shown_by_a_test_that_exists_or_waits_for_something() {
    let (shown, waiting) = RACES.split_once("\n## Waiting\n").expect("a list of those that wait");
    let mut all = BTreeSet::new();
    for row in rows(shown, &['R']).filter(|row| row.starts_with("| R")) {
        assert!(quoted(row).any(|name| name.contains("::")), "no test: {row}");
        names_tests(row);
        for number in numbers(row) {
            assert!(all.insert(number), "R{number} is listed twice");
        }
    }
    all.extend(rows(waiting, &['R']).flat_map(numbers));
    let wanted: BTreeSet<u32> = (1..=86).filter(|number| !UNUSED.contains(number)).collect();
    assert_eq!(all, wanted, "every race is shown or waits");
}

#[test]
fn every_check_is_shown_by_a_test_that_exists() {
    let messages = ['M', 'A', 'B', 'C', 'D', 'F'];
    let cell = |row: &str| row.split('|').nth(1).expect("a first cell").trim().to_owned();
    let mut all = BTreeSet::new();
    for row in rows(CHECKS, &messages) {
        assert!(
            quoted(row).any(|name| name.contains("::")) || row.contains("performance.md"),
            "no test: {row}"
        );
        names_tests(row);
        for check in cell(row).split(", ") {
            assert!(all.insert(check.to_owned()), "{check} is listed twice");
        }
    }
    // Those that are shown a second time, for virtual machines.
    rows(CHECKS, &['V']).for_each(names_tests);
    assert!(rows(CHECKS, &['V']).count() > 10, "a table of virtual machines");
    let of = |message: char, numbers: std::ops::RangeInclusive<u32>| {
        numbers.map(move |number| format!("{message}{number}"))
    };
    let wanted = of('M', 1..=37).chain(of('M', 54..=55)).chain(of('A', 4..=11)).chain(of('B', 1..=5));
    let wanted =
        wanted.chain(of('C', 1..=9)).chain(of('C', 11..=11)).chain(of('D', 1..=9)).chain(of('F', 1..=5));
    assert_eq!(all, wanted.collect::<BTreeSet<_>>(), "every check is shown");
}
