//! Cache of the files that the tests fetch (`tests/cache.sh`).

use std::path::Path;
use std::process::{Command, Output};

const ENTRY: &str = "chancery/part-1";

/// Runs a script with the functions of the cache, and `make`, which notes each call in the file `made`.
fn run(directory: &Path, script: &str) -> Output {
    let functions = Path::new(env!("CARGO_MANIFEST_DIR")).join("cache.sh");
    let whole = format!(
        r#"set -euo pipefail; . "$0"
        make() {{ echo once >>"$XDG_CACHE_HOME/made"; echo content >"$1/file"; }}
        {script}"#
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &whole]).arg(functions).env("XDG_CACHE_HOME", directory).output().expect("bash runs")
}

fn fill(directory: &Path) {
    let output = run(directory, r#"cache_fill "$cache/part-1" make"#);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(directory.join(ENTRY).join("file")).expect("the file"), "content\n");
}

fn times_made(directory: &Path) -> usize {
    std::fs::read_to_string(directory.join("made")).expect("it was made").lines().count()
}

#[test]
fn an_entry_of_the_cache_is_made_once_and_again_when_it_is_incomplete_or_altered() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    fill(directory);
    fill(directory);
    assert_eq!(times_made(directory), 1);
    let file = directory.join(ENTRY).join("file");
    std::fs::write(&file, "other\n").expect("it can be altered");
    fill(directory);
    assert_eq!(times_made(directory), 2, "altered");
    std::fs::remove_file(&file).expect("it can be removed");
    fill(directory);
    assert_eq!(times_made(directory), 3, "incomplete");
}

#[test]
fn what_was_not_completed_is_no_entry_of_the_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let broken = r#"fail() { make "$1"; return 1; }; cache_fill "$cache/part-1" fail"#;
    assert!(!run(directory, broken).status.success());
    assert!(!directory.join(ENTRY).exists());
    let killed = r#"die() { make "$1"; kill -9 $BASHPID; }; cache_fill "$cache/part-1" die"#;
    assert!(!run(directory, killed).status.success());
    assert!(!directory.join(ENTRY).exists());
    fill(directory);
    assert_eq!(times_made(directory), 3);
}

#[test]
fn two_concurrent_fills_make_one_entry_of_the_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let slow = r#"slow() { sleep 0.2; make "$1"; }; cache_fill "$cache/part-1" slow & cache_fill "$cache/part-1" slow; wait $!"#;
    assert!(run(directory.path(), slow).status.success());
    assert_eq!(times_made(directory.path()), 1);
}
