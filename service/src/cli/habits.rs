//! Advice for what users of other tools type: commands, flags and kinds of kubectl, Nomad and Argo CD that have another name
//! here.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands of other tools, and what to use instead.
const COMMANDS: &[(&str, &str)] = &[
    ("agent", "use `chancery serve`, or `chancery dev` for development"),
    ("alloc", "use `chancery get incarnations`, `chancery logs`, `chancery stop`"),
    ("annotate", "labels of nodes and plans are in their manifests: `chancery apply -f FILE`"),
    ("api-resources", "use `chancery explain`"),
    ("app", "use `chancery get plans`, `chancery describe plan NAME`"),
    (
        "attach",
        "use `chancery console REPLICA` for virtual machines, `chancery logs REPLICA --follow` otherwise",
    ),
    ("autoscale", "use `chancery scale PLAN --count NUMBER`"),
    ("cluster-info", "use `chancery status`"),
    (
        "cordon",
        "use `chancery schedule disruption NODE/NAME`: the node takes no placements while it is approved",
    ),
    ("current-context", "use `chancery context show`"),
    ("deployment", "use `chancery get deployments`, `chancery describe deployment PLAN/NAME`"),
    ("eval", "use `chancery get operations`, `chancery why KIND/NAME`"),
    ("exec", "use `chancery console REPLICA` for virtual machines, `chancery logs REPLICA` otherwise"),
    ("get-contexts", "use `chancery context list`"),
    (
        "job",
        "use `chancery get plans`, `chancery apply -f FILE`, `chancery scale`, `chancery rollback`, `chancery stop`",
    ),
    ("kill", "use `chancery stop REPLICA`"),
    ("label", "labels of nodes and plans are in their manifests: `chancery apply -f FILE`"),
    ("ls", "use `chancery get KIND`"),
    ("monitor", "use `chancery events --follow`"),
    ("namespace", "namespaces are fields of plans: `chancery get plans --filter namespace=NAME`"),
    ("node", "use `chancery get nodes`, `chancery describe node NAME`"),
    ("patch", "use `chancery apply -f FILE`"),
    ("plan", "use `chancery apply --dry-run -f FILE`"),
    ("port-forward", "use the addresses of `chancery get incarnations -o wide`"),
    ("ps", "use `chancery get replicas`"),
    ("replace", "use `chancery apply -f FILE`"),
    (
        "rollout",
        "use `chancery rollback`, `pause`, `resume`, `cancel`, `promote`, `restart`, `wait --for state=completed`",
    ),
    ("run", "use `chancery apply -f FILE` with a plan and a deployment"),
    ("set", "use `chancery apply -f FILE`"),
    ("set-context", "use `chancery context set NAME --server URL`"),
    ("server", "use `chancery serve`, `chancery ready`"),
    ("sync", "use `chancery apply -f FILE`"),
    ("system", "nothing must be collected: the server removes the rows of what has ended"),
    ("taint", "use `chancery schedule disruption NODE/NAME`, or labels and capabilities of nodes"),
    ("top", "use `chancery get nodes`: free and total resources of each node"),
    ("ui", "use `chancery status`; metrics are at `/metrics`"),
    ("uncordon", "use `chancery complete disruption NODE/NAME`, `chancery undrain NODE` after a drain"),
    ("use-context", "use `chancery context use NAME`"),
    ("validate", "use `chancery apply --dry-run -f FILE`"),
    ("view", "use `chancery config show`"),
    ("volume", "use `chancery get volumes`, `chancery describe volume NAME`"),
];

/// Flags of other tools, and what to use instead.
const FLAGS: &[(&str, &str)] = &[
    ("--all-containers", "all outputs are shown; `--payload NAME` selects one"),
    ("--all-namespaces", "a fleet lists the plans of all namespaces; `--filter namespace=NAME` selects some"),
    ("--as", "use `--actor NAME`"),
    ("--field-selector", "use `--filter NAME=VALUE`"),
    ("--filename", "use `chancery apply -f FILE`, `chancery delete -f FILE`, `chancery diff -f FILE`"),
    ("--force", "use `chancery expunge NODE` for a lost node; nothing else is ended without proof"),
    ("--grace-period", "use `timeouts` of the plan"),
    ("--ignore-not-found", "`delete -f FILE` skips what does not exist"),
    ("--kubeconfig", "use `--server URL`, or `--context NAME`"),
    ("--kustomize", "use `kustomize build DIR | chancery apply -f -`"),
    ("--namespace", "use `--filter namespace=NAME` with `get plans`; names of plans are unique in the fleet"),
    ("--recursive", "name each directory: `-f DIR -f DIR/SUB`"),
    ("--replicas", "use `--count NUMBER`"),
    ("--server-side", "leave the flag out: the server decides every apply"),
    ("--show-labels", "use `-o yaml` to see labels, `-l KEY=VALUE` to select by them"),
    ("--timestamps", "processes write their own; `--since TIME` selects"),
    ("--to-revision", "use `--to DEPLOYMENT`"),
    ("--validate", "leave the flag out: every manifest is validated"),
    ("-A", "a fleet lists the plans of all namespaces; `--filter namespace=NAME` selects some"),
    ("-R", "name each directory: `-f DIR -f DIR/SUB`"),
    ("-c", "use `--payload NAME`"),
    ("-f", "use `chancery apply -f FILE`, `chancery delete -f FILE`, `chancery diff -f FILE`"),
    ("-k", "use `kustomize build DIR | chancery apply -f -`"),
    ("-n", "use `--filter namespace=NAME` with `get plans`; names of plans are unique in the fleet"),
];

/// Flags that have a value in other tools and none here, and what to use instead.
const VALUES: &[(&str, &str)] = &[(
    "--dry-run",
    "write --dry-run alone: the server always decides a dry run; a real apply has no such flag",
)];

/// Kinds of other tools, and what to use instead.
const KINDS: &[(&str, &str)] = &[
    ("allocations", "use incarnations"),
    ("allocs", "use incarnations"),
    ("applications", "use plans"),
    ("apps", "use plans"),
    ("daemonsets", "use plans"),
    ("events", "use `chancery events`"),
    ("jobs", "use plans"),
    ("ops", "use operations"),
    ("po", "use replicas"),
    ("pod", "use replicas"),
    ("pods", "use replicas"),
    ("pv", "use volumes"),
    ("pvc", "use volumes"),
    ("replicasets", "use deployments"),
    ("rs", "use deployments"),
    ("services", "use plans, which name their service"),
    ("statefulsets", "use plans"),
    ("svc", "use plans, which name their service"),
];

/// Advice for a name where a kind is expected.
const KIND_FIRST: &str = "write the kind before the name, as in `deployment web/d-1` or `deployment/web/d-1`";

/// Adds advice to an error of the command line whose word another tool has.
pub(super) fn advise(error: &mut clap::Error) {
    let (table, word) = match error.kind() {
        ErrorKind::InvalidSubcommand => (COMMANDS, ContextKind::InvalidSubcommand),
        ErrorKind::UnknownArgument => (FLAGS, ContextKind::InvalidArg),
        ErrorKind::InvalidValue => (KINDS, ContextKind::InvalidValue),
        ErrorKind::TooManyValues => (VALUES, ContextKind::InvalidArg),
        _ => return,
    };
    // Arguments that may start with a hyphen are taken as they are.
    if let Some(ContextValue::StyledStrs(tips)) = error.get(ContextKind::Suggested)
        && tips.iter().any(|tip| tip.to_string().contains("as a value, use"))
    {
        error.remove(ContextKind::Suggested);
    }
    let Some(ContextValue::String(word)) = error.get(word) else { return };
    // The kind before a name, and the flag before its value.
    let word = word.split(['/', '=', ' ']).next().unwrap_or_default();
    let is_kind =
        matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(arg)) if arg.contains("KIND"));
    let instead = match table.iter().find(|(known, _)| *known == word) {
        Some((_, instead)) => instead,
        None if is_kind && error.get(ContextKind::SuggestedValue).is_none() => KIND_FIRST,
        None => return,
    };
    let advice = vec![StyledStr::from(instead)];
    // A name that only resembles the word is no help.
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::SuggestedArg);
    error.remove(ContextKind::SuggestedValue);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(advice));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> String {
        let found = super::super::help::command().try_get_matches_from(line.split(' '));
        let mut error = found.expect_err(line);
        advise(&mut error);
        error.to_string()
    }

    #[test]
    fn words_of_other_tools_are_answered_with_those_of_this_one() {
        for (line, wanted) in [
            ("chancery cordon node-1", "tip: use `chancery schedule disruption NODE/NAME`"),
            ("chancery top nodes", "tip: use `chancery get nodes`"),
            ("chancery get pods", "tip: use replicas\n"),
            ("chancery get pod/web-0", "tip: use replicas\n"),
            ("chancery delete po web", "tip: use replicas\n"),
            ("chancery get nodes --field-selector=a=b", "tip: use `--filter NAME=VALUE`"),
            ("chancery scale web --replicas 3", "tip: use `--count NUMBER`"),
            ("chancery get plans -n prod", "tip: use `--filter namespace=NAME`"),
            ("chancery get plans -A", "tip: a fleet lists"),
            ("chancery apply -f x.yaml --dry-run=server", "tip: write --dry-run alone"),
            ("chancery logs web-0 -c app", "tip: use `--payload NAME`"),
            ("chancery config use-context prod", "tip: use `chancery context use NAME`"),
            ("chancery create -f web.yaml", "tip: use `chancery apply -f FILE`"),
            ("chancery apply -k overlay", "tip: use `kustomize build DIR | chancery apply -f -`"),
            ("chancery apply -R -f dir", "tip: name each directory"),
            ("chancery get ops", "tip: use operations\n"),
            ("chancery pause web", "tip: write the kind before the name"),
            ("chancery get nods", "tip: a similar value exists: 'nodes'"),
            ("chancery plan web.yaml", "tip: use `chancery apply --dry-run -f FILE`"),
        ] {
            assert!(error(line).contains(wanted), "{line}: {}", error(line));
        }
        let moment = error("chancery diff -soon");
        assert!(moment.contains("invalid moment"), "{moment}");
        let unknown = error("chancery get nodes --no-such-flag");
        assert!(unknown.contains("--no-such-flag") && !unknown.contains("as a value"), "{unknown}");
        let typo = error("chancery descrbe node/a");
        assert!(typo.contains("'describe'") && !typo.contains("tip: use"), "{typo}");
    }

    #[test]
    fn no_word_is_one_of_this_program() {
        let command = super::super::help::command();
        for (word, _) in COMMANDS {
            assert!(command.find_subcommand(word).is_none(), "{word}");
        }
        for (word, _) in KINDS {
            assert_eq!(chancery_cli::EntityKind::named(word), None, "{word}");
        }
    }
}
