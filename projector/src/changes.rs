//! From touched entities to changes of the store: each row once, with its index entries.
//!
//! | touched | other rows that may change |
//! |---|---|
//! | incarnation | command; replica; its node, for reservation or volumes; its plan, while deploying |
//! | operation | its replica; its plan, when its state changes, or while deploying |
//! | replica | its plan, when its phase or the update domain it remains in changes, or while deploying |
//! | volume | its node |
//! | node | the cluster that it joined or left |
//! | deployment | its plan |
//! | plan | its current deployment, and the queued one |
//!
//! Rows are visited in this order, and each finds the final counts. The old row is removed from indexes and
//! counts. For numerous kinds (replicas, incarnations, operations), the old row is built again from the
//! earlier entities. So a store that is larger than memory is not read to be written. For other kinds it is
//! read back. An unchanged row is not written.

use std::mem::take;

use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::{ClusterName, NodeName, PlanName, ReplicaName, VolumeName};
use chancery_events::subject::Subject;
use chancery_machine::fleet::{DeploymentKey, FleetState};
use chancery_machine::state::Replica;
use rustc_hash::FxHashSet;

use crate::build_row;
use crate::counts::{CountStep, RowCounts};
use crate::fold::{PastState, StateView, TouchedEntities};
use crate::index::IndexEntries;
use crate::kind::{KeyedRow as _, ReadModelRow, RowKey, with_row};
use crate::rows::{ClusterRow, DeploymentRow, IncarnationRow, NodeRow, PlanRow, ReplicaRow, VolumeRow};
use crate::store::{RowStore, StoreError, decode, encode};

/// Keys to write, or to remove. No key occurs twice.
#[derive(Default, Debug)]
pub(crate) struct RowWrites(pub(crate) Vec<(Vec<u8>, Option<Vec<u8>>)>);

/// Entities whose rows are visited.
#[derive(Default)]
struct TouchedKeys {
    clusters: FxHashSet<ClusterName>,
    nodes: FxHashSet<NodeName>,
    plans: FxHashSet<PlanName>,
    deployments: FxHashSet<DeploymentKey>,
    replicas: FxHashSet<ReplicaName>,
    incarnations: FxHashSet<IncarnationId>,
    operations: FxHashSet<OperationId>,
    volumes: FxHashSet<VolumeName>,
    /// Rows without dependent rows.
    others: FxHashSet<RowKey>,
}

impl TouchedKeys {
    fn of(touched: &TouchedEntities) -> TouchedKeys {
        let mut sets = TouchedKeys {
            replicas: touched.replicas.keys().cloned().collect(),
            incarnations: touched.incarnations.keys().copied().collect(),
            operations: touched.operations.keys().copied().collect(),
            ..TouchedKeys::default()
        };
        for subject in touched.others.iter().cloned() {
            let _ = match subject {
                Subject::Cluster(key) => sets.clusters.insert(key),
                Subject::Node(key) => sets.nodes.insert(key),
                Subject::Plan(key) => sets.plans.insert(key),
                Subject::Deployment(plan, name) => sets.deployments.insert((plan, name)),
                Subject::Volume(key) => sets.volumes.insert(key),
                other => RowKey::of(other).is_some_and(|key| sets.others.insert(key)),
            };
        }
        sets
    }
}

/// Returns the changes that follow from touched entities, and updates the counts. `rows` are those before the change.
pub(crate) fn changes(
    fleet: &FleetState,
    counts: &mut RowCounts,
    touched: &TouchedEntities,
    rows: &RowStore,
) -> Result<RowWrites, StoreError> {
    let past = PastState { fleet, touched };
    let mut visit = RowWriteBuilder {
        fleet,
        past,
        counts,
        rows,
        sets: TouchedKeys::of(touched),
        changes: RowWrites::default(),
    };
    visit.incarnations();
    visit.operations();
    visit.replicas();
    visit.catalogue()?;
    visit.plans()?;
    Ok(visit.changes)
}

struct RowWriteBuilder<'a> {
    fleet: &'a FleetState,
    past: PastState<'a>,
    counts: &'a mut RowCounts,
    rows: &'a RowStore,
    sets: TouchedKeys,
    changes: RowWrites,
}

/// Row before and after.
type RowChange<R> = (Option<R>, Option<R>);

/// Returns the old value, to be subtracted from the counts, and the new value, to be added.
fn turned<'a, T>(old: Option<&'a T>, new: Option<&'a T>) -> impl Iterator<Item = (&'a T, CountStep)> {
    old.map(|old| (old, CountStep::Down)).into_iter().chain(new.map(|new| (new, CountStep::Up)))
}

/// Whether the incarnation has its reservation on the node.
fn holds(row: Option<&IncarnationRow>) -> bool {
    row.is_some_and(|row| !row.state.is_over())
}

impl RowWriteBuilder<'_> {
    /// Writes a row if it differs from the old one, which is read back. Returns `None` if nothing changed.
    fn turn<R: ReadModelRow>(
        &mut self,
        key: &RowKey,
        new: Option<R>,
    ) -> Result<Option<RowChange<R>>, StoreError> {
        let key = key.stored();
        let old = self.rows.row(&key)?;
        let bytes = new.as_ref().map(encode);
        if old.as_deref() == bytes.as_deref() {
            return Ok(None);
        }
        let old = old.map(|old| decode::<R>(&key, &old)).transpose()?;
        self.put(key, old.as_ref(), new.as_ref(), bytes);
        Ok(Some((old, new)))
    }

    /// Writes a row if it differs from the old one. Returns whether it differs.
    fn follow<R: ReadModelRow>(&mut self, key: &RowKey, old: Option<&R>, new: Option<&R>) -> bool {
        let differs = old != new;
        if differs {
            self.put(key.stored(), old, new, new.map(encode));
        }
        differs
    }

    fn put<R: ReadModelRow>(
        &mut self,
        key: Vec<u8>,
        old: Option<&R>,
        new: Option<&R>,
        bytes: Option<Vec<u8>>,
    ) {
        if !old.zip(new).is_some_and(|(old, new)| old.is_indexed_as(new)) {
            self.entries(old, new);
        }
        self.changes.0.push((key, bytes));
    }

    /// Removes the index entries of the old row, and adds those of the new one.
    fn entries<R: ReadModelRow>(&mut self, old: Option<&R>, new: Option<&R>) {
        let of = |row: Option<&R>| {
            let mut entries = IndexEntries::default();
            if let Some(row) = row {
                row.index(&mut entries);
            }
            entries.0
        };
        let (before, after) = (of(old), of(new));
        let removed =
            before.iter().filter(|entry| !after.contains(entry)).cloned().map(|entry| (entry, None));
        self.changes.0.extend(removed);
        let added =
            after.into_iter().filter(|entry| !before.contains(entry)).map(|entry| (entry, Some(Vec::new())));
        self.changes.0.extend(added);
    }

    /// Visits a changed plan, as its deployment may now wait for another condition.
    fn waits(&mut self, plan: Option<&PlanName>) {
        let plan = plan.and_then(|name| self.fleet.plans().get(name));
        if let Some(plan) = plan.filter(|plan| plan.current.is_some()) {
            self.sets.plans.insert(plan.name.clone());
        }
    }

    fn incarnations(&mut self) {
        for id in take(&mut self.sets.incarnations) {
            let (old, new) = (build_row::incarnation(&self.past, id), build_row::incarnation(self.fleet, id));
            self.waits(new.as_ref().or(old.as_ref()).map(|row| &row.plan));
            if !self.follow(&RowKey::Incarnation(id), old.as_ref(), new.as_ref()) {
                continue;
            }
            let (before, after) = (build_row::command(&self.past, id), build_row::command(self.fleet, id));
            // A command is at its incarnation's last revision.
            if let Some(before) = &before
                && after.as_ref().is_none_or(|after| after.revision != before.revision)
            {
                self.follow(&before.key(), Some(before), None);
            }
            if let Some(after) = &after {
                let same = before.as_ref().filter(|before| before.revision == after.revision);
                self.follow(&after.key(), same, Some(after));
            }
            let Some(row) = new.as_ref().or(old.as_ref()) else { continue };
            self.sets.replicas.insert(row.replica.clone());
            let volumes = |row: Option<&IncarnationRow>| row.map(|row| row.reserved_storage.clone());
            let stores = volumes(old.as_ref()) != volumes(new.as_ref());
            if stores || holds(old.as_ref()) != holds(new.as_ref()) {
                self.sets.nodes.insert(row.node.clone());
            }
        }
    }

    fn operations(&mut self) {
        for id in take(&mut self.sets.operations) {
            let (old, new) = (build_row::operation(&self.past, id), build_row::operation(self.fleet, id));
            self.waits(new.as_ref().or(old.as_ref()).map(|row| &row.plan));
            if !self.follow(&RowKey::Operation(id), old.as_ref(), new.as_ref()) {
                continue;
            }
            let Some(row) = new.as_ref().or(old.as_ref()) else { continue };
            self.sets.replicas.insert(row.replica.clone());
            if old.as_ref().map(|row| row.state) != new.as_ref().map(|row| row.state) {
                self.sets.plans.insert(row.plan.clone());
            }
            for (row, way) in turned(old.as_ref(), new.as_ref()) {
                self.counts.operation(&row.plan, row.kind, row.state, way);
            }
        }
    }

    fn replicas(&mut self) {
        for name in take(&mut self.sets.replicas) {
            let (old, new) = (build_row::replica(&self.past, &name), build_row::replica(self.fleet, &name));
            self.waits(new.as_ref().or(old.as_ref()).map(|row| &row.plan));
            let domain = |of: Option<&Replica>| of.and_then(Replica::remaining).map(|run| run.domain.clone());
            let moved = domain(self.past.replica(&name)) != domain(self.fleet.replica(&name));
            if !self.follow(&RowKey::Replica(name), old.as_ref(), new.as_ref()) && !moved {
                continue;
            }
            let Some(row) = new.as_ref().or(old.as_ref()) else { continue };
            if moved {
                self.sets.plans.insert(row.plan.clone());
            }
            if old.as_ref().map(|row| row.phase) != new.as_ref().map(|row| row.phase) {
                self.sets.plans.insert(row.plan.clone());
            }
            if old.as_ref().map(ReplicaRow::counted) == new.as_ref().map(ReplicaRow::counted) {
                continue;
            }
            for (row, way) in turned(old.as_ref(), new.as_ref()) {
                self.counts.replica(&row.plan, row.counted(), way);
            }
        }
    }

    fn catalogue(&mut self) -> Result<(), StoreError> {
        for name in take(&mut self.sets.volumes) {
            let new = VolumeRow::of(self.fleet, self.counts, &name);
            let Some((old, new)) = self.turn(&RowKey::Volume(name), new)? else { continue };
            self.sets.nodes.extend(old.into_iter().chain(new).map(|row| row.node));
        }
        for name in take(&mut self.sets.nodes) {
            let new = NodeRow::of(self.fleet, self.counts, &name);
            let Some((old, new)) = self.turn(&RowKey::Node(name), new)? else { continue };
            for (row, way) in turned(old.as_ref(), new.as_ref()) {
                self.counts.node_state(row.state, way);
            }
            let (from, to) = (old.and_then(|row| row.cluster), new.and_then(|row| row.cluster));
            if from != to {
                for (cluster, way) in turned(from.as_ref(), to.as_ref()) {
                    self.counts.node(cluster, way);
                }
                self.sets.clusters.extend(from.into_iter().chain(to));
            }
        }
        for name in take(&mut self.sets.clusters) {
            let new = ClusterRow::of(self.fleet, self.counts, &name);
            self.turn(&RowKey::Cluster(name), new)?;
        }
        for key in take(&mut self.sets.others) {
            with_row!(key.kind(), R => {
                let new = R::of_key(self.fleet, self.counts, &key);
                self.turn::<R>(&key, new)?;
            });
        }
        Ok(())
    }

    fn plans(&mut self) -> Result<(), StoreError> {
        let named: Vec<_> = self.sets.deployments.iter().map(|(plan, _)| plan.clone()).collect();
        self.sets.plans.extend(named);
        for name in take(&mut self.sets.plans) {
            let plan = self.fleet.plans().get(&name);
            let open = plan.into_iter().flat_map(|plan| plan.current.iter().chain(&plan.next));
            self.sets.deployments.extend(open.map(|open| (name.clone(), open.clone())));
            let new = PlanRow::of(self.fleet, self.counts, &name);
            self.turn(&RowKey::Plan(name), new)?;
        }
        for key in take(&mut self.sets.deployments) {
            let new = DeploymentRow::of(self.fleet, self.counts, &key);
            self.turn(&RowKey::Deployment(key.0, key.1), new)?;
        }
        Ok(())
    }
}
