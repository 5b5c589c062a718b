//! Client that sends commands and reads reports.

use std::collections::BTreeMap;
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::ObjectId;
use chancery_events::observation::{ObjectReport, ObservedState};
use chancery_events::protocol::ObjectSpec;

use super::{OrchestratorUnderTest, command, is_clean};
use chancery_executor::orchestrator::Orchestrator;

/// Time limit of each wait.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Reports per read: few, so that readers can be slow.
const LIMIT: usize = 3;

/// Orchestrator between two restarts, and what its reader knows.
pub(super) struct OrchestratorClient<O> {
    pub(super) orchestrator: O,
    pub(super) known: BTreeMap<ObjectId, ObjectReport>,
}

impl<O: Orchestrator> OrchestratorClient<O> {
    pub(super) async fn open<S: OrchestratorUnderTest<Orchestrator = O>>(
        subject: &S,
    ) -> OrchestratorClient<O> {
        let mut reader = OrchestratorClient { orchestrator: subject.open().await, known: BTreeMap::new() };
        reader.list().await;
        reader
    }

    pub(super) async fn restart<S: OrchestratorUnderTest<Orchestrator = O>>(
        self,
        subject: &S,
    ) -> OrchestratorClient<O> {
        drop(self.orchestrator);
        OrchestratorClient::open(subject).await
    }

    pub(super) async fn order(
        &self,
        object: impl Into<ObjectId>,
        revision: u32,
        effect: CommandEffect,
        spec: &(impl Clone + Into<ObjectSpec>),
    ) {
        self.orchestrator.carry_out(command(object.into(), revision, effect, spec)).await;
    }

    pub(super) async fn list(&mut self) -> BTreeMap<ObjectId, ObjectReport> {
        let reports = self.orchestrator.list().await.expect("the API responds");
        self.known = reports.into_iter().map(|r| (r.object, r)).collect();
        self.known.clone()
    }

    /// Waits for the next report of an object.
    pub(super) async fn next_report(&mut self, id: impl Into<ObjectId>) -> ObjectReport {
        let id = id.into();
        self.known.remove(&id);
        self.wait(id, "it is reported", |_| true).await
    }

    pub(super) async fn until(
        &mut self,
        id: impl Into<ObjectId>,
        revision: u32,
        what: &str,
        is: impl Fn(&ObservedState) -> bool,
    ) -> ObjectReport {
        self.wait(id, what, |report| report.revision == revision && is(&report.observed)).await
    }

    pub(super) async fn wait(
        &mut self,
        id: impl Into<ObjectId>,
        what: &str,
        is: impl Fn(&ObjectReport) -> bool,
    ) -> ObjectReport {
        let id = id.into();
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(report) = self.known.get(&id).filter(|report| is(report)) {
                    return report.clone();
                }
                let news = self.orchestrator.changes(LIMIT).await.expect("the watch is not lost");
                self.known.extend(news.into_iter().map(|report| (report.object, report)));
            }
        });
        match found.await {
            Ok(report) => report,
            Err(late) => panic!("{what}: not seen of {id} ({late}), but {:?}", self.known.get(&id)),
        }
    }

    /// Stops an incarnation and purges it.
    pub(super) async fn end(
        &mut self,
        id: impl Into<ObjectId>,
        revision: u32,
        spec: &(impl Clone + Into<ObjectSpec>),
    ) {
        let id = id.into();
        self.order(id, revision, CommandEffect::Kill, spec).await;
        self.until(id, revision, "it ended", is_clean).await;
        self.forget(id).await;
    }

    pub(super) async fn forget(&mut self, id: impl Into<ObjectId>) {
        let id = id.into();
        self.orchestrator.forget(id).await;
        assert!(!self.list().await.contains_key(&id), "an ended object is purged on request");
    }
}
