//! Dependencies: `Cargo.lock` against the rules of `deny.toml`, and the manifests against the table of
//! decision 0010.
//!
//! cargo-deny reads the same `deny.toml`. Compiling cargo-deny takes minutes, so it is not part of the tests.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::imports::packages;

#[derive(Deserialize)]
struct DenyRules {
    advisories: AdvisoryRules,
    licenses: LicenseRules,
    bans: BanRules,
    sources: SourceRules,
}

#[derive(Deserialize)]
struct AdvisoryRules {
    ignore: Vec<IgnoredAdvisory>,
}

#[derive(Deserialize)]
struct IgnoredAdvisory {
    id: String,
    reason: String,
}

#[derive(Deserialize)]
struct LicenseRules {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct BanRules {
    skip: Vec<CrateRule>,
    deny: Vec<CrateRule>,
}

/// Rule for a crate, with `@VERSION` if the rule is for one version.
#[derive(Deserialize)]
struct CrateRule {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct SourceRules {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct LockFile {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    source: Option<String>,
}

fn policy() -> DenyRules {
    toml::from_str(include_str!("../../deny.toml")).expect("deny.toml")
}

fn locked() -> Vec<LockedPackage> {
    toml::from_str::<LockFile>(include_str!("../../Cargo.lock")).expect("Cargo.lock").package
}

#[test]
fn every_crate_is_from_an_allowed_registry_or_of_the_workspace() {
    let allowed: Vec<_> =
        policy().sources.allow_registry.iter().map(|url| format!("registry+{url}")).collect();
    let packages = packages(&["--no-deps"]);
    let members: BTreeSet<_> = packages.iter().map(|package| package["name"].as_str()).collect();
    for package in locked() {
        match &package.source {
            Some(source) => assert!(allowed.contains(source), "{}: {source} is not allowed", package.name),
            None => assert!(members.contains(&Some(&*package.name)), "{} has no source", package.name),
        }
    }
}

#[test]
fn no_crate_has_two_versions_but_those_that_the_policy_skips() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in locked() {
        versions.entry(package.name).or_default().insert(package.version);
    }
    for CrateRule { name, reason } in policy().bans.skip {
        assert!(!reason.is_empty(), "{name}");
        let (name, version) = name.split_once('@').unwrap_or_else(|| panic!("{name} names no version"));
        let skipped = versions.get_mut(name).is_some_and(|versions| versions.remove(version));
        assert!(skipped, "{name} {version} is not in Cargo.lock: remove the rule");
        assert!(!versions[name].is_empty(), "{name} {version} is the only version: remove the rule");
    }
    versions.retain(|_, versions| versions.len() > 1);
    assert!(versions.is_empty(), "{versions:?}");
}

#[test]
fn no_banned_crate_is_used() {
    let locked: BTreeSet<_> = locked().into_iter().map(|package| package.name).collect();
    for CrateRule { name, reason } in policy().bans.deny {
        assert!(!locked.contains(&name), "{name}: {reason}");
    }
}

#[test]
fn every_ignored_advisory_has_a_reason_that_starts_with_a_crate_in_use() {
    let locked: BTreeSet<_> = locked().into_iter().map(|package| package.name).collect();
    for IgnoredAdvisory { id, reason } in policy().advisories.ignore {
        let (name, why) = reason.split_once(": ").unwrap_or_else(|| panic!("{id} names no crate"));
        assert!(locked.contains(name), "{id}: {name} is not in Cargo.lock: remove the rule");
        assert!(!why.is_empty(), "{id}");
    }
}

/// Operands of an SPDX expression between `operator`s outside parentheses.
fn operands<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && expression[at..].starts_with(operator) => {
                parts.push(&expression[start..at]);
                start = at + operator.len();
            }
            _ => {}
        }
    }
    parts.push(&expression[start..]);
    parts
}

/// Whether the license of an SPDX expression is, or can be chosen to be, one of `allowed`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    operands(expression, " OR ").into_iter().any(|choice| {
        operands(choice, " AND ").into_iter().all(|license| {
            match license.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
                Some(inner) => is_allowed(inner, allowed),
                None => allowed.contains(license),
            }
        })
    })
}

#[test]
fn every_license_is_allowed() {
    let allowed = policy().licenses.allow;
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    for package in packages(&["--all-features", "--filter-platform", &host]) {
        // A slash is an old form of OR.
        let license =
            package["license"].as_str().unwrap_or_default().replace(" / ", " OR ").replace('/', " OR ");
        assert!(is_allowed(&license, &allowed), "{}: {license:?} is not allowed", package["name"]);
    }
}

/// Crates in the first column of the table of decision 0010.
fn decided() -> BTreeSet<&'static str> {
    include_str!("../../docs/decisions/0010-dependencies.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .filter(|name| *name != "package")
        .collect()
}

#[test]
fn every_direct_dependency_has_a_line_in_decision_0010() {
    let packages = packages(&["--no-deps"]);
    let used: BTreeSet<&str> = packages
        .iter()
        .flat_map(|package| package["dependencies"].as_array().expect("dependencies"))
        .filter_map(|dependency| dependency["name"].as_str())
        .filter(|name| !name.starts_with("chancery"))
        .collect();
    assert_eq!(used, decided());
}
