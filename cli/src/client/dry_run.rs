//! Dry runs: all intents of a command in one request, as later intents depend on earlier ones.

use chancery_events::intent::Intent;
use serde_json::Value;

use super::{ApiClient, FinalReply};
use crate::bulk::BATCH;
use crate::error::CliError;

impl ApiClient<'_> {
    /// Returns the answer to a dry run of the intents, at the moment of reads.
    pub(crate) fn dry_run<'i>(
        &self,
        doing: &str,
        intents: impl Iterator<Item = &'i Intent>,
    ) -> Result<Value, CliError> {
        let bodies: Vec<_> = intents.map(|intent| self.envelope(intent, None)).collect();
        let body = format!("[{}]", bodies.join(","));
        let mut reply = self.run_dry(doing, &body)?;
        if reply.status != 200 && self.moment.use_last(&reply.body) {
            reply = self.run_dry(doing, &body)?;
        }
        reply.value(doing)
    }

    fn run_dry(&self, doing: &str, body: &str) -> Result<FinalReply, CliError> {
        let ran = self.tried(|| {
            let request = self.agent.post(self.url("/dry-run")).header("content-type", BATCH);
            self.answer(request.query_pairs(self.state_query()).send(body))
        });
        ran.map_err(|lost| self.unread(doing, &lost))
    }
}
