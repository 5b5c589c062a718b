//! Walk-throughs of the README and of the operations page, command by command, against the real program: the pages show what
//! users see. They run on processes, on a real Kubernetes API and on virtual machines.
//!
//! Names, ids, times, process ids and ports vary, and are compared by kind. A name such as `web-1k00` in the
//! README is matched with the actual name, and so is the position in `--as-of 120`. `UPDATE=1` writes the actual output into the page.
//!
//! The output is the same wherever the journal is: except for these kinds, every line is equal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use chancery_tests::kubernetes::{KubernetesApi, shared};
use chancery_tests::qemu::build_guest;
use chancery_tests::{JournalBackend, ServerProcess, until};
use regex::Regex;

/// Command of the README, and its expected output.
struct ShownCommand {
    command: String,
    output: Vec<String>,
}

/// Pattern of variable text by kind; earlier kinds win.
fn variable() -> Regex {
    Regex::new(concat!(
        r"(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}(-[0-9a-f]{4}-[0-9a-f]{12})?)",
        r"|(?P<pod>\bnginx(-[0-9a-f]{4,12}){5}-\d+)",
        r"|(?P<replica>\b(web|nginx|guest)-[0-9a-z]{4,12}\b)",
        r"|(?P<time>\d{4}-\d\d-\d\dT[0-9:.]+Z|\b\d\d:\d\d:\d\d(\.\d+)?\b)",
        r"|(?P<position>^ *\d+ |because of \d+| at \d+| by: \d+|─ operation: \d+|--as-of \d+|\bposition \d+)",
        r"|(?P<address>127\.0\.0\.1:\d+|\b10\.\d+\.\d+\.\d+\b)",
        r"|(?P<hash>\b[0-9a-f]{16,64}\b)",
        r"|(?P<age>\b\d+(\.\d+)?(ms|s|m)\b)",
        r"|(?P<pid>(?:\bpid |process )\d+)",
        r"|(?P<path>/[\w./-]*chancery-[\w./-]+)",
        // An executor within the server, or the one of the standby servers.
        r"|(?P<executor>\b(embedded-local|local-1)\b)",
    ))
    .expect("a regular expression")
}

/// Splits a line into its constant text and its variable parts.
fn reduce(line: &str, variable: &Regex) -> (String, Vec<String>) {
    let mut taken = Vec::new();
    let plain = variable.replace_all(line, |found: &regex::Captures<'_>| {
        taken.push(found[0].to_owned());
        let kind = variable.capture_names().flatten().find(|name| found.name(name).is_some());
        format!("<{}>", kind.unwrap_or("?"))
    });
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    (Regex::new("-{3,}|─+|━+").expect("a regular expression").replace_all(&plain, "-").into_owned(), taken)
}

/// Walk-through of a page.
struct WalkThrough {
    /// Line before it.
    start: &'static str,
    /// Line after it.
    end: &'static str,
}

const ON_PROCESSES: WalkThrough =
    WalkThrough { start: "<!-- walk-through -->", end: "<!-- end of the walk-through -->" };
const ON_KUBERNETES: WalkThrough = WalkThrough {
    start: "<!-- walk-through on Kubernetes -->",
    end: "<!-- end of the walk-through on Kubernetes -->",
};

const OF_A_MACHINE: WalkThrough = WalkThrough {
    start: "<!-- walk-through of a virtual machine -->",
    end: "<!-- end of the walk-through of a virtual machine -->",
};

const OF_THE_PAST: WalkThrough = WalkThrough {
    start: "<!-- walk-through of the past -->",
    end: "<!-- end of the walk-through of the past -->",
};

impl WalkThrough {
    fn part<'a>(&self, readme: &'a str) -> &'a str {
        let (_, rest) =
            readme.split_once(self.start).expect("the README marks where the walk-through starts");
        rest.split_once(self.end).expect("and where it ends").0
    }

    /// Commands of the walk-through, from the blocks of console text.
    fn read(&self, readme: &str) -> Vec<ShownCommand> {
        let mut shown: Vec<ShownCommand> = Vec::new();
        let mut inside = false;
        for line in self.part(readme).lines() {
            match line {
                "```console" => inside = true,
                "```" => inside = false,
                _ if !inside => {}
                _ => match line.strip_prefix("$ ") {
                    Some(command) => {
                        shown.push(ShownCommand { command: command.to_owned(), output: Vec::new() });
                    }
                    None => shown.last_mut().expect("a command comes first").output.push(line.to_owned()),
                },
            }
        }
        shown
    }

    /// README with the actual commands and output in place of the old ones.
    fn written(&self, readme: &str, printed: &[ShownCommand]) -> String {
        let mut printed = printed.iter().peekable();
        let (mut text, mut inside, mut skipping) = (String::new(), false, false);
        let walk = self.part(readme);
        for line in walk.lines() {
            if line == "```console" {
                inside = true;
            } else if line == "```" {
                (inside, skipping) = (false, false);
            }
            let command = inside && line.starts_with("$ ");
            if skipping && !command {
                continue;
            }
            skipping = command;
            let played = printed.next_if(|_| command);
            let typed = played.map(|played| format!("$ {}", played.command));
            text.push_str(typed.as_deref().unwrap_or(line));
            text.push('\n');
            for printed in played.into_iter().flat_map(|played| &played.output) {
                text.push_str(printed);
                text.push('\n');
            }
        }
        readme.replace(walk, &text)
    }
}

fn readme() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")
}

fn is_updating() -> bool {
    std::env::var_os("UPDATE").is_some()
}

/// Plays a walk-through, and compares the output with the README's, unless the README is being updated. Returns the commands
/// and their output.
fn play(
    walk: &WalkThrough,
    readme: &str,
    server: &ServerProcess,
    kubernetes: Option<&KubernetesApi>,
) -> Vec<ShownCommand> {
    let variable = variable();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut printed = Vec::new();
    for ShownCommand { command, output } in walk.read(readme) {
        let here = |found: &regex::Captures<'_>| {
            let text = found[0].to_owned();
            match text.strip_prefix("--as-of ") {
                Some(position) => {
                    format!("--as-of {}", names.get(position).map_or(position, String::as_str))
                }
                None => names.get(&text).cloned().unwrap_or(text),
            }
        };
        let actual = variable.replace_all(&command, here).into_owned();
        let typed = actual.clone();
        let mut words = actual.split_whitespace();
        let found = match (words.next(), kubernetes) {
            (Some("chancery"), _) => {
                let found = server.cli(&words.collect::<Vec<_>>());
                // A user types slower than the executor starts. Names derive from positions, and rows are sorted
                // by name.
                until("the executor is there", || {
                    (!server.client().items("sessions?state=open").is_empty()).then_some(())
                });
                found
            }
            (Some("curl"), _) => fetch(words.last().expect("an address")),
            (Some("kubectl"), Some(api)) => api.kubectl(&words.collect::<Vec<_>>()),
            (other, _) => panic!("no walk-through runs {other:?}"),
        };
        let found: Vec<_> = found.lines().map(|line| line.trim_end().to_owned()).collect();
        let reduced = |lines: &[String]| lines.iter().map(|line| reduce(line, &variable)).collect::<Vec<_>>();
        let (documented, seen) = (reduced(&output), reduced(&found));
        let plain =
            |lines: &[(String, Vec<String>)]| lines.iter().map(|(line, _)| line.clone()).collect::<Vec<_>>();
        if !is_updating() {
            assert_eq!(plain(&documented), plain(&seen), "$ {command}\nprinted:\n{}", found.join("\n"));
        }
        printed.push(ShownCommand { command: typed, output: found });
        // An outdated README may have other text in the same lines.
        let both = documented
            .into_iter()
            .zip(seen)
            .filter(|((_, documented), (_, seen))| documented.len() == seen.len());
        for (there, here) in both.flat_map(|((_, documented), (_, seen))| documented.into_iter().zip(seen)) {
            if let (Some(there), Some(here)) = (number(&there), number(&here)) {
                names.entry(there.to_owned()).or_insert(here.to_owned());
            }
            names.entry(there).or_insert(here);
        }
    }
    printed
}

/// Returns the number in the text of a position.
fn number(text: &str) -> Option<&str> {
    text.split_whitespace().last().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
}

fn play_at(place: JournalBackend) {
    let path = readme();
    let readme = std::fs::read_to_string(&path).expect("the README");
    let mut site = place.start(&[]);
    let printed = play(&ON_PROCESSES, &readme, &site.server, None);
    // The README is written from the variant that readers are asked to start.
    if is_updating() && place == JournalBackend::Embedded {
        std::fs::write(&path, ON_PROCESSES.written(&readme, &printed)).expect("the README can be written");
    }
    site.stop().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn the_walk_through_of_the_readme_prints_what_it_shows() {
    play_at(JournalBackend::Embedded);
}

#[test]
fn the_walk_through_prints_the_same_with_the_journal_on_one_broker() {
    play_at(JournalBackend::OneBroker);
}

#[test]
fn the_walk_through_prints_the_same_with_the_journal_on_three_brokers() {
    play_at(JournalBackend::ThreeBrokers);
}

#[test]
fn the_walk_through_on_kubernetes_prints_what_the_readme_shows() {
    let path = readme();
    let readme = std::fs::read_to_string(&path).expect("the README");
    let api = shared();
    for node in ["node-1", "node-2"] {
        api.node(node);
    }
    let kubeconfig = api.kubeconfig().to_str().expect("text");
    let server = ServerProcess::start_with(&[("KUBECONFIG", kubeconfig)]);
    let printed = play(&ON_KUBERNETES, &readme, &server, Some(api));
    if is_updating() {
        std::fs::write(&path, ON_KUBERNETES.written(&readme, &printed)).expect("the README can be written");
    }
}

#[test]
fn the_walk_through_of_a_virtual_machine_prints_what_the_readme_shows() {
    let path = readme();
    let readme = std::fs::read_to_string(&path).expect("the README");
    let images = tempfile::tempdir().expect("a directory");
    build_guest(images.path());
    let server =
        ServerProcess::start_with(&[("CHANCERY_QEMU_IMAGES", images.path().to_str().expect("text"))]);
    let printed = play(&OF_A_MACHINE, &readme, &server, None);
    if is_updating() {
        std::fs::write(&path, OF_A_MACHINE.written(&readme, &printed)).expect("the README can be written");
    }
}

#[test]
fn the_walk_through_of_the_past_prints_what_the_operations_page_shows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let server = ServerProcess::start();
    let printed = play(&OF_THE_PAST, &page, &server, None);
    if is_updating() {
        std::fs::write(&path, OF_THE_PAST.written(&page, &printed)).expect("the page can be written");
    }
}

fn fetch(url: &str) -> String {
    ureq::get(url).call().expect("it answers").body_mut().read_to_string().expect("text")
}
