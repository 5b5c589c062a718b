//! Fuzz targets: everything that parses bytes written by others. A target must not panic, must not be slow,
//! and must keep what it promises of accepted input.
//!
//! `fuzz/` makes each target a program for `cargo fuzz`. Their corpora are located in `fuzz/corpus/` and are
//! also replayed by the usual tests, so that a fixed finding stays fixed.

use chancery_events::cloudevent::CloudEventAttributes;
use chancery_events::event::Event;
use chancery_events::id::Position;
use chancery_events::inbox_message::InboxMessage;
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::record::{Record, RecordHash};
use chancery_projector::PageToken;

/// Target with its name.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    ("record", record),
    ("event", event),
    ("cloudevent", cloudevent),
    ("inbox_message", inbox_message),
    ("intent", intent),
    ("manifest", manifest),
    ("tokens", tokens),
];

/// Decodes bytes from a journal.
pub fn record(bytes: &[u8]) {
    let Ok(record) = Record::decode(bytes) else { return };
    assert_eq!(record.hash(), RecordHash::of(bytes));
    assert_eq!(&record.bytes()[..], bytes, "bytes are kept as they are");
    let count = record.events().map(|(_, line)| event(line)).count();
    assert_eq!(count as u64, record.last().get() + 1 - record.first().get());
}

/// Reads a line of a record.
pub fn event(line: &[u8]) {
    let Ok(event) = Event::read(line) else { return };
    let again = Event::read(&event.line()).expect("this build reads what it writes");
    assert_eq!(again, event);
    let _ = event.subjects();
}

/// Reads attributes of a `CloudEvent`, a line each as `name: value`, then the data.
pub fn cloudevent(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (head, data) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut attributes = CloudEventAttributes::default();
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        if attributes.set(name, value).is_err() {
            return;
        }
    }
    let Ok(type_name) = attributes.intent_type() else { return };
    let Some(Ok(intent)) = Intent::read(type_name, data) else { return };
    let actor = "ann".parse().expect("an actor");
    let Ok(request) = attributes.request(intent, &actor) else { return };
    is_kept(&request);
}

/// Reads headers of a record in an inbox topic, a line each as `name: value`, then its value.
pub fn inbox_message(bytes: &[u8]) {
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let (head, value) = end.map_or((bytes, None), |end| (&bytes[..end], Some(bytes[end + 2..].to_vec())));
    let lines = head.split(|byte| *byte == b'\n');
    let header = |line: &[u8]| {
        let colon = line.windows(2).position(|two| two == b": ")?;
        Some((String::from_utf8_lossy(&line[..colon]).into_owned(), line[colon + 2..].to_vec()))
    };
    let message =
        InboxMessage { headers: lines.filter_map(header).collect(), value, ..InboxMessage::default() };
    match message.request(&"ann".parse().expect("an actor")) {
        Ok(request) => {
            assert_eq!(request.actor.as_str(), "ann", "no other actor");
            is_kept(&request);
        }
        Err(refusal) => assert!((1..=500).contains(&refusal.detail.chars().count()), "{refusal:?}"),
    }
}

fn is_kept(request: &IntentRequest) {
    let stored = Event::Intent(request.clone());
    let Ok(Event::Intent(read)) = Event::read(&stored.line()) else {
        panic!("a request cannot be read back")
    };
    assert_eq!(
        (read.key(), read.digest()),
        (request.key(), request.digest()),
        "a repeat would be another intent"
    );
}

/// Reads the type of an intent, a line feed, and its data.
pub fn intent(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Some((type_name, data)) = text.split_once('\n') else { return };
    let Some(Ok(intent)) = Intent::read(type_name, data) else { return };
    let again = Intent::read(type_name, &intent.data_json());
    assert!(matches!(again, Some(Ok(again)) if again == intent), "it is not read back: {intent:?}");
    let _ = intent.subject();
}

/// Reads a file of manifests.
pub fn manifest(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match chancery_cli::manifest::read("file.yaml", text) {
        Ok(manifests) => {
            for manifest in manifests {
                let found = Intent::read(manifest.intent.type_name(), &manifest.intent.data_json());
                assert!(
                    matches!(found, Some(Ok(found)) if found == manifest.intent),
                    "a server would not read it"
                );
            }
        }
        Err(faults) => assert!(!faults.to_string().is_empty(), "an error has a text"),
    }
}

/// Parses values that readers return: page tokens, and positions to resume from.
pub fn tokens(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(token) = text.parse::<PageToken>() {
        assert_eq!(token.to_string().parse(), Ok(token));
    }
    if let Ok(position) = text.parse::<Position>() {
        assert_eq!(position.to_string().parse(), Ok(position));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_corpora_are_read_as_they_should_be() {
        for (name, target) in TARGETS {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
            let files =
                std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
            let mut count = 0;
            for file in files {
                let path = file.expect("a file").path();
                println!("{}", path.display());
                target(&std::fs::read(&path).expect("its bytes"));
                count += 1;
            }
            assert!(count > 0, "{name} has no corpus");
        }
    }
}
