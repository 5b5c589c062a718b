//! Every rule over the files of the workspace.

use std::fs;
use std::path::Path;

use crate::banned::banned;
use crate::docs::docs;
use crate::errors::errors;
use crate::source::{RuleViolation, SourceFile};
use crate::types::types;
use crate::wire::wire;

/// Rust sources, patches of them, Markdown, and schemas with their samples.
fn sources() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut files, mut directories) = (Vec::new(), vec![root.clone()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("an entry");
            let is_generated = matches!(name.to_str(), None | Some("target" | "node_modules"));
            if is_generated || name.to_string_lossy().starts_with('.') {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let relative = path.strip_prefix(&root).expect("a path below the root").to_string_lossy();
            let file = SourceFile::new(&relative, "");
            if file.is_rust() || file.is_patch() || file.is_markdown() || relative.starts_with("schemas/") {
                files.push(SourceFile { text: fs::read_to_string(&path).expect("a text"), ..file });
            }
        }
    }
    assert!(files.len() > 500, "{} files", files.len());
    files
}

fn assert_none(mut violations: Vec<RuleViolation>) {
    violations.sort();
    let lines: Vec<_> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn names_of_types_are_unique_and_have_two_words() {
    assert_none(types(&sources()));
}

#[test]
fn no_text_has_a_banned_phrase() {
    assert_none(banned(&sources()));
}

#[test]
fn doc_comments_start_with_their_noun_or_verb() {
    assert_none(docs(&sources()));
}

#[test]
fn error_texts_start_with_cannot_or_invalid() {
    assert_none(errors(&sources()));
}

#[test]
fn no_retired_name_is_on_the_wire() {
    assert_none(wire(&sources()));
}
