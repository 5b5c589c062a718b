//! Command line of the program: its commands ([`local`]), the settings that follow from the flags, and the
//! commands that show the program itself. [`chancery_cli`] runs client commands; the program runs all other
//! commands.

mod completion;
mod executor;
mod habits;
mod help;
mod local;
mod man;
mod show;

use chancery_cli::{CliContext, CliError, OutputFormat, SelectedContext, note, selected_context};
use clap::FromArgMatches as _;

pub use completion::completion;
pub use executor::{CredentialArgs, ExecutorArgs};
pub use local::{
    CliArgs, CliCommand, ConfigCommand, DemoArgs, DiscoverCommand, LocalCommand, ReplayArgs, ServerArgs,
    UpgradeCheckArgs, UpgradeCommand,
};
pub use man::manual_pages;
pub use show::config as show_config;

use crate::config::{InvalidConfig, OnLoss, ServiceConfig};

/// Reads the command line. Ends the process with its help, or with its errors (exit code 2).
pub fn parse() -> CliArgs {
    let found = help::command().try_get_matches();
    let parsed = found.and_then(|found| {
        CliArgs::from_arg_matches(&found).map_err(|error| error.format(&mut help::command()))
    });
    parsed.unwrap_or_else(|mut error| {
        habits::advise(&mut error);
        end(&error)
    })
}

/// Ends the process with an error of the command line, which starts as every other error; or with a help or a version.
fn end(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    match text.strip_prefix("error: ") {
        Some(rest) => {
            note!("chancery: {}", rest.trim_end());
            std::process::exit(error.exit_code())
        }
        None => error.exit(),
    }
}

impl CliArgs {
    /// Returns the context of a client command, if there is one. Other commands have none: a server has its own settings.
    fn selected_context(&self) -> Result<Option<SelectedContext>, CliError> {
        let named = self.globals.context.as_deref();
        match (&self.command, named) {
            (CliCommand::Client(_) | CliCommand::Config { .. }, _) => selected_context(named),
            (_, None) => Ok(None),
            (_, Some(_)) => Err(CliError::usage(
                "invalid flag --context: must be used with a command that sends requests\n\
                 hint: the context of a kubeconfig is --kube-context",
            )),
        }
    }

    /// Returns the settings of this command: flags override the environment, which overrides the file, which overrides the
    /// context.
    pub fn config(&self) -> Result<ServiceConfig, CliError> {
        let globals = &self.globals;
        let mut flags = vec![
            ("server", "--server", globals.server.clone()),
            ("fleet", "--fleet", globals.fleet.clone()),
            ("actor", "--actor", globals.actor.clone()),
        ];
        if let CliCommand::Local(command) = &self.command {
            match command {
                LocalCommand::Dev(server) | LocalCommand::Serve(server) => flags.extend([
                    ("data_dir", "--data-dir", server.data_dir.clone()),
                    ("listen", "--listen", server.listen.clone()),
                    ("journal", "--journal", server.journal.clone()),
                    ("fleets", "--fleets", server.fleets.clone()),
                    ("advertise", "--advertise", server.advertise.clone()),
                    ("embedded_executors", "--embedded-executors", server.embedded_executors.clone()),
                    ("log_filter", "--log-filter", server.log_filter.clone()),
                    ("log_format", "--log-format", server.log_format.clone()),
                ]),
                LocalCommand::InitTopics { journal, .. } | LocalCommand::Import { journal, .. } => {
                    flags.push(("journal", "--journal", journal.clone()));
                }
                LocalCommand::Doctor { journal, data_dir, .. } => flags.extend([
                    ("journal", "--journal", journal.clone()),
                    ("data_dir", "--data-dir", data_dir.clone()),
                ]),
                LocalCommand::Replay(replay) => flags.push(("listen", "--listen", replay.listen.clone())),
                LocalCommand::Executor(executor) => flags.extend([
                    ("log_filter", "--log-filter", executor.log_filter.clone()),
                    ("log_format", "--log-format", executor.log_format.clone()),
                ]),
                _ => {}
            }
        }
        let flags = flags.into_iter().filter_map(|(name, flag, value)| Some((name, flag, value?))).collect();
        let mut config = ServiceConfig::load(globals.config.as_deref(), self.selected_context()?, flags)?;
        if let CliCommand::Local(LocalCommand::Dev(server) | LocalCommand::Serve(server)) = &self.command {
            config.accept_clock = server.accept_clock;
            config.kafka.correct_events = server.correct_events;
            config.loss = if server.accept_loss { OnLoss::Accept } else { OnLoss::Refuse };
            config.skip_inbox(server.skip_inbox)?;
        }
        Ok(config)
    }

    /// Returns the context that a client command needs.
    pub fn context(&self, config: &ServiceConfig) -> CliContext {
        let (server, fleet, actor) = (config.server.clone(), config.fleet.clone(), config.actor.clone());
        let context = CliContext::new(server, fleet, actor, self.globals.output.clone());
        CliContext { idempotency_key: self.globals.idempotency_key.clone(), ..context }
    }

    /// Returns the output format, if a flag gives it.
    pub fn output(&self) -> Option<OutputFormat> {
        self.globals.output.as_ref().map(|output| output.format)
    }
}

impl From<InvalidConfig> for CliError {
    fn from(error: InvalidConfig) -> CliError {
        CliError::usage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::config::ConfigLayers;

    #[test]
    fn the_command_line_is_sound() {
        CliArgs::command().debug_assert();
        for line in [
            "chancery get no",
            "chancery explain",
            "chancery explain plan.spec.payloads --recursive",
            "chancery get operations --filter state=running --all",
            "chancery approve --plan web -y",
            "chancery diff -f web.yaml",
            "chancery edit plan web",
            "chancery edit deployment/web/d-1",
            "chancery scale web --count 3",
            "chancery status -o json",
            "chancery version --client",
            "chancery get nodes --context prod",
            "chancery context set prod --server http://127.0.0.1:7441 --fleet main",
            "chancery context show",
            "chancery delete node a b -y",
            "chancery delete node/a plan/b --wait --timeout 5m",
            "chancery wait replica/x --for phase=running",
            "chancery describe node/node-1",
            "chancery get -w replicas -o jsonl",
            "chancery get nodes,plans -o jsonpath={.nodes[*].name}",
            "chancery get all --no-headers --sort-by .created_at",
            "chancery stop web-7f3k --idempotency-key k",
            "chancery completion zsh",
            "chancery man d",
            "chancery ready --server http://127.0.0.1:7441",
            "chancery relocate replica/web-7f3k --to node-2",
            "chancery restart web-7f3k",
            "chancery start web-7f3k --node node-2",
            "chancery create replica --plan web --node node-2",
            "chancery pause deployment web/d-1",
            "chancery promote deployment/web/d-1",
            "chancery schedule disruption node-1/switch --start 2h --drain --reason new",
            "chancery schedule disruption node-1/switch --start 2026-11-21T22:00:00Z",
            "chancery approve disruption node-1/switch",
            "chancery drain node-1 --wait --timeout 5m",
            "chancery apply -f x.yaml --supersede",
            "chancery rollback web",
            "chancery rollback web --to d-1 --name back",
            "chancery delete plan web --cascade",
            "chancery discover nodes --cluster pods --kube-context prod",
            "chancery replay d --until 120.1f3a5c7e9b2d4f60 --listen 127.0.0.1:0 -o json",
            "chancery replay --until 2026-11-21T22:00:00Z",
            "chancery upgrade check d --limit 20 -o json",
            "chancery upgrade check",
            "chancery doctor --cluster pods --namespace ops --kubeconfig f",
        ] {
            assert!(CliArgs::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in [
            "chancery drain node-1 --timeout 5m",
            "chancery get nodes -o jsonpath",
            "chancery get nodes -o jsonpath={.name",
            "chancery drain node-1 --dry-run --wait",
            "chancery schedule node-1/x",
            "chancery schedule disruption node-1/x --start tomorrow",
            "chancery create replica",
            "chancery diff",
            "chancery diff 120 -f web.yaml",
            "chancery explain pod.spec",
            "chancery discover nodes",
            "chancery doctor --cluster pods",
            "chancery replay --until yesterday",
            "chancery upgrade",
            "chancery upgrade check --limit 65536",
        ] {
            assert!(CliArgs::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn commands_of_the_program_alone_are_never_suggested_and_help_is_a_command() {
        for line in ["chancery supervisr", "chancery trampolin", "chancery demo-payloa"] {
            let error = CliArgs::try_parse_from(line.split(' ')).expect_err(line).to_string();
            assert!(
                !["supervisor", "trampoline", "demo-payload"].iter().any(|word| error.contains(word)),
                "{error}"
            );
        }
        let error = CliArgs::try_parse_from(["chancery", "help", "scale"]).expect_err("the help");
        assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp);
        assert!(error.to_string().contains("--count"), "{error}");
    }

    #[test]
    fn settings_show_their_origin() {
        let flags = vec![("server", "--server", "http://127.0.0.1:1".to_owned())];
        let config =
            ServiceConfig::read(ConfigLayers { flags, ..ConfigLayers::default() }).expect("a server");
        let cli = CliArgs::try_parse_from(["chancery", "config", "show"]).expect("a command");
        let mut out = Vec::new();
        show_config(&config, &cli.context(&config), &mut out).expect("a table");
        let text = String::from_utf8(out).expect("text");
        assert!(
            text.lines().any(|line| line.split_whitespace().eq(["session_lease", "15s", "default"])),
            "{text}"
        );
        assert!(text.lines().any(|line| line.starts_with("server ") && line.ends_with("--server")), "{text}");
    }
}
