//! Place of an intent in its request. A refusal of the decider points into the intent; its problem points into the request.
//!
//! | request | pointer of the refusal | location in the problem |
//! |---|---|---|
//! | structured CloudEvent | `/spec/domain` | body `/data/spec/domain` |
//! | item of a batch | `/spec/domain` | body `/2/data/spec/domain` |
//! | binary CloudEvent | `/spec/domain` | body `/spec/domain` |
//! | typed route | `/node`, which the path or the query has | path or query `/node` |
//! | typed route of one operation | `/operations/0`, `/operations/0/hash` | path `/id`, body `/hash` |

use super::problem::{ProblemDetails, RequestPart};
use super::routes::BodyShape;
use super::write::BodyMember;

/// Pointer to the only operation of an intent.
const ONE_OPERATION: &str = "/operations/0";

/// Place of an intent in its request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum IntentPlace {
    /// Place of an intent below a pointer into the body; the pointer is empty if the intent is the body.
    Below(String),
    /// Place of an intent in path, query and body of a typed route, with the names of the members that path and query have.
    Members { path: Vec<String>, query: Vec<&'static str> },
    /// Place of an intent for one operation, whose id the path has.
    OneOperation,
}

impl IntentPlace {
    /// Returns the place of an intent of a typed route.
    pub(super) fn typed(shape: BodyShape, path: &[(&str, &str)], query: &[BodyMember]) -> IntentPlace {
        match shape {
            BodyShape::Members => IntentPlace::Members {
                path: path.iter().map(|(name, _)| (*name).to_owned()).collect(),
                query: query.iter().map(|(name, _)| *name).collect(),
            },
            BodyShape::ApproveOne | BodyShape::RejectOne => IntentPlace::OneOperation,
        }
    }

    /// Converts the locations of a problem from those in the intent into those in the request.
    pub(super) fn in_request(&self, mut problem: ProblemDetails) -> ProblemDetails {
        if let IntentPlace::Below(prefix) = self {
            return problem.below(prefix);
        }
        for fault in problem.errors_mut().iter_mut().filter(|fault| fault.part == RequestPart::Body) {
            match self {
                IntentPlace::Below(_) => {}
                IntentPlace::Members { path, query } => {
                    let name = fault.pointer.strip_prefix('/').unwrap_or_default();
                    if path.iter().any(|known| known == name) {
                        fault.part = RequestPart::Path;
                    } else if query.contains(&name) {
                        fault.part = RequestPart::Query;
                    }
                }
                IntentPlace::OneOperation => match fault.pointer.strip_prefix(ONE_OPERATION) {
                    Some("") => (fault.part, fault.pointer) = (RequestPart::Path, "/id".to_owned()),
                    Some(rest) => fault.pointer = rest.to_owned(),
                    None => {}
                },
            }
        }
        problem
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::INVALID;

    #[test]
    fn a_location_in_the_intent_becomes_one_in_the_request() {
        let below = |prefix: &str| IntentPlace::Below(prefix.to_owned());
        let members = || IntentPlace::Members { path: vec!["node".into()], query: vec!["cascade"] };
        for (place, pointer, part, found) in [
            (below(""), "/spec", RequestPart::Body, "/spec"),
            (below("/data"), "/spec", RequestPart::Body, "/data/spec"),
            (below("/2/data"), "/spec", RequestPart::Body, "/2/data/spec"),
            (members(), "/node", RequestPart::Path, "/node"),
            (members(), "/cascade", RequestPart::Query, "/cascade"),
            (members(), "/name", RequestPart::Body, "/name"),
            (members(), "/spec/node", RequestPart::Body, "/spec/node"),
            (IntentPlace::OneOperation, "/operations/0", RequestPart::Path, "/id"),
            (IntentPlace::OneOperation, "/operations/0/hash", RequestPart::Body, "/hash"),
            (IntentPlace::OneOperation, "/reason", RequestPart::Body, "/reason"),
        ] {
            let problem = ProblemDetails::new(INVALID, "invalid").at(RequestPart::Body, pointer, "wrong");
            let problem = place.in_request(problem);
            let fault = &problem.errors()[0];
            assert_eq!((fault.part, fault.pointer.as_str()), (part, found), "{place:?} {pointer}");
        }
    }
}
