//! Help texts beyond those of the arguments: groups of commands, and two examples of each client command.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};

use super::local::CliArgs;

/// Groups of commands, in the order of the help.
const GROUPS: &[(&str, &[&str])] = &[
    ("Read", &["status", "get", "describe", "explain", "wait", "logs", "console"]),
    ("Ask why", &["diff", "why", "events", "history"]),
    ("Change entities", &["apply", "edit", "delete", "create", "activate", "deactivate", "snapshot"]),
    ("Deploy", &["scale", "rollback", "promote", "pause", "resume", "cancel"]),
    ("Decide", &["approve", "reject"]),
    ("Operate replicas", &["start", "stop", "restart", "reboot", "relocate", "rebalance"]),
    (
        "Operate nodes",
        &[
            "drain", "undrain", "schedule", "complete", "allocate", "evict", "sanitize", "release",
            "expunge", "discover",
        ],
    ),
    ("Run", &["dev", "serve", "executor", "demo"]),
    (
        "Administer",
        &[
            "doctor",
            "ready",
            "verify",
            "replay",
            "upgrade",
            "raise",
            "inbox",
            "init-topics",
            "import",
            "context",
            "config",
        ],
    ),
    ("Other", &["version", "openapi", "completion", "man", "help"]),
];

/// Examples of the client commands, without the name of the program.
const EXAMPLES: &[&str] = &[
    "activate plan/web",
    "activate cluster local",
    "allocate node-1 --cluster local",
    "allocate node-1 --cluster local -o json",
    "apply -f web.yaml",
    "apply --dry-run -f manifests/",
    "approve --plan web --all",
    "approve disruption/node-1/switch",
    "cancel deployment/web/deployment-2",
    "cancel deployment web/deployment-2",
    "complete disruption/node-1/switch",
    "complete disruption node-1/switch",
    "console web-0100",
    "console web-0100 --read-only",
    "context set prod --server https://chancery.example --fleet main",
    "context use prod",
    "create replica --plan web",
    "create replica --plan web --node node-2",
    "deactivate plan/web",
    "deactivate cluster local",
    "delete plan/web --cascade",
    "delete -f web.yaml",
    "describe plan/web",
    "describe node node-1 --as-of 2026-11-21T09:00:00Z",
    "diff -f web.yaml",
    "diff 2026-11-21T09:00:00Z 2026-11-21T10:00:00Z --kind replica --filter plan=web",
    "drain node-1 --reason disks --wait",
    "drain node-1 --wait --timeout 1h",
    "edit plan/web",
    "edit node node-1",
    "events --follow",
    "events --subject replica/web-0100 -o jsonl",
    "evict node-1",
    "evict node-1 -o json",
    "explain plan.spec.payloads",
    "explain node --recursive",
    "expunge node-1",
    "expunge node-1 --yes --break-glass fire",
    "get nodes,plans",
    "get operations --filter state=pending_approval -o wide",
    "history replica/web-0100",
    "history deployment web/deployment-1 -o json",
    "inbox skip 4711",
    "inbox skip 4711 -o json",
    "logs web-0100 --follow",
    "logs web-0100 --previous --tail 100",
    "pause deployment/web/deployment-2",
    "pause deployment web/deployment-2",
    "promote deployment/web/deployment-2",
    "promote deployment web/deployment-2",
    "raise fleet",
    "raise fleet --to 1 --without 10.0.0.7:7440",
    "ready",
    "ready --server http://127.0.0.1:7441",
    "rebalance web",
    "rebalance plan/web",
    "reboot web-0100",
    "reboot replica/web-0100",
    "reject --plan web --all --reason freeze",
    "reject request/00000000-0000-8755-9f3a-5c7e9b2d4f60",
    "release node-1",
    "release node/node-1",
    "relocate web-0100",
    "relocate web-0100 --to node-2",
    "restart web-0100",
    "restart replica/web-0100",
    "resume deployment/web/deployment-2",
    "resume deployment web/deployment-2",
    "rollback web",
    "rollback web --to deployment-1",
    "sanitize node-1",
    "sanitize node/node-1",
    "scale web --count 3",
    "scale web --count 0 --name pause",
    "schedule disruption node-1/switch --start 2h --drain --reason switch",
    "schedule disruption/node-1/switch --start 2026-11-21T22:00:00Z",
    "snapshot volume/db --as db-monday",
    "snapshot volume db --as db-monday --wait",
    "start web-0100",
    "start web-0100 --node node-2",
    "status",
    "status -o json",
    "stop web-0100",
    "stop web-0100 --wait",
    "undrain node-1",
    "undrain node/node-1",
    "version",
    "version --client",
    "wait replica/web-0100 --for phase=running",
    "wait deployment/web/deployment-1 --for state=completed --timeout 5m",
    "why replica/web-0100 node",
    "why deployment/web/deployment-1 --as-of 120",
];

/// Returns the command line, with groups and examples in its help.
pub(super) fn command() -> Command {
    let command = CliArgs::command();
    let groups = groups(&command);
    command.help_template(template(&groups)).mut_subcommands(|of| {
        let examples: Vec<_> = examples(of.get_name()).map(|line| format!("  chancery {line}")).collect();
        if examples.is_empty() {
            return of;
        }
        of.after_help(format!("Examples:\n{}", examples.join("\n")))
    })
}

fn template(groups: &str) -> String {
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    )
}

/// Returns the examples of a command.
fn examples(name: &str) -> impl Iterator<Item = &'static str> {
    EXAMPLES.iter().copied().filter(move |line| line.split(' ').next() == Some(name))
}

/// Lists the commands by group, each with the first line of its description.
fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{title}:");
        for name in *names {
            let about = match *name {
                "help" => "Print this message, or the help of a command".to_owned(),
                name => command
                    .find_subcommand(name)
                    .and_then(Command::get_about)
                    .map(ToString::to_string)
                    .unwrap_or_default(),
            };
            let _ = writeln!(text, "  {name:<12} {about}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use chancery_cli::ClientCommand;
    use clap::{FromArgMatches as _, Subcommand as _};

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = CliArgs::command();
        let names: BTreeSet<_> = command.get_subcommands().map(Command::get_name).chain(["help"]).collect();
        let grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.len(), names.len(), "a command is in two groups, or in none");
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), names);
        let help = super::command().render_help().to_string();
        for wanted in
            ["Read:\n  status", "  help         Print this message", "--server <URL>", "Exit codes:"]
        {
            assert!(help.contains(wanted), "{help}");
        }
    }

    #[test]
    fn every_client_command_has_two_examples_that_are_read() {
        let clients = ClientCommand::augment_subcommands(Command::new("chancery"));
        for command in clients.get_subcommands() {
            let name = command.get_name();
            assert_eq!(examples(name).count(), 2, "{name}");
        }
        for line in EXAMPLES {
            let words = std::iter::once("chancery").chain(line.split(' '));
            let found = super::command().try_get_matches_from(words);
            let found = found.unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(CliArgs::from_arg_matches(&found).is_ok(), "{line}");
        }
    }
}
