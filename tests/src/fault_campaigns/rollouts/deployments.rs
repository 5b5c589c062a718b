//! Deployments of a round: promises during a deployment, and permitted end states.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use chancery_events::spec::DeploymentStrategy;
use serde_json::Value;

use super::REPLICAS;
use super::observer::ServingPromise;
use super::script::{MAX_PARALLEL, PayloadVersion};
use crate::TestClient;

/// Deployment requested by an operator or a rule.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct Deployment {
    pub(super) name: String,
    /// Version coordinate that the deployment sets.
    pub(super) version: String,
    pub(super) strategy: DeploymentStrategy,
    /// Whether the deployment is rolled back automatically if it fails.
    pub(super) auto_rollback: bool,
    /// Whether the deployment was cancelled or rolled back successfully.
    pub(super) is_cancelled: bool,
    /// Whether the deployment's separate set of replicas is active. Before the cut-over, the set is deleted
    /// if the deployment ends.
    pub(super) has_cut_over: bool,
    /// Whether every replica has run since the deployment ended: none is down because of it.
    is_settled: bool,
    /// Last state that was read.
    pub(super) state: String,
}

impl Deployment {
    pub(super) fn new(name: &str, version: &str, strategy: DeploymentStrategy) -> Deployment {
        let (name, version, state) = (name.to_owned(), version.to_owned(), String::new());
        Deployment {
            name,
            version,
            strategy,
            auto_rollback: false,
            is_cancelled: false,
            has_cut_over: false,
            is_settled: false,
            state,
        }
    }

    /// Reads a deployment from its row.
    pub(super) fn read(row: &Value) -> Result<Deployment> {
        let name = row["name"].as_str().context("a deployment has a name")?;
        let version = row["coordinates"]["app"]["version"].as_str().context("a deployment has a version")?;
        let strategy = serde_json::from_value(row["strategy"].clone()).context("read a strategy")?;
        Ok(Deployment::new(name, version, strategy))
    }

    pub(super) fn kind(&self) -> Option<PayloadVersion> {
        PayloadVersion::of(&self.version)
    }

    /// Whether the deployment's version becomes ready.
    pub(super) fn serves(&self) -> bool {
        self.kind().is_some_and(PayloadVersion::serves)
    }

    fn has_completed(&self) -> bool {
        self.state == "completed"
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state.as_str(), "completed" | "failed" | "cancelled" | "superseded")
    }

    /// Whether the deployment needs an operator to end: its version hangs, or it is a working canary.
    /// Crashing versions fail.
    pub(super) fn waits_for_people(&self) -> bool {
        let is_canary = matches!(self.strategy, DeploymentStrategy::Canary { .. }) && !self.has_cut_over;
        let hangs = matches!(self.kind(), Some(PayloadVersion::Hung | PayloadVersion::Unready));
        !self.is_over() && !self.is_cancelled && (hangs || is_canary && self.serves())
    }

    /// Maximum number of replicas down concurrently if updates stop the predecessor first; otherwise none.
    fn takes_down(&self, drains: bool) -> usize {
        match self.strategy {
            DeploymentStrategy::Rolling { max_parallel, .. } => max_parallel.unwrap_or(1) as usize,
            // After promotion, the other replicas are updated one at a time.
            DeploymentStrategy::Canary { .. } => usize::from(self.has_cut_over),
            // The old set is deleted and not updated. But surplus replicas on a drained node are deleted
            // first, also of the new set. Then some of the old set remain, and are updated one at a time.
            DeploymentStrategy::BlueGreen { .. } => usize::from(drains),
        }
    }

    /// Whether an incomplete deployment may leave replicas of its version.
    fn leaves_any(&self) -> bool {
        self.serves() && (self.has_cut_over || matches!(self.strategy, DeploymentStrategy::Rolling { .. }))
    }

    /// Maximum number of additional replicas.
    fn replicas_alongside(&self) -> usize {
        match self.strategy {
            DeploymentStrategy::Rolling { .. } => 0,
            DeploymentStrategy::BlueGreen { .. } => REPLICAS,
            DeploymentStrategy::Canary { count } => count as usize,
        }
    }

    /// Checks that the deployment's state is a permitted end state.
    fn check(&self, is_last: bool) -> Result<()> {
        let may = match self.state.as_str() {
            "completed" => self.serves() && !self.is_cancelled,
            "failed" => !self.serves() && !self.is_cancelled,
            "cancelled" => self.is_cancelled,
            // Only a later deployment supersedes another.
            "superseded" => !is_last && !self.is_cancelled,
            _ => false,
        };
        ensure!(may, "this end is not allowed: {self:?}");
        Ok(())
    }
}

/// Replicas required at the end of a round.
#[derive(Debug)]
pub(super) struct RequiredReplicas {
    /// Permitted versions: more than one if a deployment of a serving version was ended halfway.
    pub(super) versions: BTreeSet<String>,
    /// Maximum number of replicas: more than the plan's count if two sets existed then.
    pub(super) most: usize,
}

impl RequiredReplicas {
    /// Whether all replicas have one version, and the plan's count.
    pub(super) fn is_exact(&self) -> bool {
        self.versions.len() == 1 && self.most == REPLICAS
    }
}

/// Deployments of a round, in their order of execution.
pub(super) struct RoundDeployments {
    /// Deployment that completed last before the round: each replica had its version.
    first: Deployment,
    later: Vec<Deployment>,
    /// Versions of all deployments ever completed.
    completed: BTreeSet<String>,
    /// Whether an update stops the old incarnation before it starts the new one.
    pub(super) stop_first: bool,
    /// Whether a node was drained in the round.
    pub(super) drains: bool,
}

impl RoundDeployments {
    /// State after the plan's first deployment, which completed.
    pub(super) fn new(first: Deployment) -> RoundDeployments {
        let completed = BTreeSet::from([first.version.clone()]);
        RoundDeployments { first, later: Vec::new(), completed, stop_first: false, drains: false }
    }

    pub(super) fn push(&mut self, deployment: Deployment) {
        self.later.push(deployment);
    }

    /// Last deployment requested in this round.
    pub(super) fn last(&mut self) -> Option<&mut Deployment> {
        self.later.last_mut()
    }

    pub(super) fn find(&mut self, name: &str) -> Option<&mut Deployment> {
        self.later.iter_mut().find(|deployment| deployment.name == name)
    }

    /// Reads the progress of all deployments, and finds automatic rollbacks.
    pub(super) fn read(&mut self, client: &TestClient) -> Result<()> {
        for row in client.items("plans/web/deployments?limit=1000") {
            let (name, state) = (row["name"].as_str().unwrap_or_default(), row["state"].as_str());
            if self.find(name).is_none()
                && let Some(rule) = row["rollback"]["rule"]["name"].as_str()
                && let Some(failed) = rule.split('/').nth(2)
                && let Some(at) = self.later.iter().position(|deployment| deployment.name == failed)
            {
                self.later.insert(at + 1, Deployment::read(&row)?);
            }
            if let Some(deployment) = self.find(name) {
                state.unwrap_or_default().clone_into(&mut deployment.state);
                deployment.has_cut_over = row["active_set"] == "new";
            }
        }
        Ok(())
    }

    /// Notes that the plan is at rest and every replica runs.
    pub(super) fn settle(&mut self) {
        for deployment in &mut self.later {
            deployment.is_settled = deployment.is_over();
        }
    }

    /// Last completed deployment, and all requested after it.
    fn since_completed(&self) -> (&Deployment, &[Deployment]) {
        match self.later.iter().rposition(Deployment::has_completed) {
            Some(at) => (&self.later[at], &self.later[at + 1..]),
            None => (&self.first, &self.later),
        }
    }

    /// Promise from now on. The last good version is the version of the deployment that completed last.
    /// Replicas of a later serving version also count, since they replace the others.
    pub(super) fn promise(&self) -> ServingPromise {
        let (completed, later) = self.since_completed();
        let serving = later.iter().filter(|deployment| deployment.serves());
        let good = serving.map(|deployment| &deployment.version).chain([&completed.version]).cloned();
        let open = || later.iter().filter(|deployment| !deployment.is_settled);
        // An automatic rollback uses the restored deployment's strategy.
        let follows = open().any(|deployment| deployment.auto_rollback).then_some(completed);
        let down = open().chain(follows).map(|deployment| deployment.takes_down(self.drains));
        let down = down.max().filter(|_| self.stop_first).unwrap_or(0);
        ServingPromise { good: good.collect(), least: REPLICAS - down }
    }

    /// Promise while a rollback to a still unknown version is requested.
    pub(super) fn promise_of_any(&self) -> ServingPromise {
        let ServingPromise { mut good, least } = self.promise();
        good.extend(self.completed.iter().cloned());
        let down = if self.stop_first { MAX_PARALLEL as usize } else { 0 };
        ServingPromise { good, least: least.min(REPLICAS - down) }
    }

    /// Replicas required when all deployments have ended.
    pub(super) fn required(&self) -> RequiredReplicas {
        let (completed, later) = self.since_completed();
        let halfway = || later.iter().filter(|deployment| deployment.leaves_any());
        let versions = halfway().map(|deployment| &deployment.version).chain([&completed.version]).cloned();
        let alongside: usize = halfway().map(Deployment::replicas_alongside).sum();
        RequiredReplicas { versions: versions.collect(), most: REPLICAS + alongside }
    }

    /// Checks that each deployment has ended in a permitted state.
    pub(super) fn check(&self) -> Result<()> {
        for (at, deployment) in self.later.iter().enumerate() {
            if !deployment.is_over() {
                bail!("the plan has nothing in progress, and this deployment has not ended: {deployment:?}");
            }
            deployment.check(at + 1 == self.later.len())?;
        }
        Ok(())
    }

    /// Starts another round: every replica has the version that completed last.
    pub(super) fn start_round(&mut self) {
        let done = self.later.iter().filter(|deployment| deployment.has_completed());
        self.completed.extend(done.map(|deployment| deployment.version.clone()));
        self.first = self.since_completed().0.clone();
        self.later.clear();
        self.drains = false;
    }
}

/// Formats name, version and state of each deployment.
impl std::fmt::Display for RoundDeployments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} completed", self.first.name, self.first.version)?;
        self.later.iter().try_for_each(|of| write!(f, ", {} of {} {}", of.name, of.version, of.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, max_parallel: u32, state: &str) -> Deployment {
        let strategy =
            DeploymentStrategy::Rolling { max_parallel: Some(max_parallel), per_domain: false, delay: 0 };
        Deployment { state: state.to_owned(), ..Deployment::new(name, name, strategy) }
    }

    fn good(promise: &ServingPromise) -> Vec<&str> {
        promise.good.iter().map(String::as_str).collect()
    }

    #[test]
    fn what_is_promised_follows_from_the_strategies_of_what_is_not_completed() {
        let mut all = RoundDeployments::new(of("good-1", 3, "completed"));
        assert_eq!((good(&all.promise()), all.promise().least), (vec!["good-1"], REPLICAS));
        all.push(of("crashing-2", 2, "in_progress"));
        assert_eq!((good(&all.promise()), all.promise().least), (vec!["good-1"], REPLICAS));
        all.stop_first = true;
        assert_eq!(all.promise().least, REPLICAS - 2);
        all.later[0].auto_rollback = true;
        assert_eq!(all.promise().least, REPLICAS - 3, "it would be rolled back as good-1 was rolled out");
        all.push(of("slow-3", 1, "in_progress"));
        assert_eq!((good(&all.promise()), all.promise().least), (vec!["good-1", "slow-3"], REPLICAS - 3));
        assert!(!all.required().is_exact(), "slow-3 may be ended halfway");
        all.later[0].state = "failed".into();
        all.settle();
        assert_eq!(
            all.promise().least,
            REPLICAS - 1,
            "crashing-2 has none down any more, and slow-3 continues"
        );
        all.later[1].state = "completed".into();
        assert_eq!((good(&all.promise()), all.promise().least), (vec!["slow-3"], REPLICAS));
        assert!(all.required().is_exact());
    }

    #[test]
    fn a_set_that_never_counted_leaves_nothing() {
        let canary =
            Deployment { strategy: DeploymentStrategy::Canary { count: 2 }, ..of("good-2", 1, "cancelled") };
        let mut all = RoundDeployments::new(of("good-1", 1, "completed"));
        all.push(canary);
        assert!(all.required().is_exact());
        all.later[0].has_cut_over = true;
        assert_eq!((all.required().versions.len(), all.required().most), (2, REPLICAS + 2));
    }

    #[test]
    fn a_deployment_ends_as_its_version_and_what_was_requested_allow() {
        let fine = |name: &str, state: &str, is_last: bool| of(name, 1, state).check(is_last).is_ok();
        assert!(fine("good-1", "completed", true) && !fine("hung-1", "completed", true));
        assert!(fine("hung-1", "failed", true) && !fine("good-1", "failed", true));
        assert!(fine("good-1", "superseded", false) && !fine("good-1", "superseded", true));
        assert!(!fine("good-1", "cancelled", true), "there was no request");
        let cancelled = Deployment { is_cancelled: true, ..of("good-1", 1, "completed") };
        assert!(cancelled.check(true).is_err(), "its cancellation was requested");
    }
}
