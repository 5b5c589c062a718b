//! Register of the kinds of problems: the only definition of the code, status, meaning and remedy of each.
//!
//! Titles, the list in the API's description, and the error catalogue are derived from it.

use chancery_events::refusal::RefusalCode;

/// Kind of problem: a code with its status, meaning and remedy.
#[derive(PartialEq, Eq, Debug)]
pub struct ProblemKind {
    /// Stable code for programs.
    pub code: &'static str,
    /// HTTP status, from 400 to 599.
    pub status: u16,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Meaning of the code, in Markdown.
    pub meaning: &'static str,
    /// Reaction of the client, in Markdown.
    pub remedy: &'static str,
}

impl ProblemKind {
    /// Title of the kind: its code in words.
    pub fn title(&self) -> String {
        let words = self.code.replace('_', " ");
        words[..1].to_uppercase() + &words[1..]
    }

    /// Path of the code's entry in the error catalogue: the `type` of a problem.
    pub fn path(&self) -> String {
        format!("/errors/{}", self.code)
    }
}

/// Defines the kinds. A code with a second status defines a second kind, with a name of its own.
macro_rules! kinds {
    ($($name:ident = $status:literal $code:literal $retry:ident $meaning:literal $remedy:literal
        $(, $other:ident = $other_status:literal)?;)*) => {
        $(
            #[doc = $meaning]
            pub const $name: &ProblemKind = &ProblemKind {
                code: $code,
                status: $status,
                retryable: kinds!(@ $retry),
                meaning: $meaning,
                remedy: $remedy,
            };
            $(
                #[doc = $meaning]
                pub const $other: &ProblemKind = &ProblemKind { status: $other_status, ..*$name };
            )?
        )*
        /// Every kind of problem. Kinds with the same code are adjacent.
        pub const KINDS: &[&ProblemKind] = &[$($name, $($other,)?)*];
    };
    (@ retry) => { true };
    (@ final) => { false };
}

kinds! {
    // Refusals: answers of the decider, which are recorded in the journal.
    NOT_FOUND = 404 "not_found" final
        "The request names an entity, fleet, event type, error code or output that does not exist."
        "Correct the name. `chancery get KIND` lists the existing entities.";
    ALREADY_EXISTS = 409 "already_exists" final
        "Another entity has the name."
        "Choose another name. `chancery describe KIND NAME` shows the entity that has the name.";
    VERSION_CONFLICT = 409 "version_conflict" final
        "The expected version is not the version of the entity, or the expected `ETag` is of another entity, as of a deleted one of the same name. The status is 412 if `If-Match` or `If-None-Match` gave the condition."
        "Read the entity again with `chancery get KIND NAME -o json`, apply the change to it, and send it with the new `version`.",
        PRECONDITION_FAILED = 412;
    INVALID = 422 "invalid" final
        "A value in the body breaks a rule. The member `errors` has the location of the value and the rule."
        "Correct the values at these locations.";
    INVALID_TRANSITION = 409 "invalid_transition" final
        "The state of the entity does not allow the change. The member `detail` names the state."
        "Read the state with `chancery describe KIND NAME`. Wait until the state allows the change, or make another change.";
    IN_USE = 409 "in_use" final
        "Other entities need the entity, or need what the change removes or takes; or the entity is in use by its own operation or state, such as a deletion in progress or a field that cannot be edited. The member `detail` has the reason."
        "Remove the reason: wait until the operation or deletion has ended, stop what uses the entity, or empty a node with `chancery drain NODE`. Only if the entities that `detail` names are not needed, delete them with `chancery delete KIND NAME`; `chancery delete KIND NAME --cascade` first removes the dependents of a plan or node. For a field that cannot be edited, create another entity.";
    INACTIVE = 409 "inactive" final
        "The entity, or an entity that it needs, is inactive."
        "Activate the entity that `detail` names with `chancery activate KIND NAME`.";
    HASH_MISMATCH = 409 "hash_mismatch" final
        "The effect of the approval has changed since it was shown."
        "Approve it with `chancery approve ID`, which shows the new effect. Over HTTP, read the operation or request again, and send its new hash.";
    NOT_PENDING = 409 "not_pending" final
        "The operation or request does not wait for approval. It is approved, rejected, expired or no longer requested."
        "Read its state with `chancery describe KIND ID`. If the change is still needed, request it again.";
    IDEMPOTENCY_KEY_REUSED = 422 "idempotency_key_reused" final
        "The idempotency key was used for an intent with another body."
        "Send the intent with a new idempotency key.";
    INTENT_EXPIRED = 409 "intent_expired" final
        "The intent is older than the idempotency keys that are kept. Whether it was decided before is unknown."
        "Read the entity with `chancery get KIND NAME`. If the change is missing, send it with a new idempotency key and with the time that `detail` names.";
    TIMESTAMP_IN_FUTURE = 422 "timestamp_in_future" final
        "The time of the intent is more than five minutes ahead of the server's clock."
        "Correct the clock of the client, and send the intent with the correct time.";
    UNSUPPORTED = 422 "unsupported" final
        "This build, or the executor of the cluster, cannot do what the intent requests."
        "Change the request as `detail` describes, or update the program.";
    TOO_LARGE = 413 "too_large" final
        "The body, the batch or the consequences of the intent are larger than a limit."
        "Split the request, or request less. The setting `limits.body_bytes` limits the body of a request.";
    INTERNAL = 500 "internal" final
        "The server has an internal error. A refused intent with this code has changed nothing."
        "Find the cause in the server's log, and report it as a defect.";
    DENIED = 403 "denied" final
        "The client must not send the intent, or must not send it in this way. A four-eyes policy needs another person."
        "Let another person approve with `chancery approve ID`, or send the intent as `detail` describes.";

    // All other problems: nothing was recorded, unless the outcome is unknown.
    MALFORMED = 400 "malformed" final
        "The body cannot be read: it is not valid JSON in UTF-8, or it is nested too deeply."
        "Correct the body at the location that `errors` or `detail` names.";
    INVALID_HOST = 400 "invalid_host" final
        "The header `Host` is missing, repeated or not readable, or it differs from the host of the target."
        "Send the header `Host` once, with the host of the target.";
    HOST_NOT_ALLOWED = 421 "host_not_allowed" final
        "The request is for a host that is not a name of this server."
        "Use a name of loopback or of the setting `advertise`, or add the host to the setting `allowed_hosts`.";
    ORIGIN_NOT_ALLOWED = 403 "origin_not_allowed" final
        "The request is from a web page of another site."
        "Add the origin of the page to the setting `cors_origins` if the page may use this server.";
    READ_ONLY = 403 "read_only" final
        "The server shows a journal that `chancery replay` has folded. It accepts no writes and no executors."
        "Send the request to a server of the fleet.";
    INVALID_PARAMETER = 400 "invalid_parameter" final
        "A parameter of the path, the query or the headers is missing, unknown or invalid."
        "Correct the parameter that `errors` or `detail` names.";
    ROUTE_NOT_FOUND = 404 "route_not_found" final
        "No route has the path of the request."
        "Correct the path. `/v1/openapi.json` describes all routes.";
    METHOD_NOT_ALLOWED = 405 "method_not_allowed" final
        "The route does not accept the method of the request."
        "Use a method that the header `Allow` lists.";
    NOT_ACCEPTABLE = 406 "not_acceptable" final
        "The route has no media type that the header `Accept` allows."
        "Accept a media type that `detail` names.";
    REQUEST_TIMEOUT = 408 "request_timeout" retry
        "The body of the request did not arrive in time. Nothing was recorded."
        "Send the request again.";
    OUT_OF_ORDER = 409 "out_of_order" final
        "Earlier messages of the executor are missing on its channel."
        "Open another channel. `chancery executor` does this automatically.";
    GONE = 410 "gone" final
        "The entity is deleted, or the channel of the executor is closed."
        "Read the history of the entity with `chancery history KIND NAME`, or at the path in `help`. An executor opens another channel.";
    OTHER_LINEAGE = 410 "other_lineage" final
        "The position of the client is not in the lineage of this journal. The records after it are lost, or are of another journal."
        "Read the state again, then the events with `chancery events --from POSITION.LINEAGE`, from the members `since` and `lineage`.";
    MOMENT_OUT_OF_RANGE = 400 "moment_out_of_range" final
        "The moment in `as_of` is before the first record of the journal, or after the last one. The members `first` and `last` have the position and the time of these records."
        "Name a moment between them. To read the present, omit `as_of`.";
    VALUE_DIFFERS = 409 "value_differs" final
        "The field in `field` has another value than `value` at the moment of the answer, so there are no reasons for that value. The member `detail` has the value."
        "Name another value, or a moment at which the field had this one.";
    MOMENT_UNREADABLE = 410 "moment_unreadable" final
        "Records up to the moment in `as_of` are missing or damaged, or this build cannot fold them. The member `detail` has the reason, and `first` the first moment that can be read, if one is known."
        "Name a later moment. If the records exist elsewhere, restore them.";
    MOMENT_TOO_LARGE = 413 "moment_too_large" final
        "The state at the moment in `as_of` needs more memory than the setting `as_of.memory`."
        "Increase the setting, and start the server again.";
    URI_TOO_LONG = 414 "uri_too_long" final
        "The path and the query are longer than the limit that `detail` names."
        "Shorten the path or the query.";
    UNSUPPORTED_MEDIA_TYPE = 415 "unsupported_media_type" final
        "The route does not accept the media type of the body, or the request has no header `Content-Type`."
        "Send a media type that `detail` names. Every request that changes something needs `Content-Type`, also without a body.";
    MISDIRECTED = 421 "misdirected" final
        "A forwarded request is for a leader of another journal or of a later term. Nothing was recorded."
        "None is needed. The server that forwarded the request reports `no_leader` to its client, which is retryable.";
    TOO_MANY = 429 "too_many_requests" retry
        "The client sends more requests a second than the limit that `detail` names."
        "Send the request again after the time in `Retry-After`, and send fewer requests a second.";
    HEADERS_TOO_LARGE = 431 "headers_too_large" final
        "The headers are more or larger than the limits that `detail` names."
        "Send fewer or smaller headers.";
    BUSY = 503 "busy" retry
        "The server has no capacity for the request. An intent with this answer was not recorded."
        "Send the request again after the time in `Retry-After`.";
    NO_LEADER = 503 "no_leader" retry
        "No server is the leader of the fleet, or the leader cannot be reached. Nothing was recorded."
        "Send the request again after the time in `Retry-After`. `/readyz` of each server reports why it has no leader.";
    CLOCK_AHEAD = 503 "clock_ahead" retry
        "The clock of the server is too far ahead of the journal, and the server does not follow it. Only `/readyz` reports this."
        "Correct the clock of the server. If the clock is correct, start the server once with `--accept-clock`.";
    FLEET_BLOCKED = 503 "fleet_blocked" retry
        "The journal, the inbox, the events topic or the election of the fleet does not work. Only `/readyz` reports this."
        "Repair the part that `detail` names. `chancery doctor` also checks the brokers.";
    POSITION_NOT_APPLIED = 503 "position_not_applied" retry
        "The rows or the journal of this server have not reached the position that the read needs."
        "Send the request again. A read with `consistency=eventual` and without `min_position` does not wait.";
    TIMEOUT = 503 "timeout" retry
        "The server had no answer in time."
        "Send the request again, an intent with the same idempotency key.";
    UNKNOWN_OUTCOME = 504 "unknown_outcome" retry
        "Whether the intent was recorded is unknown."
        "Send the intent again with the same idempotency key, source, actor and body. The answer is that of the first request.";
}

/// Kinds whose `detail` or pointers name parts of the API. The command line has words of its own for them, and shows the
/// detail of every other kind.
pub const ABOUT_THE_API: &[&ProblemKind] = &[
    INVALID_PARAMETER,
    INVALID,
    ROUTE_NOT_FOUND,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    UNSUPPORTED_MEDIA_TYPE,
    MALFORMED,
    INVALID_HOST,
    ORIGIN_NOT_ALLOWED,
    URI_TOO_LONG,
    HEADERS_TOO_LARGE,
    REQUEST_TIMEOUT,
    MISDIRECTED,
];

/// Terms of the API that the command line never shows, in lower case.
pub const API_TERMS: &[&str] = &[
    "page_token",
    "min_position",
    "as_of",
    "next_page",
    "/v1",
    "http status",
    "header",
    "query parameter",
    "path parameter",
    "content-type",
    "if-match",
    "if-none-match",
    "chancery-",
    "json pointer",
    "/data/",
    "/spec/",
    "method not allowed",
    "media type",
    "retry-after",
];

/// Returns the kind of problem of a refusal code.
pub fn kind_of(code: RefusalCode) -> &'static ProblemKind {
    match code {
        RefusalCode::NotFound => NOT_FOUND,
        RefusalCode::AlreadyExists => ALREADY_EXISTS,
        RefusalCode::VersionConflict => VERSION_CONFLICT,
        RefusalCode::Invalid => INVALID,
        RefusalCode::InvalidTransition => INVALID_TRANSITION,
        RefusalCode::InUse => IN_USE,
        RefusalCode::Inactive => INACTIVE,
        RefusalCode::HashMismatch => HASH_MISMATCH,
        RefusalCode::NotPending => NOT_PENDING,
        RefusalCode::IdempotencyKeyReused => IDEMPOTENCY_KEY_REUSED,
        RefusalCode::IntentExpired => INTENT_EXPIRED,
        RefusalCode::TimestampInFuture => TIMESTAMP_IN_FUTURE,
        RefusalCode::Unsupported => UNSUPPORTED,
        RefusalCode::TooLarge => TOO_LARGE,
        RefusalCode::Internal => INTERNAL,
        RefusalCode::Denied => DENIED,
    }
}
