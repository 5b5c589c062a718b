//! Operator actions and the fault, applied to the plan.

use anyhow::{Result, ensure};
use chancery_events::spec::DeploymentStrategy;
use serde_json::{Value, json};

use super::deployments::Deployment;
use super::script::{EndAction, RoundStep, VersionRollout};
use super::{REPLICAS, RolloutsRound};
use crate::ServerAnswer;

/// Outcome of a decision where no canary waits for one.
const NO_CANARY: &str = "no canary to decide about";

impl RolloutsRound {
    /// Executes a step. Returns its name for the tally.
    pub(super) fn carry_out(&mut self, step: RoundStep) -> Result<String> {
        let word = match step {
            RoundStep::Deploy(rollout) => {
                self.deploy(&rollout);
                return Ok(rollout.words());
            }
            RoundStep::Cancel => {
                if let Some(name) = self.deployments.last().map(|last| last.name.clone()) {
                    self.cancel(&name)?;
                }
                "cancel"
            }
            RoundStep::RollBack => {
                self.roll_back()?;
                "rollback"
            }
            RoundStep::Decide { promotes } => {
                let current = self.server.client().read("plans/web")["current"].clone();
                match current.as_str() {
                    Some(name) => self.decide(name, promotes)?,
                    None => NO_CANARY,
                }
            }
            RoundStep::Drain(node) if self.drained.is_none() => {
                self.drain(format!("node-{node}"));
                "drain"
            }
            RoundStep::Drain(_) => {
                self.undrain();
                "undrain"
            }
            RoundStep::Rebalance => {
                // A rebalance is refused while a deployment places replicas.
                self.ask("plan.rebalance", &json!({"name": "web"}))?;
                "rebalance"
            }
            RoundStep::Kill(time) => {
                self.server.kill();
                std::thread::sleep(time);
                self.server.start_again();
                "kill of the server"
            }
        };
        Ok(word.to_owned())
    }

    /// Sends an intent that may be refused.
    fn ask(&self, type_name: &str, data: &Value) -> Result<ServerAnswer> {
        let answer = self.server.client().decided(&uuid::Uuid::new_v4().to_string(), type_name, data);
        ensure!((200..500).contains(&answer.status), "{type_name} {data}: {} {}", answer.status, answer.text);
        Ok(answer)
    }

    fn is_accepted(&self, type_name: &str, deployment: &str) -> Result<bool> {
        let answer = self.ask(type_name, &json!({"plan": "web", "name": deployment}))?;
        Ok(answer.status < 300)
    }

    fn name(&mut self, word: &str) -> String {
        self.names += 1;
        format!("{word}-{}", self.names)
    }

    /// Deploys a new version named like its deployment.
    pub(super) fn deploy(&mut self, rollout: &VersionRollout) {
        let name = self.name(rollout.version.word());
        let (strategy, auto_rollback) = (rollout.strategy, rollout.auto_rollback);
        let mut deployment = Deployment::new(&name, &name, strategy);
        deployment.auto_rollback = auto_rollback;
        self.deployments.push(deployment);
        self.observer.promise(self.deployments.promise());
        // A version that serves makes progress, however slow the machine is.
        let deadline = if rollout.version.serves() { 120_000 } else { 1000 };
        let spec = json!({
            "count": REPLICAS, "coordinates": {"app": {"version": name}}, "strategy": strategy,
            "auto_rollback": auto_rollback, "progress_deadline": deadline,
        });
        let overlap = if rollout.supersedes { "supersede" } else { "queue" };
        let body = json!({"plan": "web", "name": name, "spec": spec, "overlap": overlap});
        self.server.client().must("deployment.create", &body);
    }

    /// Deploys a version that works. Returns the action's name.
    pub(super) fn repair(&mut self) -> &'static str {
        self.deploy(&VersionRollout::REPAIR);
        "repaired"
    }

    /// Cancels a deployment, unless it has ended.
    pub(super) fn cancel(&mut self, name: &str) -> Result<()> {
        if self.is_accepted("deployment.cancel", name)?
            && let Some(deployment) = self.deployments.find(name)
        {
            deployment.is_cancelled = true;
        }
        Ok(())
    }

    /// Rolls the plan back, also during a deployment. Returns whether the request was accepted: there may be
    /// no earlier version.
    pub(super) fn roll_back(&mut self) -> Result<bool> {
        let name = self.name("rollback");
        self.observer.promise(self.deployments.promise_of_any());
        let is_accepted = self.is_accepted("plan.rollback", &name)?;
        if is_accepted {
            let row = self.server.client().read(&format!("plans/web/deployments/{name}"));
            self.deployments.push(Deployment::read(&row)?);
        }
        self.observer.promise(self.deployments.promise());
        Ok(is_accepted)
    }

    /// Promotes or rolls back a canary; a canary that does not serve is rolled back. Returns the action's name.
    fn decide(&mut self, name: &str, promotes: bool) -> Result<&'static str> {
        let found = self.deployments.find(name).map(|found| (found.strategy, found.serves()));
        let Some((DeploymentStrategy::Canary { .. }, serves)) = found else { return Ok(NO_CANARY) };
        let (type_name, word) = if promotes && serves {
            ("deployment.promote", "promote")
        } else {
            ("deployment.rollback", "canary rollback")
        };
        if word == "promote"
            && let Some(deployment) = self.deployments.find(name)
        {
            // The next read corrects this value if necessary.
            deployment.has_cut_over = true;
            self.observer.promise(self.deployments.promise());
        }
        if !self.is_accepted(type_name, name)? {
            return Ok(NO_CANARY);
        }
        if word == "canary rollback"
            && let Some(deployment) = self.deployments.find(name)
        {
            deployment.is_cancelled = true;
        }
        Ok(word)
    }

    /// Ends a deployment that waits for an operator.
    pub(super) fn end(&mut self, name: &str, action: EndAction, promotes: bool) -> Result<()> {
        if self.deployments.find(name).is_some_and(|deployment| deployment.serves()) {
            self.decide(name, promotes)?;
            return Ok(());
        }
        match action {
            EndAction::Cancel => self.cancel(name)?,
            EndAction::RollBack => {
                self.roll_back()?;
            }
            EndAction::Supersede => {
                self.repair();
            }
        }
        Ok(())
    }

    fn drain(&mut self, node: String) {
        self.deployments.drains = true;
        self.observer.promise(self.deployments.promise());
        self.server.cli(&["drain", &node]);
        self.drained = Some(node);
    }

    /// Undrains the drained node, if any.
    pub(super) fn undrain(&mut self) {
        if let Some(node) = self.drained.take() {
            self.server.cli(&["undrain", &node]);
        }
    }
}
