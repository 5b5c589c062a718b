//! Subjects of events: `node/node-1`, `deployment/nginx/deployment-1`, `operation/<uuid>`.

use std::fmt;
use std::str::FromStr;

use crate::each_kind;
use crate::id::Position;
use crate::kind::{EntityKind, KeyPart, keys};
use crate::text::string_form;

macro_rules! subjects {
    ($($kind:ident $word:literal $plural:literal $aliases:tt $place:literal $about:literal {
        key $key:tt $(owner $owner:tt)? $(entity $entity:tt)? $(row $row:tt)? $(ends $ends:tt)?
        $(manifest $manifest:tt)?
    })*) => {
        subjects! { @entities $($($entity $kind $word $about $key)?)* }
    };
    (@entities $($entity:tt $kind:ident $word:literal $about:literal ($($field:ident: $type:ident),+))*) => {
        /// Subject of an event: one entity of a fleet.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Subject {
            /// Subject for the fleet itself.
            Fleet,
            $(#[doc = $about] $kind($(keys::$type),+)),*
        }

        impl Subject {
            /// Kinds of subjects, the parts before the slash, in order.
            pub const KINDS: &[&str] = &["fleet", $($word),*];

            /// Kind of the subject, the part before the slash.
            pub const fn kind(&self) -> &'static str {
                match self {
                    Subject::Fleet => "fleet",
                    $(Subject::$kind(..) => $word),*
                }
            }

            /// Calls a function with the parts of the key; the fleet has none.
            pub fn with_key<T>(&self, run: impl FnOnce(&[&dyn KeyPart]) -> T) -> T {
                match self {
                    Subject::Fleet => run(&[]),
                    $(Subject::$kind($($field),+) => run(&[$($field),+])),*
                }
            }

            fn read(kind: &str, key: &str) -> Result<Option<Subject>, InvalidSubject> {
                match kind {
                    $($word => {
                        let of = EntityKind::$kind.entry();
                        let mut parts = key.splitn(of.key.len(), '/');
                        Ok(Some(Subject::$kind($({
                            let Some(part) = parts.next() else { return Ok(None) };
                            // A key part other than `name` is the name of the owner.
                            let kind = of.owner.map_or($word, |owner| if stringify!($field) == "name" { $word } else { owner.word() });
                            part.parse::<keys::$type>()
                                .map_err(|error| InvalidSubject::Name { kind, reason: error.to_string() })?
                        }),+)))
                    })*
                    _ => Ok(None),
                }
            }
        }
    };
}

each_kind!(subjects);

impl Subject {
    /// Position of the event that issued the subject's id, if it has an id.
    pub fn issued(&self) -> Option<Position> {
        self.with_key(|key| key.first().and_then(|part| part.issued()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        self.with_key(|key| key.iter().try_for_each(|part| write!(f, "/{part}")))
    }
}

/// Reason why a text is not a subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSubject {
    /// The text does not have the form `kind/name`.
    #[error("invalid subject {0:?}: must be KIND/NAME, as in node/node-1")]
    Form(String),
    /// The name breaks the rule of its kind.
    #[error("invalid {kind} name: {reason}")]
    Name {
        /// Kind of the subject, the part before the slash.
        kind: &'static str,
        /// Reason why the name after the slash is invalid.
        reason: String,
    },
}

impl FromStr for Subject {
    type Err = InvalidSubject;
    fn from_str(text: &str) -> Result<Subject, InvalidSubject> {
        if text == "fleet" {
            return Ok(Subject::Fleet);
        }
        let read = text.split_once('/').map(|(kind, key)| Subject::read(kind, key)).transpose()?.flatten();
        read.ok_or_else(|| InvalidSubject::Form(text.chars().take(100).collect()))
    }
}

string_form!(Subject, {
    "type": "string", "examples": ["node/node-1", "deployment/nginx/deployment-1"]
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Lineage, OperationId};

    #[test]
    fn text_and_value_are_one() {
        let id = OperationId::issue(Lineage::from_random(1), Position::new(9));
        for text in [
            "fleet",
            "node/node-1",
            "capability/nvidia/v100",
            "deployment/nginx/deployment-1",
            &format!("operation/{id}"),
        ] {
            assert_eq!(text.parse::<Subject>().expect(text).to_string(), text);
        }
        for bad in ["", "node", "node/", "node/A", "deployment/nginx", "pod/x", &format!("incarnation/{id}")]
        {
            assert!(bad.parse::<Subject>().is_err(), "{bad}");
        }
    }
}
