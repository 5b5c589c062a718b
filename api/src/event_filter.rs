//! Event filter of a stream: by type, subject and kind, checked before anything is sent.

use chancery_events::cloudevent::{FilterableEvent, TYPE_PREFIX};
use chancery_events::event::{EventKind, EventLine};
use chancery_events::fact::Fact;
use chancery_events::intent::Intent;
use chancery_events::observation::Observation;
use chancery_events::subject::Subject;

use super::problem::ProblemDetails;

/// Returns every event type that this build knows.
pub(super) fn types() -> impl Iterator<Item = &'static str> {
    Intent::TYPES.iter().chain(Observation::TYPES).chain(Fact::TYPES).copied()
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum TypeTest {
    Exact(&'static str),
    /// Prefix that ends in a dot.
    Prefix(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum SubjectTest {
    Exact(Subject),
    Kind(&'static str),
}

/// Event filter. An event must match one entry of each list; an empty list matches every event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct EventFilter {
    types: Vec<TypeTest>,
    subjects: Vec<SubjectTest>,
    kinds: Vec<EventKind>,
}

impl EventFilter {
    /// Reads the query's `types`, `subject` and `kinds`, each comma-separated.
    pub(super) fn read(
        types: Option<&str>,
        subjects: Option<&str>,
        kinds: Option<&str>,
    ) -> Result<EventFilter, ProblemDetails> {
        fn each<T>(
            name: &str,
            list: Option<&str>,
            read: fn(&str) -> Result<T, String>,
        ) -> Result<Vec<T>, ProblemDetails> {
            let items = list.into_iter().flat_map(|list| list.split(',')).map(str::trim);
            items.map(|item| read(item).map_err(|what| ProblemDetails::query(name, what))).collect()
        }
        Ok(EventFilter {
            types: each("types", types, type_test)?,
            subjects: each("subject", subjects, subject_test)?,
            kinds: each("kinds", kinds, kind)?,
        })
    }

    /// Whether the filter matches every event.
    pub(super) fn is_all(&self) -> bool {
        *self == EventFilter::default()
    }

    /// Whether an event may match, as far as its frame shows.
    pub(super) fn may(&self, line: &EventLine<'_>) -> bool {
        self.fits_kind(line.kind) && self.fits_type(&line.type_name)
    }

    /// Whether an event matches.
    pub(super) fn fits(&self, about: &FilterableEvent) -> bool {
        self.fits_kind(about.kind)
            && self.fits_type(&about.type_name)
            && (self.subjects.is_empty()
                || self.subjects.iter().any(|test| match test {
                    SubjectTest::Exact(subject) => about.subjects.contains(subject),
                    SubjectTest::Kind(kind) => about.subjects.iter().any(|subject| subject.kind() == *kind),
                }))
    }

    fn fits_kind(&self, kind: EventKind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    fn fits_type(&self, type_name: &str) -> bool {
        self.types.is_empty()
            || self.types.iter().any(|test| match test {
                TypeTest::Exact(exact) => type_name == *exact,
                TypeTest::Prefix(prefix) => type_name.starts_with(prefix.as_str()),
            })
    }
}

fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

fn type_test(text: &str) -> Result<TypeTest, String> {
    let bare = text.strip_prefix(TYPE_PREFIX).unwrap_or(text);
    if let Some(prefix) = bare.strip_suffix('*') {
        let is_known = prefix.ends_with('.') && types().any(|known| known.starts_with(prefix));
        return is_known.then(|| TypeTest::Prefix(prefix.to_owned())).ok_or_else(|| {
            format!(
                "no event type starts with {:?}: must be a prefix up to a dot, as in replica.*",
                short(prefix)
            )
        });
    }
    let known = types().find(|known| *known == bare).map(TypeTest::Exact);
    known.ok_or_else(|| {
        format!(
            "no event has the type {:?}: must be as in replica.created.v1, or a prefix as in replica.*",
            short(text)
        )
    })
}

fn subject_test(text: &str) -> Result<SubjectTest, String> {
    let bare = text.strip_suffix("/*").or_else(|| text.strip_suffix('/')).unwrap_or(text);
    if let Some(kind) = Subject::KINDS.iter().find(|kind| **kind == bare) {
        return Ok(SubjectTest::Kind(kind));
    }
    let exact = text.parse::<Subject>().map(SubjectTest::Exact);
    exact.map_err(|error| format!("{error}; the kinds are {}", Subject::KINDS.join(", ")))
}

fn kind(text: &str) -> Result<EventKind, String> {
    match text {
        "intent" => Ok(EventKind::Intent),
        "observation" => Ok(EventKind::Observation),
        "fact" => Ok(EventKind::Fact),
        _ => Err(format!("must be intent, observation or fact, not {:?}", short(text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(type_name: &'static str, kind: EventKind, subjects: &[&str]) -> FilterableEvent {
        let subjects = subjects.iter().map(|text| text.parse().expect("a subject")).collect();
        FilterableEvent { kind, type_name: type_name.into(), subjects }
    }

    #[test]
    fn each_list_must_fit_and_of_each_list_one() {
        let created = about("replica.created.v1", EventKind::Fact, &["replica/a-0001", "plan/nginx"]);
        for (types, subject, kinds, fits) in [
            (None, None, None, true),
            (Some("replica.created.v1"), None, None, true),
            (Some("dev.chancery.replica.created.v1"), None, None, true),
            (Some("replica.*"), None, None, true),
            (Some("node.*,replica.*"), None, None, true),
            (Some("node.*"), None, None, false),
            (None, Some("plan/nginx"), None, true),
            (None, Some("plan/other"), None, false),
            (None, Some("plan"), None, true),
            (None, Some("plan/"), None, true),
            (None, Some("plan/*"), None, true),
            (None, Some("node"), None, false),
            (None, None, Some("fact,intent"), true),
            (None, None, Some("intent"), false),
            (Some("replica.*"), Some("plan"), Some("observation"), false),
        ] {
            let wanted = EventFilter::read(types, subject, kinds).expect("known words");
            assert_eq!(wanted.fits(&created), fits, "{types:?} {subject:?} {kinds:?}");
        }
    }

    #[test]
    fn unknown_words_are_refused() {
        for types in ["pod.created.v1", "replica.created", "pod.*", "repl*", "*", "", "replica.*,"] {
            let problem = EventFilter::read(Some(types), None, None).expect_err(types);
            assert_eq!(problem.errors()[0].pointer, "/types");
        }
        for subject in ["pod/x", "node/A", "", "pods", "deployment/nginx"] {
            let problem = EventFilter::read(None, Some(subject), None).expect_err(subject);
            assert_eq!(problem.errors()[0].pointer, "/subject");
        }
        assert!(EventFilter::read(None, None, Some("facts")).is_err());
    }

    #[test]
    fn the_kinds_of_subjects_are_all_known() {
        let id = |digit: u8| format!("00000000-0000-815{digit}-8001-b24adb924579");
        let keys = ["a".to_owned(), "a/b".to_owned()].into_iter().chain((1..6).map(id));
        let keys: Vec<_> = keys.collect();
        for kind in Subject::KINDS {
            let of_kind = EventFilter::read(None, Some(kind), None).expect(kind);
            let mut subjects = keys.iter().map(|key| format!("{kind}/{key}")).chain([(*kind).to_owned()]);
            let subject = subjects.find_map(|text| text.parse::<Subject>().ok()).expect(kind);
            assert_eq!(subject.kind(), *kind);
            let about = FilterableEvent {
                kind: EventKind::Fact,
                type_name: "x.y.v1".into(),
                subjects: vec![subject],
            };
            assert!(of_kind.fits(&about), "{kind}");
        }
    }

    #[test]
    fn a_stream_may_be_of_any_kind_of_entity() {
        for (kind, subject) in [("volume", "volume/data"), ("policy", "policy/eyes")] {
            for filter in [kind, subject] {
                let wanted = EventFilter::read(None, Some(filter), None).expect(filter);
                assert!(wanted.fits(&about("x.y.v1", EventKind::Fact, &[subject])), "{filter}");
                assert!(!wanted.fits(&about("x.y.v1", EventKind::Fact, &["node/a"])), "{filter}");
            }
        }
        assert!(EventFilter::read(None, Some("request"), None).is_ok());
    }
}
