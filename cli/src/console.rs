//! `console`: a terminal attached to the first serial port of a guest.
//!
//! The intent `console.open` records who attaches. Output is one long response; input is sent in requests, one after the other, each
//! with the number of bytes before it. A repeated request thus gives the guest nothing twice.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use chancery_events::console::{ConsoleLine, MAX_INPUT};
use chancery_events::intent::ConsoleOpen;
use chancery_events::name::PayloadName;
use chancery_events::spec::ConsoleAccess;

use super::act::read;
use super::client::{CommandIo, ConsoleSender, not_ours};
use super::context::OutputFormat;
use super::error::{CliError, CliExit};
use super::flags::ConsoleArgs;
use super::kind::{EntityKind, KindNaming as _};

use crate::note;

mod escape;
mod terminal;

pub(super) use escape::EscapeKey;
use terminal::RawTerminal;

/// Maximum number of typed bytes that were not sent.
const MAX_UNSENT: usize = 64 << 10;
/// Maximum length of a line of the server in bytes.
const MAX_LINE: u64 = 64 << 10;
/// Pause before input is sent again that the guest does not take.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum time for which a client that detaches waits until everything was sent.
const DETACH: Duration = Duration::from_secs(1);

/// Event of an attachment.
enum AttachmentEvent {
    Output(Vec<u8>),
    /// The guest has ended.
    GuestEnded,
    /// The user detaches.
    Detached,
    Failed(CliError),
}

pub(super) fn run(args: &ConsoleArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    io.client.context.output(&[OutputFormat::Table])?;
    let name = EntityKind::Replica.name_in(&args.replica)?;
    let payload = args.payload.as_deref().map(str::parse::<PayloadName>).transpose();
    let payload = payload.map_err(|error| CliError::usage(error.to_string()))?;
    let access = if args.read_only { ConsoleAccess::ReadOnly } else { ConsoleAccess::ReadWrite };
    let doing = format!("cannot attach to replica/{name}");
    let intent = ConsoleOpen { name: read(EntityKind::Replica, name)?, payload, access };
    let verdict = io.client.ask(&doing, &intent.into())?;
    let mut stream = BufReader::new(io.client.attach(&doing, verdict.position)?);
    let first = next_line(&mut stream, &doing)?;
    let ConsoleLine::Attached(attachment) = first else {
        return Err(not_ours(&doing, "must start with the attachment"));
    };
    let how = if args.read_only { ", read-only" } else { "" };
    note!("attached to replica/{name}{how}; escape: {}", args.escape);
    let terminal = RawTerminal::begin()?;
    let (events, received) = sync_channel(1);
    begin_reader(stream, doing.clone(), events.clone())?;
    begin_input(args, io.client.input_sender(attachment), doing, &events)?;
    let ended = carry(&received, io);
    drop(terminal);
    let reason = ended?;
    note!("\ndetached: {reason}");
    Ok(())
}

/// Shows output until the attachment ends, and returns the reason.
fn carry(events: &Receiver<AttachmentEvent>, io: &mut CommandIo<'_>) -> Result<String, CliError> {
    loop {
        match events.recv() {
            Ok(AttachmentEvent::Output(bytes)) => {
                io.out.write_all(&bytes)?;
                io.out.flush()?;
            }
            Ok(AttachmentEvent::GuestEnded) => return Ok("the guest has ended".to_owned()),
            Ok(AttachmentEvent::Failed(error)) => return Err(error),
            Ok(AttachmentEvent::Detached) | Err(_) => return Ok("by the escape key".to_owned()),
        }
    }
}

/// Starts the thread that reads the server's lines.
fn begin_reader(
    mut stream: BufReader<impl Read + Send + 'static>,
    doing: String,
    events: SyncSender<AttachmentEvent>,
) -> Result<(), CliError> {
    spawn(move || {
        loop {
            let event = match next_line(&mut stream, &doing) {
                Ok(ConsoleLine::Output(bytes)) => AttachmentEvent::Output(bytes.0),
                Ok(ConsoleLine::Ended(None)) => AttachmentEvent::GuestEnded,
                Ok(ConsoleLine::Ended(Some(reason))) => AttachmentEvent::Failed(CliError::new(
                    CliExit::Unreachable,
                    format!("{doing}: {reason}\nhint: attach again"),
                )),
                Ok(ConsoleLine::Attached(_)) => continue,
                Err(error) => AttachmentEvent::Failed(error),
            };
            let is_last = !matches!(event, AttachmentEvent::Output(_));
            if events.send(event).is_err() || is_last {
                return;
            }
        }
    })
}

/// Reads the next line that is not empty.
fn next_line(stream: &mut impl std::io::BufRead, doing: &str) -> Result<ConsoleLine, CliError> {
    let lost = |why: String| {
        CliError::new(CliExit::Unreachable, format!("{doing}: connection lost: {why}\nhint: attach again"))
    };
    loop {
        let mut line = Vec::new();
        let read = stream.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        if read.map_err(|error| lost(error.to_string()))? == 0 {
            return Err(lost("the server closed it".to_owned()));
        }
        if line != b"\n" {
            return serde_json::from_slice(&line).map_err(|error| not_ours(doing, error));
        }
    }
}

/// Typed bytes that were not sent, and whether there will be more.
#[derive(Default)]
struct UnsentInput {
    state: Mutex<(Vec<u8>, bool)>,
    changed: Condvar,
}

impl UnsentInput {
    fn state(&self) -> std::sync::MutexGuard<'_, (Vec<u8>, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds bytes, once there is room.
    fn add(&self, bytes: &[u8]) {
        let is_full = |state: &mut (Vec<u8>, bool)| state.0.len() >= MAX_UNSENT;
        let mut state =
            self.changed.wait_while(self.state(), is_full).unwrap_or_else(PoisonError::into_inner);
        state.0.extend_from_slice(bytes);
        self.changed.notify_all();
    }

    /// Notes that nothing follows, and waits until everything was sent, for a second at most: a guest that reads nothing does not
    /// keep its client.
    fn end(&self) {
        let mut state = self.state();
        state.1 = true;
        self.changed.notify_all();
        let unsent = |state: &mut (Vec<u8>, bool)| !state.0.is_empty();
        drop(self.changed.wait_timeout_while(state, DETACH, unsent).unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the next bytes to send, at most [`MAX_INPUT`]; none if nothing follows.
    fn next(&self) -> Vec<u8> {
        let waits = |state: &mut (Vec<u8>, bool)| state.0.is_empty() && !state.1;
        let state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        state.0[..state.0.len().min(MAX_INPUT)].to_vec()
    }

    /// Removes bytes that were sent.
    fn sent(&self, count: usize) {
        self.state().0.drain(..count);
        self.changed.notify_all();
    }
}

/// Starts the threads that read the standard input, and send it.
fn begin_input(
    args: &ConsoleArgs,
    sender: ConsoleSender,
    doing: String,
    events: &SyncSender<AttachmentEvent>,
) -> Result<(), CliError> {
    let unsent = Arc::new(UnsentInput::default());
    let (typed, escape, read_only) = (Arc::clone(&unsent), args.escape, args.read_only);
    let detached = events.clone();
    spawn(move || {
        let mut buffer = [0; 1024];
        loop {
            let Ok(count) = std::io::stdin().lock().read(&mut buffer) else { return };
            // The end of a file does not detach: answers may follow.
            if count == 0 {
                return;
            }
            let (bytes, is_over) = escape.split(&buffer[..count]);
            if !read_only {
                typed.add(bytes);
            }
            if is_over {
                typed.end();
                // The other end is gone if the attachment has ended.
                let _ = detached.send(AttachmentEvent::Detached);
                return;
            }
        }
    })?;
    let failed = events.clone();
    spawn(move || {
        let mut after = 0;
        loop {
            let bytes = unsent.next();
            if bytes.is_empty() {
                return;
            }
            match sender.send(&doing, after, &bytes) {
                Ok(true) => {
                    after += bytes.len() as u64;
                    unsent.sent(bytes.len());
                }
                Ok(false) => std::thread::sleep(PAUSE),
                Err(error) => {
                    // The other end is gone if the attachment has ended.
                    let _ = failed.send(AttachmentEvent::Failed(error));
                    return;
                }
            }
        }
    })
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), CliError> {
    std::thread::Builder::new().spawn(run)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_sent_in_pieces_and_what_waits_has_a_bound() {
        let unsent = Arc::new(UnsentInput::default());
        let typed = Arc::clone(&unsent);
        let all: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let bytes = all.clone();
        let typing = std::thread::spawn(move || {
            for piece in bytes.chunks(1024) {
                typed.add(piece);
            }
            typed.end();
        });
        let mut sent = Vec::new();
        loop {
            let next = unsent.next();
            if next.is_empty() {
                break;
            }
            assert!(next.len() <= MAX_INPUT && unsent.state().0.len() < MAX_UNSENT + 1024);
            sent.extend_from_slice(&next);
            unsent.sent(next.len());
        }
        typing.join().expect("typed");
        assert!(sent == all);
    }

    #[test]
    fn a_connection_that_ends_within_a_line_is_an_error_and_empty_lines_are_none() {
        let mut stream = &b"\n\n{\"output\":\"aGk=\"}\n\n{\"ended\":\"bye\"}\n"[..];
        let next = |stream: &mut &[u8]| next_line(stream, "cannot attach");
        assert!(matches!(next(&mut stream), Ok(ConsoleLine::Output(bytes)) if bytes.0 == b"hi"));
        assert!(matches!(next(&mut stream), Ok(ConsoleLine::Ended(Some(reason))) if reason == "bye"));
        for rest in ["", "{\"output\":\"aG", "{}\n", "{\"output\":\"?\"}\n"] {
            let error = next(&mut rest.as_bytes()).expect_err(rest);
            assert!(error.message.starts_with("cannot attach: "), "{}", error.message);
        }
    }
}
