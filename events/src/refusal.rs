//! Refusals: why an intent does not hold. A refusal is an answer, and stands in the journal like any other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spec::words;
use crate::subject::Subject;

words! {
    /// Why an intent was refused, for programs. Stable: a client may depend on each.
    RefusalCode {
        /// The subject, or something that it names, does not exist.
        NotFound = "not_found",
        /// The name is taken by something else.
        AlreadyExists = "already_exists",
        /// The version expected is not that of the subject.
        VersionConflict = "version_conflict",
        /// The body says something that cannot be.
        Invalid = "invalid",
        /// The subject's state does not allow it; both states are named.
        BadTransition = "bad_transition",
        /// Something still needs the subject.
        InUse = "in_use",
        /// The subject, or something that it needs, is not in use.
        Inactive = "inactive",
        /// The hash is not that of what would be done now.
        HashMismatch = "hash_mismatch",
        /// The operation does not wait for approval.
        NotPending = "not_pending",
        /// The idempotency key was used for another body.
        KeyReused = "key_reused",
        /// The intent is older than what is remembered of keys: whether it was decided cannot be told.
        Expired = "expired",
        /// The intent is dated more than five minutes ahead.
        FromTheFuture = "from_the_future",
        /// Not possible with what this build can do.
        Unsupported = "unsupported",
        /// The intent would not fit into one commit.
        TooLarge = "too_large",
        /// Deciding the intent failed in a way that must not happen; nothing was changed.
        Internal = "internal",
        /// The caller may not send the intent, or not in this way.
        Denied = "denied",
    }
}

/// Why an intent does not hold.
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
    /// A refusal with nothing but its reason.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Refusal {
        Refusal { code, detail: detail.into(), subject: None, version: None, errors: BTreeMap::new() }
    }

    /// Says where in the body, as a JSON Pointer, and what is wrong there.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>, what: impl Into<String>) -> Refusal {
        self.errors.insert(pointer.into(), what.into());
        self
    }
}
