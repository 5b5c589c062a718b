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
    ("cp", "files of a payload are in its working directory: `chancery logs REPLICA` shows its output"),
    (
        "cordon",
        "use `chancery schedule disruption NODE/NAME`: the node takes no placements while it is approved",
    ),
    ("current-context", "use `chancery context show`"),
    (
        "deployment",
        "use `chancery get deployments`, `describe`, `promote`, `pause`, `resume`, `cancel`, `rollback`",
    ),
    ("eval", "use `chancery get operations`, `chancery why KIND/NAME`"),
    ("exec", "use `chancery console REPLICA` for virtual machines, `chancery logs REPLICA` otherwise"),
    ("get-contexts", "use `chancery context list`"),
    ("expose", "use the addresses of `chancery get incarnations -o wide`"),
    ("inspect", "use `chancery describe KIND/NAME`, `chancery get KIND NAME -o yaml`"),
    (
        "job",
        "use `chancery get plans`, `apply -f FILE`, `scale PLAN --count NUMBER`, `rollback`, `delete plan PLAN --cascade`",
    ),
    ("kill", "use `chancery stop REPLICA`"),
    ("label", "labels of nodes and plans are in their manifests: `chancery apply -f FILE`"),
    ("list", "use `chancery get KIND`"),
    ("ls", "use `chancery get KIND`"),
    ("monitor", "use `chancery events --follow`"),
    ("namespace", "namespaces are fields of plans: `chancery get plans --filter namespace=NAME`"),
    (
        "node",
        "use `chancery get nodes`, `chancery describe node NAME`, `chancery drain NODE`, `chancery undrain NODE`",
    ),
    ("patch", "use `chancery apply -f FILE`"),
    ("plan", "use `chancery apply --dry-run -f FILE`"),
    ("port-forward", "use the addresses of `chancery get incarnations -o wide`"),
    ("ps", "use `chancery get replicas`"),
    ("purge", "use `chancery delete plan PLAN --cascade`"),
    ("replace", "use `chancery apply -f FILE`"),
    ("revert", "use `chancery rollback PLAN --to DEPLOYMENT`"),
    ("rm", "use `chancery delete KIND/NAME`"),
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
    ("--for", "use `--subject KIND/NAME`"),
    ("--force", "leave the flag out: nothing is ended or overwritten without proof"),
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
    ("-p", "use `--previous`"),
    ("-w", "use `--follow`"),
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
    ("checks", "use replicas: their column READY"),
    ("cm", "use `env` of payloads: `chancery explain plan.spec.payloads`"),
    ("configmaps", "use `env` of payloads: `chancery explain plan.spec.payloads`"),
    ("crds", "kinds are fixed: `chancery explain`"),
    ("daemonset", "use plans"),
    ("daemonsets", "use plans"),
    ("evals", "use operations"),
    ("evaluations", "use operations"),
    ("events", "use `chancery events`"),
    ("groups", "use plans"),
    ("ing", "use the addresses of incarnations"),
    ("ingresses", "use the addresses of incarnations"),
    ("job", "use plans"),
    ("jobs", "use plans"),
    ("namespaces", "namespaces are fields of plans: `chancery get plans --filter namespace=NAME`"),
    ("ns", "namespaces are fields of plans: `chancery get plans --filter namespace=NAME`"),
    ("ops", "use operations"),
    ("po", "use replicas"),
    ("pod", "use replicas"),
    ("pods", "use replicas"),
    ("pv", "use volumes"),
    ("pvc", "use volumes"),
    ("replicasets", "use deployments"),
    ("rs", "use deployments"),
    ("secrets", "use `env` of payloads: `chancery explain plan.spec.payloads`"),
    ("services", "use plans, which name their service"),
    ("statefulsets", "use plans"),
    ("statefulset", "use plans"),
    ("svc", "use plans, which name their service"),
    ("tasks", "use the payloads of plans"),
];

/// Whether a word names a file of manifests.
fn is_manifest(word: &str) -> bool {
    let end = word.rsplit_once('.').map_or("", |(_, end)| end);
    !word.starts_with('-') && ["yaml", "yml", "json"].contains(&end)
}

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
    if error.kind() == ErrorKind::UnknownArgument && is_manifest(word) {
        let advice = format!("write -f before a file: `-f {word}`");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(advice)]));
        return;
    }
    // The kind before a name, and the flag before its value.
    let has_name = word.contains('/');
    let word = word.split(['/', '=', ' ']).next().unwrap_or_default();
    let is_kind = !has_name
        && matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(arg)) if arg == "<KIND[/NAME]>");
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
            ("chancery apply m/nodes.yaml", "tip: write -f before a file: `-f m/nodes.yaml`"),
            ("chancery get ns", "tip: namespaces are fields of plans"),
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
