//! `man`: manual pages of the visible commands, from the same definitions as their help.

use std::path::Path;

use clap::CommandFactory as _;

use super::local::CliArgs;

/// Writes a page of each visible command, `chancery.1`, `chancery-get.1` and so on, to a directory, which is created if it does not
/// exist.
pub fn manual_pages(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(CliArgs::command(), dir)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_visible_command_has_a_page_and_no_hidden_one() {
        let parent = tempfile::tempdir().expect("a directory");
        let dir = parent.path().join("new").join("man1");
        manual_pages(&dir).expect("pages");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("text")
        };
        let pages: BTreeSet<_> = dir.read_dir().expect("a directory").map(name).collect();
        assert!(pages.contains("chancery.1") && pages.contains("chancery-upgrade-check.1"), "{pages:?}");
        for command in CliArgs::command().get_subcommands() {
            let page = format!("chancery-{}.1", command.get_name());
            assert_eq!(pages.contains(&page), !command.is_hide_set(), "{page}");
        }
    }
}
