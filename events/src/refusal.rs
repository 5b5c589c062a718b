//! Refusals: reasons why intents are refused. A refusal is a verdict, and is stored in the journal like any
//! other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spec::words;
use crate::subject::Subject;

words! {
    /// Reason why an intent was refused, for programs. The codes are stable: clients may depend on each.
    RefusalCode {
        /// The subject, or an entity that it names, does not exist.
        NotFound = "not_found",
        /// Another entity has the name.
        AlreadyExists = "already_exists",
        /// The expected version is not the version of the subject.
        VersionConflict = "version_conflict",
        /// The body breaks a rule.
        Invalid = "invalid",
        /// The state of the subject does not allow the change; the detail names both states.
        InvalidTransition = "invalid_transition",
        /// Another entity still needs the subject.
        InUse = "in_use",
        /// The subject, or an entity that it needs, is inactive.
        Inactive = "inactive",
        /// The hash in the intent does not match the current change.
        HashMismatch = "hash_mismatch",
        /// The operation does not wait for approval.
        NotPending = "not_pending",
        /// The idempotency key was used for another body.
        IdempotencyKeyReused = "idempotency_key_reused",
        /// The intent is older than the idempotency keys that are kept: whether it was decided is unknown.
        IntentExpired = "intent_expired",
        /// The time of the intent is more than five minutes ahead.
        TimestampInFuture = "timestamp_in_future",
        /// This build, or the executor of the cluster, cannot do what the intent requests.
        Unsupported = "unsupported",
        /// The intent does not fit into one commit.
        TooLarge = "too_large",
        /// The decision failed with an internal error; nothing was changed.
        Internal = "internal",
        /// The caller must not send the intent, or must not send it in this way.
        Denied = "denied",
    }
}

/// Refusal of an intent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Code of the refusal, for programs.
    pub code: RefusalCode,
    /// Detail of the refusal, for people.
    pub detail: String,
    /// Subject that the refused intent was about, if any.
    pub subject: Option<Subject>,
    /// Version of the subject at the time of the refusal, if it has one.
    pub version: Option<u64>,
    /// Errors in the body: JSON Pointers, each with the reason why its value is invalid.
    pub errors: BTreeMap<String, String>,
}

impl Refusal {
    /// Returns a refusal with only its reason.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Refusal {
        Refusal { code, detail: detail.into(), subject: None, version: None, errors: BTreeMap::new() }
    }

    /// Adds an error in the body: its location, a JSON Pointer, and its reason.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>, what: impl Into<String>) -> Refusal {
        self.errors.insert(pointer.into(), what.into());
        self
    }
}
