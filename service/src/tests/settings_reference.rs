//! Reference of the settings, `docs/settings.md`, generated from the table of settings and the command line,
//! so that it cannot deviate from them. `UPDATE=1` writes it.

use std::fmt::Write as _;
use std::path::Path;

use chancery_cli::CONTEXTS_ENV;
use chancery_events::spec::{VOLUME_VARIABLE, port_variable, volume_variable};
use chancery_executor::PAYLOAD_VARIABLES;
use clap::CommandFactory as _;

use crate::cli::CliArgs;
use crate::config::{FILE, FILE_ENV, SETTINGS, SettingEntry};

const PAGE: &str = "../docs/settings.md";
const VARIABLES: &str = "../docs/environment.md";

fn reference() -> String {
    let mut text = format!(
        "# Settings\n\n\
         Each setting has a default. A file overrides defaults, the environment overrides the file, and a flag, if the \
         setting\nhas one, overrides the environment. The file is `{FILE}` in the current directory, or the file that \
         `--config` or\n`{FILE_ENV}` names. The variable is the name in capitals: `limits.decider_queue` is \
         `CHANCERY_LIMITS_DECIDER_QUEUE`.\n`chancery config show` prints every value with its origin. An invalid value and an \
         unknown name in the file are refused\nwith their location. For commands that send requests, the \
         current [context](command-line.md#contexts) is between the defaults and the file. This page is generated from the program.\n\n\
         ```toml\nsession_lease = \"30s\"\n\n[limits]\ndecider_queue = 8192\n```\n\n\
         | setting | flag | type | default | meaning |\n|---|---|---|---|---|\n"
    );
    for SettingEntry { name, kind, default, doc, .. } in SETTINGS {
        let flag = flag(name).unwrap_or_default();
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        writeln!(text, "| `{name}` | {flag} | {} | {default} | {doc} |", kind.what).expect("text");
    }
    text
}

/// Returns the flag for the setting, of every command or of a server.
fn flag(name: &str) -> Option<String> {
    let long = name.replace('_', "-");
    let cli = CliArgs::command();
    let serve = cli.find_subcommand("serve").expect("the program serves");
    let all = cli.get_arguments().chain(serve.get_arguments());
    all.filter_map(|arg| arg.get_long()).find(|flag| *flag == long).map(|flag| format!("`--{flag}`"))
}

/// Returns every environment variable: the variables that a process receives, and the variables of settings.
fn variables() -> String {
    let mut text = String::from(
        "# Environment variables\n\n\
         This page is generated from the program.\n\n\
         ## Processes\n\n\
         An executor of real processes starts each process with the variables of its payload's `run.env` and with the variables \
         below. A payload\ncannot set or change them, except `PATH` and `HOME`. They are set when the process starts and do \
         not change while it runs. A\nprocess does not see that its node moved to another zone, or that a deployment took its \
         replica over without an update.\n\n\
         | variable | value |\n|---|---|\n",
    );
    for (name, holds) in PAYLOAD_VARIABLES {
        writeln!(text, "| `{name}` | {holds} |").expect("text");
    }
    writeln!(
        text,
        "| `{VOLUME_VARIABLE}…` | directory of a volume, by its mount: `{}` of `/var/lib/db` |",
        volume_variable("/var/lib/db")
    )
    .expect("text");
    let port = port_variable(&"http".parse().expect("a name"));
    writeln!(text, "| `PORT_…` | number of a port, by its name: `{port}` of `http` |").expect("text");
    text.push_str(
        "| `PATH` | directories of programs, unless `run.env` sets it |\n\
         | `HOME` | working directory of the process, unless `run.env` sets it |\n\n\
         ## Program\n\n\
         A variable sets the setting of the same name; see [settings](settings.md).\n\n\
         | variable | setting |\n|---|---|\n",
    );
    writeln!(text, "| `{FILE_ENV}` | path of the configuration file |").expect("text");
    writeln!(text, "| `{CONTEXTS_ENV}` | path of the file of [contexts](command-line.md#contexts) |")
        .expect("text");
    for SettingEntry { name, env, .. } in SETTINGS {
        writeln!(text, "| `{env}` | `{name}` |").expect("text");
    }
    text
}

/// Compares a page with the generated text, or writes it.
pub(super) fn keep(page: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, wanted).expect("docs can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{page} is out of date: UPDATE=1 cargo test -p chancery reference");
}

#[test]
fn the_reference_in_docs_is_what_can_be_set() {
    keep(PAGE, &reference());
}

#[test]
fn the_reference_of_variables_is_what_the_program_sets_and_reads() {
    let page = variables();
    keep(VARIABLES, &page);
    // Every name with the prefix in the code must be listed.
    let mut directories: Vec<_> =
        ["src", "../api/src", "../cli/src", "../decider/src", "../executor/src", "../events/src"]
            .map(|directory| Path::new(env!("CARGO_MANIFEST_DIR")).join(directory))
            .into();
    let mut count = 0;
    while let Some(incarnation_directory) = directories.pop() {
        for entry in std::fs::read_dir(incarnation_directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                directories.push(path);
            } else if !name.contains("tests") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                for literal in text.split('"').skip(1).step_by(2).filter(|text| is_variable(text)) {
                    count += 1;
                    assert!(
                        page.contains(&format!("`{literal}")),
                        "{}: {literal} is not documented",
                        path.display()
                    );
                }
            }
        }
    }
    assert!(count > SETTINGS.len(), "{count} names were found");
}

fn is_variable(text: &str) -> bool {
    let rest = text.strip_prefix("CHANCERY_").filter(|rest| !rest.is_empty());
    rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
}
