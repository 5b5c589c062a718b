//! Texts of names, shared while a snapshot is read: most of its names are those of few plans, deployments and nodes, or
//! several entities contain them.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

use crate::name::InvalidName;

/// Maximum number of shared texts: a power of two.
const SLOTS: usize = 1 << 14;

/// Check of a kind of names. Its number keeps texts apart that different rules allow.
#[derive(Clone, Copy)]
pub(crate) struct NameRule {
    pub(crate) number: u8,
    pub(crate) check: fn(&str) -> Result<(), InvalidName>,
}

/// Texts that were read last, each in the slot of its hash.
struct SharedTexts(Vec<Option<(u8, Arc<str>)>>);

thread_local! {
    static TEXTS: RefCell<Option<SharedTexts>> = const { RefCell::new(None) };
}

/// Runs a decoder. Equal names that it deserializes on this thread share their text, as far as there is space.
pub fn sharing_texts<T>(decode: impl FnOnce() -> T) -> T {
    /// Removes the texts, also if the decoder panics.
    struct SharingEnd;
    impl Drop for SharingEnd {
        fn drop(&mut self) {
            TEXTS.set(None);
        }
    }
    TEXTS.set(Some(SharedTexts(vec![None; SLOTS])));
    let _end = SharingEnd;
    decode()
}

/// Returns the text of a name that is deserialized.
pub(crate) fn read(given: &str, rule: NameRule) -> Result<Arc<str>, InvalidName> {
    TEXTS.with_borrow_mut(|texts| match texts {
        Some(texts) => texts.read(given, rule),
        None => (rule.check)(given).map(|()| given.into()),
    })
}

impl SharedTexts {
    fn read(&mut self, given: &str, rule: NameRule) -> Result<Arc<str>, InvalidName> {
        let mut hasher = FxBuildHasher.build_hasher();
        hasher.write(given.as_bytes());
        hasher.write_u8(rule.number);
        let slot = &mut self.0[usize::try_from(hasher.finish() >> 32).unwrap_or(0) % SLOTS];
        match slot {
            Some((number, text)) if *number == rule.number && **text == *given => Ok(Arc::clone(text)),
            _ => {
                (rule.check)(given)?;
                let text: Arc<str> = given.into();
                *slot = Some((rule.number, Arc::clone(&text)));
                Ok(text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::name::{CapabilityType, NodeName, PlanName};

    fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
        serde_json::from_value(json!(text))
    }

    #[test]
    fn equal_names_share_their_text_while_a_decoder_runs() {
        let read = || from_json::<NodeName>("node-1").expect("a name");
        let is_shared = |[a, b]: [NodeName; 2]| Arc::ptr_eq(&a.0, &b.0);
        assert!(is_shared(sharing_texts(|| [read(), read()])));
        assert!(!is_shared([read(), read()]));
        assert!(!is_shared([sharing_texts(read), sharing_texts(read)]), "texts of another decoder");
    }

    #[test]
    fn names_of_another_rule_are_checked() {
        sharing_texts(|| {
            assert!(from_json::<CapabilityType>("GPU").is_ok());
            assert!(from_json::<NodeName>("GPU").is_err());
            assert!(from_json::<NodeName>("").is_err());
        });
    }

    #[test]
    fn more_names_than_slots_are_read_as_they_are() {
        let names = || (0..3 * SLOTS).map(|n| format!("plan-{n}"));
        let read = sharing_texts(|| {
            let both = names().chain(names()).map(|name| from_json::<PlanName>(&name));
            both.collect::<Result<Vec<_>, _>>().expect("names")
        });
        assert!(read.iter().map(PlanName::as_str).eq(names().chain(names())));
    }

    #[test]
    fn texts_are_removed_when_a_decoder_panics() {
        let panics = || sharing_texts(|| -> () { panic!("as wanted") });
        assert!(std::panic::catch_unwind(panics).is_err());
        TEXTS.with_borrow(|texts| assert!(texts.is_none()));
    }
}
