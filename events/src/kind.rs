//! Register of kinds: [`each_kind!`] lists each kind of entity once, and every other list of kinds is derived
//! from it.
//!
//! To add a kind, write its entry, its name type, and what the compiler then requires
//! (`docs/adding-a-kind.md` has an example):
//!
//! | part of the kind | where it is written | derived from the register |
//! |---|---|---|
//! | intents and facts | `events/src/intent.rs`, `events/src/fact/register.rs` | subjects ([`crate::subject::Subject`]), stream filters |
//! | spec | `events/src/spec/` | |
//! | entity | `machine/src/state.rs`, with a line in `indexed!` | table, undo entry, member of a snapshot, version |
//! | rules | `machine/src/`, a module per entity; arms in `decide.rs` | |
//! | row | `projector/src/rows.rs`; filters, and how the row follows from the state: an `impl Row` in `projector/src/build_row/` | kind and key of rows, their text and bytes |
//! | columns | `cli/src/columns.rs` | command-line kind, its names, `delete`, `activate`, `deactivate` |
//! | manifest form | `cli/src/manifest/form.rs` | the order of applying, schema |
//! | | | API paths, history, `OpenAPI` |

use std::fmt;

use crate::id::Position;

/// Passes the register to a macro, in the order of subjects, tables and rows.
///
/// | part of an entry | meaning |
/// |---|---|
/// | variant, word, plural, `[aliases]` | names of the kind: in code, in subjects, in paths, on command lines |
/// | number, text | place in the list for people, and description |
/// | `key(field: type)` | fields of rows and bodies that name the entity; also the parameters of its path |
/// | `owner(EntityKind)` | kind of the owner: the key starts with the owner's name |
/// | `entity(table: type)` | the kind has a subject, and a table in the state machine |
/// | `row(Kind = number: type)` | the kind has rows, whose keys start with this byte |
/// | `ends[words]` | final states |
/// | `manifest(number spec)` | the kind has a manifest: its place in the order of applying, and the type of its spec |
/// | `manifest(number: form)` | the same, where the manifest has another form than the spec |
#[macro_export]
macro_rules! each_kind {
    ($then:ident) => {
        $then! {
            Cluster "cluster" "clusters" ["cl"] 1 "Sets of nodes behind one orchestrator" {
                key(name: ClusterName) entity(clusters: Cluster) row(Clusters = 1: ClusterRow)
                manifest(1 ClusterSpec)
            }
            Capability "capability" "capabilities" ["cap", "caps"] 2 "Features that nodes may have, with a score" {
                key(name: CapabilityName) entity(capabilities: Capability) row(Capabilities = 2: CapabilityRow)
                manifest(2 CapabilitySpec)
            }
            Node "node" "nodes" ["no"] 3 "Machines, or shares of machines" {
                key(name: NodeName) entity(nodes: Node) row(Nodes = 3: NodeRow) ends["expunged"]
                manifest(3: NodeForm)
            }
            Plan "plan" "plans" ["pl"] 6 "Payloads to run, and nodes where they may run" {
                key(name: PlanName) entity(plans: Plan) row(Plans = 4: PlanRow)
                manifest(4: PlanForm)
            }
            Deployment "deployment" "deployments" ["dep"] 7 "Versions of plans' payloads, and counts; named PLAN/NAME" {
                key(plan: PlanName, name: DeploymentName) owner(Plan)
                entity(deployments: Deployment) row(Deployments = 5: DeploymentRow)
                ends["completed", "failed", "cancelled", "superseded"]
                manifest(6: DeploymentForm)
            }
            Replica "replica" "replicas" ["rep"] 8 "Members of plans' services" {
                key(name: ReplicaName) entity(replicas: Replica) row(Replicas = 6: ReplicaRow)
            }
            Incarnation "incarnation" "incarnations" ["inc"] 9 "Executions of replicas on one node" {
                key(id: IncarnationId) entity(incarnations: Incarnation) row(Incarnations = 7: IncarnationRow)
                ends["destroyed", "powered_off", "failed", "unwound"]
            }
            Operation "operation" "operations" ["op"] 10 "Changes of replicas, subject to approval" {
                key(id: OperationId) entity(operations: Operation) row(Operations = 8: OperationRow)
                ends["succeeded", "failed", "rejected", "expired", "cancelled", "superseded"]
            }
            Session "session" "sessions" ["ses"] 13 "Executors' leases on clusters" {
                key(id: SessionId) entity(sessions: Session) row(Sessions = 9: SessionRow)
                ends["expired", "left", "cluster_deleted"]
            }
            Command "command" "commands" ["cmd"] 14 "Commands that an executor has not answered yet; listed only" {
                key(incarnation: IncarnationId, revision: Revision) row(Commands = 10: CommandRow)
            }
            Policy "policy" "policies" ["pol"] 5 "Rules for approvals" {
                key(name: PolicyName) entity(policies: Policy) row(Policies = 11: PolicyRow)
                manifest(5: PolicyForm)
            }
            Volume "volume" "volumes" ["vol"] 12 "Storage that outlives the incarnations that use it" {
                key(name: VolumeName) entity(volumes: Volume) row(Volumes = 12: VolumeRow)
            }
            Request "request" "requests" ["req"] 11 "Changes that wait for approval as a whole" {
                key(id: RequestId) entity(approval_requests: ApprovalRequest) row(Requests = 13: RequestRow)
                ends["approved", "rejected", "expired", "superseded"]
            }
            Disruption "disruption" "disruptions" ["dis"] 4 "Planned interferences with nodes; named NODE/NAME" {
                key(node: NodeName, name: DisruptionName) owner(Node) ends["completed"]
            }
        }
    };
}

pub(crate) mod names {
    //! Names of entities. [`crate::name`] exports them and has their rules.

    crate::name::names! {
        /// Name of a cluster of nodes behind one orchestrator.
        ClusterName: label;
        /// Name of a capability, unique in its fleet.
        CapabilityName: word;
        /// Name of a node.
        NodeName: label;
        /// Name of a disruption, unique on its node.
        DisruptionName: label;
        /// Name of a policy.
        PolicyName: label;
        /// Name of a plan.
        PlanName: label;
        /// Name of a deployment, unique in its plan.
        DeploymentName: label;
        /// Name of a replica, permanently unique: its service, and a suffix from the position that issued it.
        ReplicaName: label;
        /// Name of a volume: as in a plan, or derived from the replica that owns the volume.
        VolumeName: long_label;
    }
}

/// Types of keys, as the register names them.
pub mod keys {
    pub use super::names::*;
    pub use crate::id::{IncarnationId, OperationId, RequestId, SessionId};

    /// Number of a command among the commands of its incarnation.
    pub type Revision = u32;
}

/// Part of the key of an entity.
pub trait KeyPart: fmt::Display {
    /// Appends the bytes of the part to a key in a store. Keys sort by these bytes.
    fn put(&self, to: &mut Vec<u8>);
    /// Takes the part from the start of bytes that [`KeyPart::put`] appended; `None` if they are not a part.
    fn take(from: &mut &[u8]) -> Option<Self>
    where
        Self: Sized;
    /// Whether a zero byte must end the bytes of the part.
    fn is_text(&self) -> bool {
        false
    }
    /// Position of the event that issued the part, if it is an id.
    fn issued(&self) -> Option<Position> {
        None
    }
}

impl KeyPart for keys::Revision {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.to_be_bytes());
    }
    fn take(from: &mut &[u8]) -> Option<keys::Revision> {
        from.split_off(..size_of::<keys::Revision>())?.try_into().ok().map(keys::Revision::from_be_bytes)
    }
}

/// Entry of a kind in the register.
#[derive(Debug)]
pub struct KindEntry {
    /// Singular name of the kind, as in subjects.
    pub word: &'static str,
    /// Plural name of the kind, as in paths.
    pub plural: &'static str,
    /// Other names of the kind on command lines.
    pub aliases: &'static [&'static str],
    /// Name of the kind in manifests.
    pub name: &'static str,
    /// Description of the kind.
    pub about: &'static str,
    /// Fields of a row that name the entity.
    pub key: &'static [&'static str],
    /// Kind of the owner, if any.
    pub owner: Option<EntityKind>,
    /// Final states.
    pub ends: &'static [&'static str],
    /// Place in the order in which manifests are applied, if the kind has a manifest.
    pub manifest: Option<u8>,
    /// Place in the list for people.
    place: u8,
}

macro_rules! kinds {
    ($($kind:ident $word:literal $plural:literal [$($alias:literal),*] $place:literal $about:literal {
        key($($field:ident: $type:ident),+) $(owner($owner:ident))? $(entity($table:ident: $entity:ident))?
        $(row($rows:ident = $number:literal: $row:ident))? $(ends[$($end:literal),*])?
        $(manifest($rank:literal $($form:tt)+))?
    })*) => {
        /// Kinds of entities.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum EntityKind {
            $(#[doc = $about] $kind),*
        }

        const REGISTER: &[KindEntry] = &[$(KindEntry {
            word: $word,
            plural: $plural,
            aliases: &[$($alias),*],
            name: stringify!($kind),
            about: $about,
            key: &[$(stringify!($field)),+],
            owner: kinds!(@option $(EntityKind::$owner)?),
            ends: &[$($($end),*)?],
            manifest: kinds!(@option $($rank)?),
            place: $place,
        }),*];

        const KINDS: [EntityKind; REGISTER.len()] = in_place([$(EntityKind::$kind),*]);
    };
    (@option) => { None };
    (@option $value:expr) => { Some($value) };
}

each_kind!(kinds);

const fn in_place(mut kinds: [EntityKind; REGISTER.len()]) -> [EntityKind; REGISTER.len()] {
    let unsorted = kinds;
    let mut index = 0;
    while index < unsorted.len() {
        kinds[unsorted[index].entry().place as usize - 1] = unsorted[index];
        index += 1;
    }
    kinds
}

impl EntityKind {
    /// All kinds, in the order of the list for people.
    pub const ALL: &[EntityKind] = &KINDS;

    /// Entry of the kind in the register.
    pub const fn entry(self) -> &'static KindEntry {
        &REGISTER[self as usize]
    }

    /// Singular name of the kind, as in subjects.
    pub const fn word(self) -> &'static str {
        self.entry().word
    }

    /// Plural name of the kind, as in paths.
    pub const fn plural(self) -> &'static str {
        self.entry().plural
    }

    /// Path of an entity of the kind below the fleet, with the fields of the key in braces.
    pub fn path(self) -> String {
        let KindEntry { plural, key, owner, .. } = self.entry();
        match (owner, key) {
            (Some(owner), [of, name]) => format!("/{}/{{{of}}}/{plural}/{{{name}}}", owner.plural()),
            _ => key.iter().fold(format!("/{plural}"), |path, field| format!("{path}/{{{field}}}")),
        }
    }

    /// Returns the kind with the name: singular, plural or alias.
    pub fn named(word: &str) -> Option<EntityKind> {
        let is_named =
            |entry: &KindEntry| entry.word == word || entry.plural == word || entry.aliases.contains(&word);
        EntityKind::ALL.iter().copied().find(|kind| is_named(kind.entry()))
    }
}

impl fmt::Display for EntityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_a_rank_and_names_of_its_own() {
        let all: BTreeSet<_> = EntityKind::ALL.iter().collect();
        assert_eq!(all.len(), REGISTER.len(), "two kinds have one place");
        let mut words = BTreeSet::new();
        let mut ranks = BTreeSet::new();
        for kind in EntityKind::ALL {
            let entry = kind.entry();
            for word in [entry.word, entry.plural].iter().chain(entry.aliases) {
                assert!(words.insert(*word), "{word} names two kinds");
                assert_eq!(EntityKind::named(word), Some(*kind));
            }
            assert!(entry.manifest.is_none_or(|rank| ranks.insert(rank)), "two manifests have one rank");
        }
        assert_eq!(EntityKind::named("pod"), None);
    }

    #[test]
    fn paths_name_what_a_key_is_made_of() {
        for (kind, path) in [
            (EntityKind::Node, "/nodes/{name}"),
            (EntityKind::Session, "/sessions/{id}"),
            (EntityKind::Deployment, "/plans/{plan}/deployments/{name}"),
            (EntityKind::Disruption, "/nodes/{node}/disruptions/{name}"),
            (EntityKind::Command, "/commands/{incarnation}/{revision}"),
        ] {
            assert_eq!(kind.path(), path);
        }
    }
}
