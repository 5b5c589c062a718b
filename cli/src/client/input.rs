//! Input to an attachment, sent until the guest has taken it.

use super::super::error::{CliError, CliExit};
use super::{AttemptError, HttpReply, TRIES, answer, code, problem};

/// Sender of input to an attachment.
pub(crate) struct ConsoleSender {
    pub(super) agent: ureq::Agent,
    pub(super) url: String,
}

impl ConsoleSender {
    /// Sends the bytes that follow `after` others. Returns whether the guest has taken all of them; otherwise they are sent again,
    /// and none of them counts twice.
    pub(crate) fn send(&self, doing: &str, after: u64, bytes: &[u8]) -> Result<bool, CliError> {
        let mut tried = 0;
        loop {
            tried += 1;
            let request = self.agent.post(&self.url).query("after", after.to_string());
            match answer(request.header("content-type", "application/octet-stream").send(bytes)) {
                Ok(HttpReply { status: 204, .. }) => return Ok(true),
                Ok(HttpReply { status: 503, body, .. }) if code(&body) == "busy" => return Ok(false),
                Ok(HttpReply { status, body, .. }) => return Err(problem(doing, status, &body)),
                Err(_) if tried < TRIES => {}
                Err(AttemptError::NotSent(why) | AttemptError::MaybeSent(why)) => {
                    let message = format!("{doing}: connection lost: {why}\nhint: attach again");
                    return Err(CliError::new(CliExit::Unreachable, message));
                }
            }
        }
    }
}
