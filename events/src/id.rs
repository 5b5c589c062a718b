//! Ids that need no randomness: made from the journal's lineage and the position of the event that issues them.
//!
//! UUID version 8 (RFC 9562, section 5.8). Of its 122 free bits, from the front: 56 position, 4 kind, 62 lineage,
//! so that ids sort in the order of their issue, and tell whether they are ours and already issued:
//!
//! ```text
//! pppppppp-pppp-8ppk-Lxxx-xxxxxxxxxxxx     p position, 8 version, k kind, L variant and lineage, x lineage
//! ```
//! An event issues at most one id.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::kind::KeyPart;

/// The dense number of an event in a fleet's journal, from 1. `0` is "before the first".
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Position(u64);

impl Position {
    /// Before the first event.
    pub const ZERO: Position = Position(0);
    /// Of the first event.
    pub const FIRST: Position = Position(1);
    /// Ids hold 56 bits of it.
    pub const MAX: Position = Position((1 << 56) - 1);

    /// Takes the number as it is.
    pub const fn new(number: u64) -> Position {
        Position(number)
    }

    /// Gives the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position `count` events further on.
    #[must_use]
    pub const fn plus(self, count: u64) -> Position {
        Position(self.0 + count)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Position {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Position, Self::Err> {
        text.parse().map(Position)
    }
}

/// Who may write: rises by one when a decider takes over.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Term(u64);

impl Term {
    /// The term of genesis.
    pub const FIRST: Term = Term(1);

    /// Takes the number as it is.
    pub const fn new(number: u64) -> Term {
        Term(number)
    }

    /// Gives the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The term that a takeover begins.
    #[must_use]
    pub const fn next(self) -> Term {
        Term(self.0 + 1)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Text that is not 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write 16 lower-case hexadecimal digits")]
pub struct InvalidToken;

macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $mask:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Takes random bits; those over the width are dropped.
            pub const fn from_random(bits: u64) -> $name {
                $name(bits & $mask)
            }

            /// Gives the bits.
            pub const fn bits(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&HEXLOWER.encode(&self.0.to_be_bytes()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidToken;
            fn from_str(text: &str) -> Result<$name, InvalidToken> {
                let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| InvalidToken)?;
                let bits = u64::from_be_bytes(bytes.try_into().map_err(|_| InvalidToken)?);
                let token = $name::from_random(bits);
                if token.0 == bits { Ok(token) } else { Err(InvalidToken) }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                std::borrow::Cow::<'de, str>::deserialize(from)?.parse().map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": "^[0-9a-f]{16}$" })
            }
        }
    };
}

token! {
    /// A journal's random identity (62 bits), renewed by restore and import; every id carries it.
    Lineage, (1 << 62) - 1
}
token! {
    /// One start of one decider: random, so that two starts in one term can be told apart.
    WriterId, u64::MAX
}
token! {
    /// One connection of an executor: random, drawn by the decider.
    ConnectionToken, u64::MAX
}
token! {
    /// What an executor looks at, and what it runs is in: random, drawn once and kept there. Two with different ones
    /// know nothing of what the other runs.
    ExecutorStoreId, u64::MAX
}
token! {
    /// One start of one executor: random, so that a copy of a scope does not pass for it.
    EpochNonce, u64::MAX
}

/// What kind of thing an id names: a type of its own for each, so that they cannot be mixed up.
pub trait IdKind: 'static {
    /// The four bits in the id.
    const BITS: u8;
    /// The word for it in subjects and errors.
    const WORD: &'static str;
}

/// The id of a `K`. Its text form is a UUID.
pub struct EntityId<K>(Uuid, PhantomData<fn() -> K>);

impl<K: IdKind> EntityId<K> {
    /// The id that the event at `position` issues.
    pub fn issue(lineage: Lineage, position: Position) -> EntityId<K> {
        let position = position.get() & Position::MAX.get();
        let high = (position >> 8) << 16 | 0x8000 | (position & 0xff) << 4 | u64::from(K::BITS);
        let low = 1 << 63 | lineage.bits();
        EntityId(Uuid::from_u64_pair(high, low), PhantomData)
    }

    /// The position of the event that issued it.
    pub fn position(self) -> Position {
        let (high, _) = self.0.as_u64_pair();
        Position((high >> 16) << 8 | (high >> 4) & 0xff)
    }

    /// The lineage of the journal that issued it.
    pub fn lineage(self) -> Lineage {
        let (_, low) = self.0.as_u64_pair();
        Lineage::from_random(low)
    }

    /// The UUID.
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

/// Text that is no id of the kind that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Not a UUID at all.
    #[error("write the id as a UUID")]
    NotUuid,
    /// A UUID, but not one that this system issues for such a thing.
    #[error("this UUID is not the id of {article} {word}", article = if word.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" })]
    NotKind {
        /// The word for what is wanted.
        word: &'static str,
    },
}

impl<K: IdKind> FromStr for EntityId<K> {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<EntityId<K>, InvalidId> {
        EntityId::try_from(Uuid::try_parse(text).map_err(|_| InvalidId::NotUuid)?)
    }
}

impl<K: IdKind> TryFrom<Uuid> for EntityId<K> {
    type Error = InvalidId;
    fn try_from(uuid: Uuid) -> Result<EntityId<K>, InvalidId> {
        let (high, low) = uuid.as_u64_pair();
        let ours = high & 0xf000 == 0x8000 && high & 0xf == u64::from(K::BITS) && low >> 62 == 0b10;
        if ours { Ok(EntityId(uuid, PhantomData)) } else { Err(InvalidId::NotKind { word: K::WORD }) }
    }
}

impl<K> Clone for EntityId<K> {
    fn clone(&self) -> EntityId<K> {
        *self
    }
}
impl<K> Copy for EntityId<K> {}
impl<K> PartialEq for EntityId<K> {
    fn eq(&self, other: &EntityId<K>) -> bool {
        self.0 == other.0
    }
}
impl<K> Eq for EntityId<K> {}
impl<K> PartialOrd for EntityId<K> {
    fn partial_cmp(&self, other: &EntityId<K>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for EntityId<K> {
    fn cmp(&self, other: &EntityId<K>) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}
impl<K> std::hash::Hash for EntityId<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // The position is what differs between ids of one journal.
        state.write_u64(self.0.as_u64_pair().0);
    }
}
impl<K> fmt::Display for EntityId<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
impl<K> fmt::Debug for EntityId<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
impl<K> Serialize for EntityId<K> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}
impl<'de, K: IdKind> Deserialize<'de> for EntityId<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<EntityId<K>, D::Error> {
        EntityId::try_from(Uuid::deserialize(from)?).map_err(D::Error::custom)
    }
}
impl<K: IdKind> JsonSchema for EntityId<K> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}Id", K::WORD).into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "uuid" })
    }
}

impl<K: IdKind> KeyPart for EntityId<K> {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.0.as_bytes());
    }
    fn issued(&self) -> Option<Position> {
        Some(self.position())
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $kind:ident $id:ident = $bits:literal $word:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}
        impl IdKind for $kind {
            const BITS: u8 = $bits;
            const WORD: &'static str = $word;
        }
        $(#[$doc])*
        pub type $id = EntityId<$kind>;
    )*};
}

ids! {
    /// Names an incarnation.
    IncarnationIdKind IncarnationId = 1 "incarnation";
    /// Names an operation.
    OperationIdKind OperationId = 2 "operation";
    /// Names a session.
    SessionIdKind SessionId = 3 "session";
    /// Names a volume.
    VolumeIdKind VolumeId = 4 "volume";
    /// Names an approval request.
    RequestIdKind RequestId = 5 "request";
}

/// The id of something that executors keep. Its text form is that of the id itself, which says what it is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ObjectId {
    /// Of a volume.
    Volume(VolumeId),
    /// Of an incarnation.
    Incarnation(IncarnationId),
}

impl ObjectId {
    /// The position of the event that issued it.
    pub fn position(self) -> Position {
        match self {
            ObjectId::Volume(id) => id.position(),
            ObjectId::Incarnation(id) => id.position(),
        }
    }

    /// The lineage of the journal that issued it.
    pub fn lineage(self) -> Lineage {
        match self {
            ObjectId::Volume(id) => id.lineage(),
            ObjectId::Incarnation(id) => id.lineage(),
        }
    }

    /// The UUID.
    pub fn uuid(self) -> Uuid {
        match self {
            ObjectId::Volume(id) => id.uuid(),
            ObjectId::Incarnation(id) => id.uuid(),
        }
    }
}

impl From<VolumeId> for ObjectId {
    fn from(id: VolumeId) -> ObjectId {
        ObjectId::Volume(id)
    }
}

impl From<IncarnationId> for ObjectId {
    fn from(id: IncarnationId) -> ObjectId {
        ObjectId::Incarnation(id)
    }
}

impl TryFrom<Uuid> for ObjectId {
    type Error = InvalidId;
    fn try_from(uuid: Uuid) -> Result<ObjectId, InvalidId> {
        let volume = VolumeId::try_from(uuid).map(ObjectId::Volume);
        volume.or_else(|_| IncarnationId::try_from(uuid).map(ObjectId::Incarnation))
    }
}

impl FromStr for ObjectId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<ObjectId, InvalidId> {
        ObjectId::try_from(Uuid::try_parse(text).map_err(|_| InvalidId::NotUuid)?)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.uuid(), f)
    }
}

impl Serialize for ObjectId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.uuid().serialize(to)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ObjectId, D::Error> {
        ObjectId::try_from(Uuid::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl JsonSchema for ObjectId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "objectId".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "uuid" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_gives_back_what_it_was_made_of() {
        let lineage = Lineage::from_random(u64::MAX);
        for position in [1, 255, 256, 0x00ab_cdef_0123, Position::MAX.get()].map(Position::new) {
            let id = IncarnationId::issue(lineage, position);
            assert_eq!((id.position(), id.lineage()), (position, lineage));
            assert_eq!(id.uuid().get_version_num(), 8);
            assert_eq!(id.uuid().get_variant(), uuid::Variant::RFC4122);
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(id.to_string().parse::<OperationId>(), Err(InvalidId::NotKind { word: "operation" }));
        }
    }

    #[test]
    fn ids_sort_in_the_order_of_their_issue() {
        let lineage = Lineage::from_random(7);
        let ids: Vec<_> = (1..2000).map(|p| OperationId::issue(lineage, Position::new(p))).collect();
        assert!(ids.is_sorted());
    }

    #[test]
    fn a_foreign_uuid_is_no_id() {
        assert_eq!("x".parse::<SessionId>(), Err(InvalidId::NotUuid));
        let random = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
        assert_eq!(random.parse::<SessionId>(), Err(InvalidId::NotKind { word: "session" }));
    }
}
