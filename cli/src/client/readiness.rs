//! Readiness of a server, for the checks of container engines and of service managers.

use std::time::Duration;

use super::{CliError, CommandIo, HttpReply, answer, problem};
use crate::OutputFormat;

/// Maximum duration of a request: the caller of a check repeats it.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

impl CommandIo<'_> {
    /// Prints that the server is ready, or fails with the reason. Each server of the list is asked once, until one
    /// answers.
    pub(crate) fn ready(&mut self) -> Result<(), CliError> {
        self.client.context.output(&[OutputFormat::Table])?;
        let doing = "cannot use server";
        let mut left = self.client.servers().count();
        let HttpReply { status, body, .. } = loop {
            left = left.saturating_sub(1);
            let request = self.client.agent.get(format!("{}/readyz", self.client.server()));
            match answer(request.config().timeout_global(Some(CHECK_TIMEOUT)).build().call()) {
                Ok(reply) => break reply,
                Err(_) if left > 0 => self.client.go_on(),
                Err(lost) => return Err(self.client.unread(doing, &lost)),
            }
        };
        if status != 200 {
            return Err(problem(doing, status, &body));
        }
        Ok(writeln!(self.out, "ready")?)
    }
}
