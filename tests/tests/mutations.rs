//! Mutations of the sources (`tests/mutations/*.patch`) that the simulation finds (`tests/mutations/search`).

use std::path::Path;
use std::process::Command;

#[test]
fn each_mutation_applies_changes_only_the_product_and_describes_what_is_wrong() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut count = 0;
    for entry in root.join("tests/mutations").read_dir().expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        count += 1;
        let text = std::fs::read_to_string(&path).expect("a text");
        let (sentence, diff) = text.split_once("\n\n").expect("a sentence, then the diff");
        assert!(sentence.ends_with('.') && !sentence.contains('\n'), "{}: {sentence}", path.display());
        let mut files = diff.lines().filter_map(|line| line.strip_prefix("+++ b/")).peekable();
        assert!(files.peek().is_some(), "{} changes nothing", path.display());
        for file in files {
            assert!(!file.starts_with("tests/") && file.contains("/src/"), "{}: {file}", path.display());
        }
        let checked = Command::new("git")
            .args(["apply", "--check"])
            .arg(&path)
            .current_dir(root)
            // Sources without their own repository may be inside another repository.
            .env("GIT_CEILING_DIRECTORIES", root.parent().expect("a parent"))
            .output()
            .expect("git runs");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
    assert!(count > 0, "no mutation");
}
