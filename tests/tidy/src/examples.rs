//! Texts that a rule must find, each with a text that it must permit.

use crate::banned::banned;
use crate::docs::docs;
use crate::errors::errors;
use crate::source::{RuleViolation, SourceFile};
use crate::types::types;
use crate::wire::wire;

type RuleFunction = fn(&[SourceFile]) -> Vec<RuleViolation>;

const INTENT: &str = "events/src/intent.rs";
const RUST: &str = "machine/src/plan.rs";
const PAGE: &str = "docs/operations.md";
const OPENAPI: &str = "schemas/openapi.json";

fn found(rule: RuleFunction, path: &str, text: &str) -> Vec<RuleViolation> {
    rule(&[SourceFile::new(path, text)])
}

/// Rule, path, a text that the rule finds, and a text that it permits.
const EXAMPLES: &[(RuleFunction, &str, &str, &str)] = &[
    // Names of types.
    (types, RUST, "struct Hello;", "struct HelloRetry;"),
    (types, RUST, "pub(crate) enum Again { Yes }", "pub(crate) enum HelloRetry { Yes }"),
    (
        types,
        RUST,
        "words! { /// When.\n Begins { Now = \"now\" } }",
        "words! { ApprovalStart { Now = \"now\" } }",
    ),
    (types, RUST, "token! { Attach, u64::MAX }", "token! { ConnectionToken, u64::MAX }"),
    (
        types,
        RUST,
        "mod a { struct TableSlot; } mod b { type TableSlot = u8; }",
        "mod a { struct TableSlot; } impl A for B { type TableSlot = u8; }",
    ),
    (
        types,
        RUST,
        "#[cfg(test)]\nmod tests { fn a() { enum Again {} } }",
        "#[cfg(test)]\nmod tests { fn a() { enum HelloRetry {} } }",
    ),
    (types, "tests/src/client.rs", "struct Hello;", "struct HelloRetry; mod a { struct HelloRetry; }"),
    (types, "bench/src/table.rs", "type Hello<'a> = &'a str;", "type HelloRetry<'a> = &'a str;"),
    (
        types,
        "tests/examples/certificate.patch",
        "+++ b/machine/src/plan.rs\n-struct Hello;\n+fn a() {\n+    struct Hello;",
        "+++ b/machine/src/plan.rs\n-struct Hello;\n+fn a() {\n+    struct HelloRetry;\n+}",
    ),
    // Banned phrases.
    (banned, PAGE, "A cluster is so.", "Cluster created or updated."),
    (banned, RUST, "// Up to when it has been\n// told.", "// Tracks input lag."),
    (
        banned,
        RUST,
        "/// From its last word until it has let go of the lock.",
        "/// Time a finished supervisor has to release its lock.",
    ),
    (
        banned,
        RUST,
        "const A: &str = \"Makes a plan so: a new generation.\";",
        "const A: &str = \"Creates or updates a plan; an update starts a generation.\";",
    ),
    (
        docs,
        RUST,
        "/// Where what it runs is, once an executor has held it.",
        "/// Executor store that may record objects of this cluster.",
    ),
    (
        banned,
        RUST,
        "/// What of its amounts that run holds until it is over.",
        "/// Resources counted on the predecessor until it ends.",
    ),
    (banned, PAGE, "At most so many", "Maximum number of rows (default: 500)"),
    (banned, PAGE, "Let a deployment that is paused go\non", "Continue a paused deployment"),
    (banned, PAGE, "Whoever asks is told for ever.", "The caller is notified permanently."),
    (
        banned,
        PAGE,
        "Another part must not look at the folder.",
        "Another component must not look up the directory.",
    ),
    (banned, PAGE, "The server is to be restarted.", "The server will be restarted."),
    (banned, OPENAPI, "  \"description\": \"Gone in vain.\"", "  \"description\": \"Failed.\""),
    // Doc comments.
    (docs, INTENT, "/// Which.\nname: ClusterName,", "/// Name of the cluster.\nname: ClusterName,"),
    (docs, INTENT, "/// Of which plan.", "/// Plan the deployment belongs to."),
    (docs, INTENT, "#[doc = \"What of an entity changes\"]", "#[doc = \"Indexed fields of each entity\"]"),
    (docs, INTENT, "//! Those of a plan.", "//! Operations of a plan."),
    (docs, INTENT, "/// [`Code::NotFound`].", "/// Refusal with [`Code::NotFound`]."),
    // Errors.
    (
        errors,
        RUST,
        "#[error(\"read a record's header\")]",
        "#[error(\"cannot read record header: EOF at byte 12\")]",
    ),
    (
        errors,
        RUST,
        "bail!(\"write 1 to 63 characters, not 70\")",
        "bail!(\"invalid name {name}: must have 1-63 characters\")",
    ),
    (
        errors,
        RUST,
        "open(path).with_context(|| format!(\"open the journal in {dir}\"))?;",
        "open(path).with_context(|| format!(\"cannot open journal {dir}\"))?;",
    ),
    (
        errors,
        RUST,
        "ensure!(is_held(a, b), \"nothing like that is kept of it\");",
        "ensure!(is_held(a, b), \"cannot read logs: no such payload\");",
    ),
    (errors, RUST, "open(path).context(\"list nodes\")", "open(path).context(\"invalid filter\")"),
    (errors, RUST, "anyhow!(\"{name} is not known\")", "anyhow!(\"{source}\")"),
    // Names of the wire.
    (wire, RUST, "const A: &str = \"node.moved.v1\";", "const A: &str = \"node.state_changed.v1\";"),
    (
        wire,
        INTENT,
        "facts! { PlanStalling = \"plan.stalling.v1\", [] {} }",
        "facts! { PlanStalled = \"plan.stalled.v1\", [] {} }",
    ),
    (
        wire,
        INTENT,
        "intents! { PlanFast = \"plan.fast.v1\", [] {} }",
        "intents! { PlanApply = \"plan.apply.v1\", [] {} }",
    ),
    (
        wire,
        "schemas/events/node.apply.v1.json",
        "{\n  \"$defs\": {\n    \"NodeSpec\": {\n      \"properties\": {\n        \"total\": {",
        "{\n  \"$defs\": {\n    \"NodeSpec\": {\n      \"properties\": {\n        \"resources\": {",
    ),
    (
        wire,
        "schemas/events/plan.apply.v1.json",
        "{\n  \"$defs\": {\n    \"AffinityKind\": {\n      \"enum\": [\n        \"apart\"",
        "{\n  \"$defs\": {\n    \"AffinityKind\": {\n      \"enum\": [\n        \"anti_affinity\"",
    ),
    (
        wire,
        OPENAPI,
        "  \"operationId\": \"operation_approve_2\",",
        "  \"operationId\": \"operations_approve\",",
    ),
    (wire, OPENAPI, "  \"operationId\": \"get_nodes\",", "  \"operationId\": \"get_node\","),
    (wire, OPENAPI, "    \"/v1/fleets/{fleet}/links\": {", "    \"/v1/fleets/{fleet}/channels\": {"),
    (wire, PAGE, "chancery start web-7f3k --on node-2", "chancery start web-7f3k --node node-2"),
    (wire, "cli/src/columns.rs", "(\"WILL\", true)", "(\"DESIRED\", true)"),
    (wire, "cli/src/args.rs", "Withdraw(Which),", "Rollback(EntityArgs),"),
    (wire, "events/src/protocol.rs", "Hello { attach: Attach }", "Hello { connection: ConnectionToken }"),
    (wire, "service/src/config/settings.rs", "\"limits.body\" BYTES", "\"limits.body_bytes\" BYTES"),
    (wire, PAGE, "Set `CHANCERY_LEASE`.", "Set `CHANCERY_SESSION_LEASE`."),
    (wire, "api/src/metrics.rs", "register(\"applied_lag\")", "register(\"read_model_lag_events\")"),
    (wire, PAGE, "`chancery_verdicts_total`", "`chancery_intent_verdicts_total`"),
    (wire, PAGE, "removes `keeper.lock`", "removes `supervisor.lock`"),
];

#[test]
fn each_rule_finds_the_old_text_and_permits_the_new_one() {
    for (rule, path, before, after) in EXAMPLES {
        assert_ne!(found(*rule, path, before), [], "{before}");
        assert_eq!(found(*rule, path, after), [], "{after}");
    }
}

#[test]
fn a_violation_has_the_line_of_its_text() {
    let text =
        "/// First line\n/// goes\nstruct PlanName;\n\nconst A: &str = \"a \\\n  keeper\"; // r\"goes\"\n";
    let lines: Vec<_> = found(banned, RUST, text).iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "machine/src/plan.rs:2: banned: goes: write is deleted; the verb of the action",
            "machine/src/plan.rs:6: banned: keeper: write supervisor",
            "machine/src/plan.rs:6: banned: goes: write is deleted; the verb of the action",
        ]
    );
}

#[test]
fn a_phrase_is_permitted_where_a_comment_allows_it() {
    let text = "// tidy: allow(stands)\n// A stands for any.\n// B stands for any.\n";
    let lines: Vec<_> = found(banned, RUST, text).iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["machine/src/plan.rs:3: banned: stands: write is stored, is located"]);
}

#[test]
fn a_name_that_tests_repeat_and_errors_of_tests_are_exempt() {
    let text = "struct PlanName;\n#[cfg(test)]\nmod tests { struct PlanName; fn a() { bail!(\"no\") } }\n#[test]\nfn b() { enum PlanName {} }";
    assert_eq!(found(types, RUST, text), []);
    assert_eq!(found(errors, RUST, text), []);
    let files = [
        SourceFile::new("cli/src/lib.rs", "struct PlanName;\n#[cfg(test)]\nmod fake;"),
        SourceFile::new("cli/src/fake.rs", "struct PlanName;"),
        SourceFile::new("tests/src/client.rs", "struct PlanName;"),
    ];
    assert_eq!(types(&files), []);
}

#[test]
fn a_name_in_two_files_is_found_in_both() {
    let files = ["events/src/id.rs", "machine/src/id.rs"].map(|path| SourceFile::new(path, "struct PlanId;"));
    assert_eq!(types(&files).len(), 2);
}
