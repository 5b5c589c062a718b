//! The program: reads the command line and calls the command.
//!
//! Hidden commands are handled first, before any thread exists: their process becomes a payload, or a parent
//! of payloads.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use chancery::cli::{
    self, CliCommand, ConfigCommand, CredentialArgs, DiscoverCommand, ExecutorArgs, LocalCommand, ReplayArgs,
    UpgradeCheckArgs, UpgradeCommand,
};
use chancery::config::{self, JournalLocation, LogFormat, ServiceConfig};
use chancery::data_dir::ServerDataDir;
use chancery::executors::{ProcessLimits, RuntimeAccess};
use chancery::modes::PermissionFix;
use chancery::open_files::OpenFileLimit;
use chancery::replay::ReplayTarget;
use chancery::{demo, doctor, memory, modes, payload, remote, replay, server, upgrade, verify};
use chancery_cli::{CliError, CliExit, OutputFormat, note};
use chancery_events::name::{ClusterName, Namespace};
use chancery_executor::directory::CopyPolicy;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Requests, events and rows are many small allocations that are often freed on another thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next().as_deref().and_then(|word| word.to_str()) {
        Some("supervisor") => match args.next() {
            Some(dir) => return chancery_executor::process::supervisor_main(Path::new(&dir)),
            None => return refuse("cannot start supervisor: no incarnation directory"),
        },
        Some("trampoline") => return chancery_executor::process::trampoline_main(),
        Some("demo-payload") => return serve_payload(&args.collect::<Vec<_>>()),
        Some(_) | None => {}
    }
    let cli = cli::parse();
    let done = cli.config().and_then(|config| {
        let (context, out) = (cli.context(&config), &mut std::io::stdout());
        match &cli.command {
            CliCommand::Client(command) => chancery_cli::run(command, &context, out)?,
            CliCommand::Context { what } => chancery_cli::run_contexts(what, &cli.globals, &context, out)?,
            CliCommand::Config { what: ConfigCommand::Show } => cli::show_config(&config, &context, out)?,
            CliCommand::Local(command) => {
                // Before any thread: every command here keeps the contents of plans private.
                modes::keep_private();
                return Ok(local(command, config, cli.output()).unwrap_or_else(|error| {
                    note!("chancery: {error:#}");
                    error.downcast_ref::<CliError>().map_or(ExitCode::FAILURE, |error| error.exit.into())
                }));
            }
        }
        Ok(ExitCode::SUCCESS)
    });
    done.unwrap_or_else(|error| {
        if !error.message.is_empty() {
            note!("chancery: {error}");
        }
        error.exit.into()
    })
}

/// Prints a text. A reader that stops early, as in `| head`, is no failure.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write output"),
    }
}

fn refuse(why: &str) -> ExitCode {
    note!("chancery: {why}");
    CliExit::Usage.into()
}

fn local(command: &LocalCommand, config: ServiceConfig, output: Option<OutputFormat>) -> Result<ExitCode> {
    match command {
        LocalCommand::Dev(flags) | LocalCommand::Serve(flags) => {
            return serve(config, copies(flags.adopt_copy));
        }
        LocalCommand::Executor(flags) => return execute(flags, &config),
        LocalCommand::Demo(flags) => {
            let end = if flags.keep { demo::DemoCleanup::Keep } else { demo::DemoCleanup::Clean };
            demo::run(flags.data_dir.as_deref(), end)?;
        }
        LocalCommand::Verify { dir } => {
            return check(dir.as_deref().unwrap_or(&config.data_dir), output);
        }
        LocalCommand::Replay(flags) => return replay_journal(flags, config, output),
        LocalCommand::Upgrade { what: UpgradeCommand::Check(flags) } => {
            return check_upgrade(flags, &config, output);
        }
        #[cfg(feature = "kafka")]
        LocalCommand::InitTopics { partitions, replication_factor: copies, .. } => {
            log(&config);
            let done = chancery::kafka::commands::init_topics(&config, *partitions, *copies);
            print(&runtime()?.block_on(done)?)?;
        }
        LocalCommand::Discover { what: DiscoverCommand::Nodes { cluster, credentials } } => {
            discover_nodes(&config, cluster, credentials)?;
        }
        LocalCommand::Doctor { fix, cluster, namespace, credentials, .. } => {
            anyhow::ensure!(
                output.is_none_or(|output| output == OutputFormat::Table),
                CliError::usage("invalid output format: doctor has only text")
            );
            let is_well = examine(&config, if *fix { PermissionFix::Yes } else { PermissionFix::No })?;
            let has_access = match (cluster, namespace) {
                (Some(cluster), Some(namespace)) => {
                    examine_kubernetes(&config, cluster, namespace, credentials)?
                }
                _ => true,
            };
            return Ok(if is_well && has_access { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        #[cfg(feature = "kafka")]
        LocalCommand::Import { dir, timeout, .. } => {
            log(&config);
            let runtime = runtime()?;
            let _entered = runtime.enter();
            let dir = dir.as_deref().unwrap_or(&config.data_dir);
            chancery::kafka::commands::import(&config, dir, *timeout, print)?;
        }
        #[cfg(not(feature = "kafka"))]
        LocalCommand::InitTopics { .. } | LocalCommand::Import { .. } => {
            anyhow::bail!(chancery::fleet::NO_KAFKA)
        }
        LocalCommand::Openapi => {
            print(&(serde_json::to_string_pretty(&chancery_api::openapi())? + "\n"))?;
        }
        LocalCommand::Completion { shell } => {
            let script = cli::completion(*shell);
            print(&String::from_utf8(script).context("cannot print script: not UTF-8")?)?;
        }
        LocalCommand::Man { dir } => {
            cli::manual_pages(dir).with_context(|| format!("cannot write pages to {}", dir.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn copies(adopt: bool) -> CopyPolicy {
    if adopt { CopyPolicy::Adopt } else { CopyPolicy::Refuse }
}

/// Checks this host, and the topics of a journal on Kafka.
/// Whether all is well.
fn examine(config: &ServiceConfig, fix: PermissionFix) -> Result<bool> {
    log(config);
    let (text, mut is_well) = doctor::host(config);
    print(&text)?;
    for (text, is_right) in [modes::doctor(&config.data_dir, fix)?, doctor::clock(config)?] {
        print(&text)?;
        is_well &= is_right;
    }
    if let JournalLocation::Kafka { .. } = config.journal {
        #[cfg(feature = "kafka")]
        {
            let (text, is_safe) = runtime()?.block_on(chancery::kafka::commands::doctor(config))?;
            print(&text)?;
            is_well &= is_safe;
        }
        #[cfg(not(feature = "kafka"))]
        anyhow::bail!(chancery::fleet::NO_KAFKA);
    }
    Ok(is_well)
}

#[cfg(feature = "kubernetes")]
fn discover_nodes(config: &ServiceConfig, cluster: &ClusterName, credentials: &CredentialArgs) -> Result<()> {
    let discovered = chancery::kubernetes::discover_nodes(&config.fleet, cluster, credentials);
    let (text, notes) = runtime()?.block_on(discovered)?;
    print(&text)?;
    for line in notes {
        note!("hint: {line}");
    }
    Ok(())
}

#[cfg(not(feature = "kubernetes"))]
fn discover_nodes(_: &ServiceConfig, _: &ClusterName, _: &CredentialArgs) -> Result<()> {
    anyhow::bail!("cannot discover nodes: {}", chancery::executors::NO_KUBERNETES)
}

/// Checks the access of an executor to the API of its Kubernetes cluster.
#[cfg(feature = "kubernetes")]
fn examine_kubernetes(
    config: &ServiceConfig,
    cluster: &ClusterName,
    namespace: &Namespace,
    credentials: &CredentialArgs,
) -> Result<bool> {
    let report = chancery::kubernetes::doctor(&config.fleet, cluster, namespace, credentials);
    let (text, is_well) = runtime()?.block_on(report);
    print(&text)?;
    Ok(is_well)
}

#[cfg(not(feature = "kubernetes"))]
fn examine_kubernetes(_: &ServiceConfig, _: &ClusterName, _: &Namespace, _: &CredentialArgs) -> Result<bool> {
    anyhow::bail!("cannot check access to Kubernetes: {}", chancery::executors::NO_KUBERNETES)
}

/// Starts to export spans, if the build can and the environment asks for it, until the result is dropped.
#[cfg(feature = "otel")]
fn spans() -> Result<chancery::otel::SpanExporter> {
    chancery::otel::SpanExporter::start()
}

/// Export of a build that has none.
#[cfg(not(feature = "otel"))]
struct NoSpanExporter;

#[cfg(not(feature = "otel"))]
#[expect(clippy::unnecessary_wraps, reason = "the form of a build with the feature")]
fn spans() -> Result<NoSpanExporter> {
    let endpoints = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    if endpoints.iter().any(|name| std::env::var_os(name).is_some()) {
        tracing::warn!("no spans are exported: this build is without the feature otel");
    }
    Ok(NoSpanExporter)
}

fn serve(config: ServiceConfig, copies: CopyPolicy) -> Result<ExitCode> {
    log(&config);
    let directory = ServerDataDir::take(&config.data_dir)?.claim(copies)?;
    modes::warn(&config.data_dir);
    let ended = {
        let _spans = spans()?;
        let runtime = runtime()?;
        let ended = runtime.block_on(server::run(config, directory));
        // Requests to brokers that do not answer are abandoned.
        runtime.shutdown_timeout(LAST_TASKS);
        ended
    };
    if let Err(error) = ended {
        note!("chancery: {error:#}");
        // Threads may wait for a disk that does not answer.
        std::process::exit(1);
    }
    Ok(ExitCode::SUCCESS)
}

fn execute(flags: &ExecutorArgs, config: &ServiceConfig) -> Result<ExitCode> {
    log(config);
    let _spans = spans()?;
    let dir = flags.dir();
    let means = ProcessLimits::of(config, &OpenFileLimit::raise(), copies(flags.adopt_copy));
    let who = flags.who(&config.fleet);
    let (name, cluster, server) = (&who.executor, &who.cluster, &config.server);
    let store = if let RuntimeAccess::Kubernetes(access) = &who.runtime {
        format!("namespace {}", access.namespace)
    } else {
        format!("directory {}", dir.display())
    };
    note!("chancery: executor {name} of cluster {cluster}, server {server}, {store}");
    let run = remote::run(config, who.clone(), &dir, &means, flags.metrics_listen);
    let runtime = runtime()?;
    let ended = runtime.block_on(run);
    // Threads may wait for a disk that does not answer.
    runtime.shutdown_timeout(LAST_TASKS);
    Ok(match ended? {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            let exit = ExecutorArgs::exit(&stop);
            note!("chancery: {:#}", anyhow::Error::new(stop).context("cannot drive cluster"));
            exit
        }
    })
}

/// Time for tasks to end when the server has ended.
const LAST_TASKS: Duration = Duration::from_secs(1);

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("cannot start runtime")?;
    runtime.spawn(memory::return_unused());
    Ok(runtime)
}

fn log(config: &ServiceConfig) {
    // A line that cannot be written is dropped: an error report would be another line, which panics.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let lines = match config.log_format {
        LogFormat::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(config.log_filter.clone()).with(lines).init();
    for slip in config::typos(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())) {
        tracing::warn!("{slip}");
    }
}

fn check(dir: &Path, output: Option<OutputFormat>) -> Result<ExitCode> {
    let json = is_json(output)?;
    let mut holds = true;
    for journal in verify::check(dir)? {
        match journal {
            Ok(journal) => {
                holds &= journal.holds();
                print(&if json { format!("{}\n", journal.json()) } else { journal.text() })?;
            }
            Err(error) => {
                holds = false;
                note!("chancery: {error:#}");
            }
        }
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Replays a journal, and serves it if that was requested and nothing contradicts it.
fn replay_journal(
    flags: &ReplayArgs,
    config: ServiceConfig,
    output: Option<OutputFormat>,
) -> Result<ExitCode> {
    log(&config);
    let json = is_json(output)?;
    let listener = flags.listen.as_ref().map(|_| replay::listen(config.listen)).transpose()?;
    let dir = flags.dir.as_deref().unwrap_or(&config.data_dir);
    let journal = ReplayTarget::find(dir, &config.fleet)?.replay(flags.until, |_| ())?;
    print(&if json { format!("{}\n", journal.json()?) } else { journal.text()? })?;
    let contradictions = journal.contradictions();
    let reported = report(&contradictions);
    if let (true, Some(listener)) = (contradictions.is_empty(), listener) {
        let runtime = runtime()?;
        runtime.block_on(replay::serve(config, journal, listener))?;
        runtime.shutdown_timeout(LAST_TASKS);
    }
    Ok(reported)
}

/// Checks a journal and its rows before an upgrade to this build.
fn check_upgrade(
    flags: &UpgradeCheckArgs,
    config: &ServiceConfig,
    output: Option<OutputFormat>,
) -> Result<ExitCode> {
    log(config);
    let json = is_json(output)?;
    let dir = flags.dir.as_deref().unwrap_or(&config.data_dir);
    let checked = upgrade::check(dir, &config.fleet, usize::from(flags.limit))?;
    print(&if json { format!("{}\n", checked.json()?) } else { checked.text()? })?;
    Ok(report(&checked.contradictions()))
}

/// Whether a command that prints text or JSON prints JSON.
fn is_json(output: Option<OutputFormat>) -> Result<bool> {
    match output {
        None | Some(OutputFormat::Table) => Ok(false),
        Some(OutputFormat::Json | OutputFormat::Jsonl) => Ok(true),
        Some(_) => Err(CliError::usage("invalid output format: must be table, json or jsonl").into()),
    }
}

/// Writes what is wrong to standard error, and returns the exit code.
fn report(contradictions: &[String]) -> ExitCode {
    for contradiction in contradictions {
        note!("chancery: {contradiction}");
    }
    if contradictions.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Serves the payload; the only arguments are `--port N`.
fn serve_payload(args: &[OsString]) -> ExitCode {
    let args: Vec<_> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let [flag, port] = args[..] else { return refuse("invalid arguments: must be --port NUMBER") };
    let Some(port) = port.parse().ok().filter(|_| flag == "--port") else {
        return refuse("invalid arguments: must be --port NUMBER");
    };
    match payload::serve(port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note!("demo-payload: {error}");
            ExitCode::FAILURE
        }
    }
}
