//! QMP, the protocol of the control socket of QEMU: JSON texts in both directions, one for each line.
//!
//! A session starts with a greeting of QEMU. A socket serves one client: to a second one, QEMU sends no greeting before the
//! first has left. Events and replies arrive in any order. Events and fields that are unknown here are kept, and are no
//! error: later versions of QEMU add both.

use std::io;

use serde_json::Value;

/// Maximum size of a message of QEMU, in bytes.
const LONGEST: usize = 1 << 20;

/// Message of QEMU.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum QmpMessage {
    /// Greeting, with the version.
    Greeting(Value),
    /// Event, which answers no command.
    Event(QmpEvent),
    /// Reply to the command with this id: its result, or the reason of QEMU's refusal.
    Reply(u64, Result<Value, String>),
    /// Message of an unknown form.
    Unknown(Value),
}

/// Event of QEMU.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct QmpEvent {
    pub(super) name: String,
    /// Fields of the event; null if it has none.
    pub(super) data: Value,
}

impl QmpMessage {
    fn read(mut message: Value) -> QmpMessage {
        if message["QMP"].is_object() {
            return QmpMessage::Greeting(message["QMP"].take());
        }
        if let Some(name) = message["event"].as_str() {
            let name = name.to_owned();
            return QmpMessage::Event(QmpEvent { name, data: message["data"].take() });
        }
        match message["id"].as_u64() {
            Some(id) if !message["return"].is_null() => QmpMessage::Reply(id, Ok(message["return"].take())),
            Some(id) if message["error"].is_object() => {
                let reason = message["error"]["desc"].as_str().unwrap_or("no reason given");
                QmpMessage::Reply(id, Err(reason.to_owned()))
            }
            _ => QmpMessage::Unknown(message),
        }
    }
}

/// Reader of messages from received bytes.
#[derive(Debug, Default)]
pub(super) struct QmpReader {
    received: Vec<u8>,
}

impl QmpReader {
    /// Adds received bytes, and returns the complete messages.
    pub(super) fn read(&mut self, bytes: &[u8]) -> io::Result<Vec<QmpMessage>> {
        self.received.extend_from_slice(bytes);
        let mut messages = Vec::new();
        let mut from = 0;
        while let Some(len) = self.received[from..].iter().position(|byte| *byte == b'\n') {
            let line = self.received[from..from + len].trim_ascii();
            from += len + 1;
            if !line.is_empty() {
                let message = serde_json::from_slice(line).map_err(|error| invalid(&error.to_string()))?;
                messages.push(QmpMessage::read(message));
            }
        }
        self.received.drain(..from);
        if self.received.len() > LONGEST {
            return Err(invalid("message too long"));
        }
        Ok(messages)
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid message of QEMU: {why}"))
}
