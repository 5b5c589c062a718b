//! The reference of the settings, `docs/settings.md`: made from the table of settings and the command line, so that it
//! cannot say anything else. `UPDATE=1` writes it.

use std::fmt::Write as _;
use std::path::Path;

use clap::CommandFactory as _;

use super::{FILE, FILE_ENV, SETTINGS, Setting, Type};
use crate::cli::Cli;

const PAGE: &str = "../docs/settings.md";

fn reference() -> String {
    let mut text = format!(
        "# Settings\n\n\
         Each setting has a default; over it goes what a file says, over that the environment, over that a flag, where \
         there is\none. The file is `{FILE}` in the folder where a command is run, or the one that `--config` or \
         `{FILE_ENV}`\nnames. The variable is the name in capitals: `limits.queue` is `CHANCERY_LIMITS_QUEUE`. \
         `chancery config show` tells\nevery value and where it came from. What cannot be read is refused with its \
         place, and so is a name in the file that is\nnot known. This page is made from the program.\n\n\
         ```toml\nlease = \"30s\"\n\n[limits]\nqueue = 8192\n```\n\n\
         | setting | flag | what it is | unless set | meaning |\n|---|---|---|---|---|\n"
    );
    for Setting { name, kind, default, doc, .. } in SETTINGS {
        let flag = flag(name).unwrap_or_default();
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        writeln!(text, "| `{name}` | {flag} | {} | {default} | {doc} |", what(*kind)).expect("text");
    }
    text
}

/// The flag for the setting, of every command or of a server.
fn flag(name: &str) -> Option<String> {
    let long = name.replace('_', "-");
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").expect("the program serves");
    let all = cli.get_arguments().chain(serve.get_arguments());
    all.filter_map(|arg| arg.get_long()).find(|flag| *flag == long).map(|flag| format!("`--{flag}`"))
}

fn what(kind: Type) -> &'static str {
    match kind {
        Type::Folder => "folder",
        Type::Cgroup => "`auto`, `none`, or the absolute path of a directory",
        Type::Listen => "address with its port, on loopback",
        Type::Url => "`http://…`, also several between commas",
        Type::Fleet | Type::Actor => "name",
        Type::Fleets => "names between commas, each also as `name=partition`, or nothing",
        Type::Filter => "filter",
        Type::LogFormat => "`text`, `json`",
        Type::Clusters => "`all`, `none`, or names between commas",
        Type::Span => "duration of at least `1s`: `30s`, `5m`, `24h`",
        Type::Bytes => "bytes, at least `1KiB`, also with a unit: `64MiB`",
        Type::Count => "whole number, at least 1",
        Type::Session => "duration of at least `6s`",
        Type::Switch => "`yes`, `no`",
        Type::Journal => "`embedded`, or `kafka://HOST:PORT,…/PREFIX`",
        Type::MaybeAddress => "host with its port, or nothing",
        Type::Scope => "types of intents between commas, also with `*`, or nothing",
        Type::Hosts => "names or addresses between commas, or nothing",
        Type::Pairs => "`key=value` between commas, or nothing",
        Type::MaybeFile => "path of a file, or nothing",
        Type::MaybeText => "text, or nothing",
        Type::SaslMechanism => "`scram-sha-512`, `scram-sha-256`, `plain`",
    }
}

#[test]
fn the_reference_in_docs_is_what_can_be_set() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let wanted = reference();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "docs/settings.md is out of date: UPDATE=1 cargo test -p chancery reference");
}
