//! Random sequences of deployments, operator actions and one fault, with real processes. Versions work, are
//! slow, crash or never become ready, with every strategy. Actions are cancel, supersede, roll back, promote,
//! drain, rebalance, and `kill -9` of the server. A round has 3 to 6 steps ([`script`]), and three
//! things hold:
//!
//! | when | what |
//! |---|---|
//! | at each sample ([`observer`]) | as many replicas serve a good version as the strategies promise, according to the processes themselves |
//! | when nothing is left to do ([`deployments`]) | each deployment has ended as its version and the operator's requests allow |
//! | then ([`rest`]) | exactly the wanted replicas run, each once; no move of a replica would make the spread more even, or the plan's row reports an uneven spread |
//!
//! The last good version is the version of the deployment that completed last. Replicas of a later serving
//! version also count, as they replace the others. The strategies promise:
//!
//! | updates | strategy | maximum down concurrently |
//! |---|---|---|
//! | `start_first` | any | none |
//! | `stop_first` | `rolling` | `max_parallel`, one unless set |
//! | `stop_first` | `canary` | none, and one after promotion |
//! | `stop_first` | `blue_green` | none, and one if a node is drained |
//!
//! Of several incomplete deployments, the one with the highest maximum counts: a deployment stops
//! incarnations only when all that its predecessor stopped serve again.

mod actions;
mod deployments;
mod observer;
mod rest;
mod script;

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use chancery_events::spec::DeploymentStrategy;
use serde_json::{Value, json};

use self::deployments::{Deployment, RoundDeployments};
use self::observer::{ServingObserver, serving};
use self::rest::{better, by_node, check_balance, check_set, check_spread, comes, is_at_rest, set_capacity};
use self::script::{EndAction, PlanSettings, RoundScript, payload};
use super::evidence::{ServerEvidence, judge};
use super::fleet::set_up;
use crate::history::InvocationHistory;
use crate::ledger::CountMap;
use crate::{ServerProcess, payloads, until};

/// Number of replicas of the plan.
const REPLICAS: usize = 4;
/// Session lease; a start of the server extends deadlines of deployments by the lease.
const LEASE: &str = "3s";

pub(super) fn run(rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut server = ServerProcess::start_with(&[("CHANCERY_SESSION_LEASE", LEASE)]);
    server.stay_at_this_address();
    set_up(&server.client(), &payload());
    set_capacity(&server.client());
    let mut rollouts = RolloutsRound::begin(server)?;
    for round in 0..rounds {
        let script = RoundScript::draw(seed, round);
        let played = rollouts.play(&script, tally);
        played
            .map_err(|error| rollouts.explained(error, &script))
            .with_context(|| format!("round {round}"))?;
        tally.rounds += 1;
    }
    let (mut server, samples) = rollouts.finish()?;
    ensure!(samples > rounds, "{samples} samples in {rounds} rounds");
    let mut evidence = vec![ServerEvidence::gather(&server)?];
    let client = server.client();
    client.must("deployment.create", &json!({"plan": "web", "name": "none", "spec": {"count": 0}}));
    until("no replica is left", || client.items("replicas?limit=1").is_empty().then_some(()));
    until("nothing runs", || payloads(server.data()).is_empty().then_some(()));
    evidence.push(ServerEvidence::gather(&server)?);
    let code = server.stop();
    ensure!(code == Some(0), "the server ends with {code:?}:\n{}", server.log());
    judge(server.data(), &InvocationHistory::default(), &evidence, tally)
}

/// The plan, and its requested deployments.
struct RolloutsRound {
    server: ServerProcess,
    observer: ServingObserver,
    deployments: RoundDeployments,
    /// Number of names issued.
    names: u64,
    drained: Option<String>,
}

impl RolloutsRound {
    /// Deploys the first version to all replicas.
    fn begin(server: ServerProcess) -> Result<RolloutsRound> {
        let client = server.client();
        let (name, strategy) = ("good-1", DeploymentStrategy::default());
        let spec = json!({"count": REPLICAS, "coordinates": {"app": {"version": name}}});
        client.must("deployment.create", &json!({"plan": "web", "name": name, "spec": spec}));
        comes("the first version runs", || Ok(is_at_rest(&client.read("plans/web")).then_some(())))?;
        let deployments = RoundDeployments::new(Deployment::new(name, name, strategy));
        check_set(&client, server.data(), &deployments.required())?;
        let observer = ServingObserver::begin(server.data(), deployments.promise());
        Ok(RolloutsRound { server, observer, deployments, names: 1, drained: None })
    }

    /// Plays a round. Finally each replica has the version that completed last.
    fn play(&mut self, script: &RoundScript, tally: &mut CountMap) -> Result<()> {
        self.set_policy(script.policy);
        for (step, pause) in &script.steps {
            tally.fault(&self.carry_out(*step)?);
            std::thread::sleep(*pause);
            self.read_progress()?;
        }
        if script.undrains_early {
            self.undrain();
        }
        self.settle(script)?;
        if self.check()? {
            tally.fault("uneven in the end, and shown so");
            if script.rebalances {
                self.server.client().must("plan.rebalance", &json!({"name": "web"}));
                self.settle(script)?;
                ensure!(!self.check()?, "a rebalance has completed, and a move would still be better");
            }
        }
        if !self.deployments.required().is_exact() {
            let word = if script.rolls_back && self.roll_back()? { "rolled back" } else { self.repair() };
            tally.fault(&format!("halfway in the end, and {word}"));
            self.settle(script)?;
            let wanted = self.deployments.required();
            ensure!(wanted.is_exact(), "a version that works was not deployed: {wanted:?}");
            self.check()?;
        }
        self.undrain();
        self.deployments.start_round();
        self.read_progress()?;
        Ok(())
    }

    /// Sets the plan's rules for updates, restarts and drains, which are immediate fields.
    fn set_policy(&mut self, policy: PlanSettings) {
        let client = self.server.client();
        let mut spec = client.read("plans/web")["spec"].clone();
        spec["update_order"] = json!(if policy.stop_first { "stop_first" } else { "start_first" });
        spec["restart"] = json!(if policy.always { "always" } else { "on_failure" });
        spec["max_unavailable"] = json!(policy.max_unavailable);
        // Short, so that replicas that failed several times restart within the round.
        spec["restart_delay"] = json!(20);
        client.must("plan.apply", &json!({"name": "web", "spec": spec}));
        self.deployments.stop_first = policy.stop_first;
    }

    /// Reads the plan's progress and updates the promise. Returns the plan's row.
    fn read_progress(&mut self) -> Result<Value> {
        let client = self.server.client();
        self.deployments.read(&client)?;
        let plan = client.read("plans/web");
        if is_at_rest(&plan) {
            self.deployments.settle();
        }
        self.observer.promise(self.deployments.promise());
        self.observer.check()?;
        Ok(plan)
    }

    /// Waits until the plan is at rest and a drained node is empty. The script ends deployments that do not
    /// end automatically.
    fn settle(&mut self, script: &RoundScript) -> Result<()> {
        let (mut began, mut end_action) = (Instant::now(), script.end_action);
        comes("the plan has nothing in progress", || {
            let plan = self.read_progress()?;
            if is_at_rest(&plan) && self.is_drained_node_empty() {
                return Ok(Some(()));
            }
            if let Some(current) = plan["current"].as_str()
                && began.elapsed() >= script.patience
                && self.deployments.find(current).is_some_and(|current| current.waits_for_people())
            {
                self.end(current, end_action, script.promotes)?;
                // Other ways may be refused.
                (began, end_action) = (Instant::now(), EndAction::Cancel);
            }
            Ok(None)
        })
        .with_context(|| format!("the plan: {}", self.server.client().read("plans/web")["message"]))?;
        // A deployment completed since the last read is now the only one that counts.
        self.read_progress()?;
        Ok(())
    }

    fn is_drained_node_empty(&self) -> bool {
        let is_empty = |node| self.server.client().read(&format!("nodes/{node}"))["state"] == "evicted";
        self.drained.as_ref().is_none_or(is_empty)
    }

    /// Checks what must hold at rest. Returns whether the spread is uneven.
    fn check(&self) -> Result<bool> {
        self.deployments.check()?;
        let client = self.server.client();
        let serving = check_set(&client, self.server.data(), &self.deployments.required())?;
        check_spread(&client, &serving, self.drained.as_deref())
    }

    /// Checks the reported spread. Returns the server and the number of samples.
    fn finish(self) -> Result<(ServerProcess, u64)> {
        let serving = serving(self.server.data());
        let is_uneven = better(&by_node(&serving), self.drained.as_deref()).is_some();
        check_balance(&self.server.client(), if is_uneven { "uneven" } else { "even" })?;
        Ok((self.server, self.observer.end()?))
    }

    /// Adds script and deployments to an error. All events are written to a file that the error names.
    fn explained(&self, error: anyhow::Error, script: &RoundScript) -> anyhow::Error {
        let error = self.observer.check().err().unwrap_or(error);
        let events = self.server.client().get("/v1/fleets/default/events?follow=false").text;
        let file = std::env::temp_dir().join(format!("rollouts-{}.events", std::process::id()));
        let kept = std::fs::write(&file, events)
            .map_or_else(|error| error.to_string(), |()| file.display().to_string());
        error.context(format!("{script:?}; {}; events: {kept}", self.deployments))
    }
}
