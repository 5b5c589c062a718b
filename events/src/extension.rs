//! Extension attributes of CloudEvents that this system does not know: recorded with their intent, and shown with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum bytes of all names and values of one event.
pub const MAX_BYTES: usize = 4096;
/// Maximum length of a name.
const MAX_NAME: usize = 64;

/// Extension attributes of an intent, by name. Values are texts; numbers and truth values are kept as their text.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExtensionAttributes(BTreeMap<String, String>);

impl ExtensionAttributes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of an attribute.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Adds an attribute. Returns whether the name had a value before.
    pub(crate) fn add(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_valid) {
            return Err(format!(
                "invalid name of an extension attribute: must have 1 to {MAX_NAME} characters of a to z and 0 to 9"
            ));
        }
        let used: usize = self.0.iter().map(|(name, value)| name.len() + value.len()).sum();
        if used + name.len() + value.len() > MAX_BYTES {
            return Err(format!("too large: all extension attributes must have at most {MAX_BYTES} bytes"));
        }
        Ok(self.0.insert(name.to_owned(), value.to_owned()).is_some())
    }
}
