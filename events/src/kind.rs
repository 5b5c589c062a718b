//! The register of kinds: each kind of entity stands once in [`each_kind!`], and every list of kinds follows from it.
//!
//! To add a kind, write its entry, its name type above it, and what the compiler then asks for
//! (`docs/adding-a-kind.md` adds one):
//!
//! | part of the kind | where it is written | derived from the register |
//! |---|---|---|
//! | intents and facts | `events/src/intent.rs`, `events/src/fact/register.rs` | subjects ([`crate::subject::Subject`]), stream filters |
//! | spec | `events/src/spec/` | |
//! | entity | `machine/src/state.rs`, with a line in `indexed!` | table, undo entry, member of a snapshot, version |
//! | rules | `machine/src/`, a module an entity; arms in `decide.rs` | |
//! | row | `projector/src/rows.rs`; filters and how it follows from the state: an `impl Row` in `projector/src/row_of/` | kind and key of rows, their text and bytes |
//! | columns | `cli/src/columns.rs` | command-line kind, its words, `delete`, `activate`, `deactivate` |
//! | manifest form | `cli/src/manifest/form.rs` | the order of applying, schema |
//! | | | API paths, history, `OpenAPI` |

use std::fmt;

use crate::id::Position;

/// Gives the register to a macro, in the order of subjects, tables and rows.
///
/// | part of an entry | meaning |
/// |---|---|
/// | variant, word, plural, `[aliases]` | what it is called: in code, in subjects, in paths, on command lines |
/// | number, text | its place in the list that people read, and what it is |
/// | `key(field: type)` | the fields of its rows and bodies that name it; also the parameters of its path |
/// | `owner(EntityKind)` | what it is a part of: its key begins with the owner's name |
/// | `entity(table: type)` | it has a subject, and a table in the state machine |
/// | `row(Kind = number: type)` | it has rows, whose keys begin with this byte |
/// | `ends[words]` | states that it never leaves |
/// | `manifest(number spec)` | it has a manifest: its place in the order of applying, and the type of its spec, which people write as it is |
/// | `manifest(number: form)` | the same, where people write the spec in another form |
#[macro_export]
macro_rules! each_kind {
    ($then:ident) => {
        $then! {
            Cluster "cluster" "clusters" ["cl"] 1 "Sets of nodes behind one orchestrator" {
                key(name: ClusterName) entity(clusters: Cluster) row(Clusters = 1: ClusterRow)
                manifest(1 ClusterSpec)
            }
            Capability "capability" "capabilities" ["cap", "caps"] 2 "What nodes may have, with a score" {
                key(name: CapabilityName) entity(capabilities: Capability) row(Capabilities = 2: CapabilityRow)
                manifest(2 CapabilitySpec)
            }
            Node "node" "nodes" ["no"] 3 "Places with capacity" {
                key(name: NodeName) entity(nodes: Node) row(Nodes = 3: NodeRow) ends["expunged"]
                manifest(3: NodeForm)
            }
            Plan "plan" "plans" ["pl"] 6 "What to run and where it may run" {
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
            Incarnation "incarnation" "incarnations" ["inc"] 9 "Placed runs of replicas" {
                key(id: IncarnationId) entity(incarnations: Incarnation) row(Incarnations = 7: IncarnationRow)
                ends["destroyed", "failed", "unwound"]
            }
            Operation "operation" "operations" ["op"] 10 "Approved changes of replicas" {
                key(id: OperationId) entity(operations: Operation) row(Operations = 8: OperationRow)
                ends["succeeded", "failed", "rejected", "expired", "cancelled", "superseded"]
            }
            Session "session" "sessions" ["ses"] 13 "Executors' leases on clusters" {
                key(id: SessionId) entity(sessions: Session) row(Sessions = 9: SessionRow)
                ends["lost", "left", "removed"]
            }
            Command "command" "commands" ["cmd"] 14 "Commands without an outcome; listed only" {
                key(incarnation: IncarnationId, revision: Revision) row(Commands = 10: CommandRow)
            }
            Policy "policy" "policies" ["pol"] 5 "Rules about approvals" {
                key(name: PolicyName) entity(policies: Policy) row(Policies = 11: PolicyRow)
                manifest(5: PolicyForm)
            }
            Volume "volume" "volumes" ["vol"] 12 "Storage that outlives the runs that use it" {
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
    //! The names of entities. [`crate::name`] gives them to everybody else, and has the rules.

    crate::name::names! {
        /// A cluster of nodes behind one orchestrator.
        ClusterName: label;
        /// A capability, unique in its fleet.
        CapabilityName: word;
        /// A node.
        NodeName: label;
        /// A disruption, unique on its node.
        DisruptionName: label;
        /// A policy.
        PolicyName: label;
        /// A plan.
        PlanName: label;
        /// A deployment, unique in its plan.
        DeploymentName: label;
        /// A replica, unique for ever: its service, and a suffix made from the position that issued it.
        ReplicaName: label;
        /// A volume: as a plan calls it, or made from the replica whose own it is.
        VolumeName: long_label;
    }
}

/// The types of keys, as the register writes them.
pub mod keys {
    pub use super::names::*;
    pub use crate::id::{IncarnationId, OperationId, RequestId, SessionId};

    /// Counts the commands of an incarnation.
    pub type Revision = u32;
}

/// A part of the key of an entity.
pub trait KeyPart: fmt::Display {
    /// Appends its bytes to a key in a store. In their order keys are sorted.
    fn put(&self, to: &mut Vec<u8>);
    /// Whether its bytes end only where a zero byte follows.
    fn is_text(&self) -> bool {
        false
    }
    /// The position of the event that issued it, if it is an id.
    fn issued(&self) -> Option<Position> {
        None
    }
}

impl KeyPart for keys::Revision {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.to_be_bytes());
    }
}

/// What the register says of a kind.
#[derive(Debug)]
pub struct KindEntry {
    /// The word for one of them, as in subjects.
    pub word: &'static str,
    /// The word for many, as in paths.
    pub plural: &'static str,
    /// What else it is called on command lines.
    pub aliases: &'static [&'static str],
    /// Its name in manifests.
    pub name: &'static str,
    /// What they are.
    pub about: &'static str,
    /// The fields of a row that name it.
    pub key: &'static [&'static str],
    /// What it is a part of.
    pub owner: Option<EntityKind>,
    /// States that nothing leaves.
    pub ends: &'static [&'static str],
    /// Its place in the order in which manifests are applied, if it has one.
    pub manifest: Option<u8>,
    /// Its place in the list that people read.
    place: u8,
}

macro_rules! kinds {
    ($($kind:ident $word:literal $plural:literal [$($alias:literal),*] $place:literal $about:literal {
        key($($field:ident: $type:ident),+) $(owner($owner:ident))? $(entity($table:ident: $entity:ident))?
        $(row($rows:ident = $number:literal: $row:ident))? $(ends[$($end:literal),*])?
        $(manifest($rank:literal $($form:tt)+))?
    })*) => {
        /// The kinds of things that can be asked for.
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
    /// Every one, in the order in which people read them.
    pub const ALL: &[EntityKind] = &KINDS;

    /// What the register says of it.
    pub const fn entry(self) -> &'static KindEntry {
        &REGISTER[self as usize]
    }

    /// The word for one of them, as in subjects.
    pub const fn word(self) -> &'static str {
        self.entry().word
    }

    /// The word for many, as in paths.
    pub const fn plural(self) -> &'static str {
        self.entry().plural
    }

    /// The path of one of them below the fleet: the fields of the key stand in braces.
    pub fn path(self) -> String {
        let KindEntry { plural, key, owner, .. } = self.entry();
        match (owner, key) {
            (Some(owner), [of, name]) => format!("/{}/{{{of}}}/{plural}/{{{name}}}", owner.plural()),
            _ => key.iter().fold(format!("/{plural}"), |path, field| format!("{path}/{{{field}}}")),
        }
    }

    /// The kind that a word names: one, many, or short.
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
    fn every_kind_has_a_place_and_words_of_its_own() {
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
