//! Ids that need no randomness: each derives from the journal's lineage and the position of the event that
//! issues it.
//!
//! UUID version 8 (RFC 9562, section 5.8). Of its 122 free bits, from the front: 56 position, 4 kind, 62
//! lineage. So ids sort in the order of their issue, and show whether this journal issued them:
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
use crate::text::string_form;

/// Position of an event in a fleet's journal: consecutive numbers from 1. `0` is before the first event.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Position(u64);

impl Position {
    /// Position before the first event.
    pub const ZERO: Position = Position(0);
    /// Position of the first event.
    pub const FIRST: Position = Position(1);
    /// Highest position: ids have 56 bits for it.
    pub const MAX: Position = Position((1 << 56) - 1);

    /// Returns the position with the number.
    pub const fn new(number: u64) -> Position {
        Position(number)
    }

    /// Number of the position.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the position `count` events later.
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

/// Term of a decider: rises by one with each new leader. Only the decider of the highest term may write.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Term(u64);

impl Term {
    /// Term of a new journal.
    pub const FIRST: Term = Term(1);

    /// Returns the term with the number.
    pub const fn new(number: u64) -> Term {
        Term(number)
    }

    /// Number of the term.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the term that the next leader starts.
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
#[error("invalid token: must have 16 lower-case hexadecimal digits")]
pub struct InvalidToken;

macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $mask:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Returns the token with random bits; bits over the width are dropped.
            pub const fn from_random(bits: u64) -> $name {
                $name(bits & $mask)
            }

            /// Bits of the token.
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

        string_form!($name, { "type": "string", "pattern": "^[0-9a-f]{16}$" });
    };
}

token! {
    /// Lineage: random identity of a journal (62 bits), renewed by restore and import. Every id contains it.
    Lineage, (1 << 62) - 1
}
token! {
    /// Start of a decider: random, so that two starts in one term can be distinguished.
    WriterId, u64::MAX
}
token! {
    /// Connection of an executor: random, created by the decider.
    ConnectionToken, u64::MAX
}
token! {
    /// Id of an executor store: random, created with the store and stored in it. Executors with different
    /// stores do not know each other's objects.
    ExecutorStoreId, u64::MAX
}
token! {
    /// Start of an executor: random, so that a copy of its executor store is detected.
    EpochNonce, u64::MAX
}

/// Kind of entity that an id names. Each kind has its own type, so that ids of different kinds cannot be
/// confused.
pub trait IdKind: Copy + Ord + 'static {
    /// Four bits of the kind in the id.
    const BITS: u8;
    /// Name of the kind in subjects and errors.
    const WORD: &'static str;
}

/// Id of an entity of kind `K`. Its text form is a UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntityId<K>(Uuid, PhantomData<fn() -> K>);

impl<K: IdKind> EntityId<K> {
    /// Returns the id that the event at `position` issues.
    pub fn issue(lineage: Lineage, position: Position) -> EntityId<K> {
        let position = position.get() & Position::MAX.get();
        let high = (position >> 8) << 16 | 0x8000 | (position & 0xff) << 4 | u64::from(K::BITS);
        let low = 1 << 63 | lineage.bits();
        EntityId(Uuid::from_u64_pair(high, low), PhantomData)
    }

    /// Position of the event that issued the id.
    pub fn position(self) -> Position {
        let (high, _) = self.0.as_u64_pair();
        Position((high >> 16) << 8 | (high >> 4) & 0xff)
    }

    /// Lineage of the journal that issued the id.
    pub fn lineage(self) -> Lineage {
        let (_, low) = self.0.as_u64_pair();
        Lineage::from_random(low)
    }

    /// UUID of the id.
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

/// Reason why a text is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The text is not a UUID.
    #[error("invalid id: must be a UUID")]
    NotUuid,
    /// The UUID is not an id that this system issues for the kind.
    #[error("invalid id: not the UUID of {article} {word}", article = if word.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" })]
    NotKind {
        /// Name of the expected kind.
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

impl<K> std::hash::Hash for EntityId<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // Ids of one journal differ in their positions.
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
    fn take(from: &mut &[u8]) -> Option<EntityId<K>> {
        let bytes = from.split_off(..size_of::<Uuid>())?;
        EntityId::try_from(Uuid::from_slice(bytes).ok()?).ok()
    }
    fn issued(&self) -> Option<Position> {
        Some(self.position())
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $kind:ident $id:ident = $bits:literal $word:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
    /// Id of an incarnation.
    IncarnationIdKind IncarnationId = 1 "incarnation";
    /// Id of an operation.
    OperationIdKind OperationId = 2 "operation";
    /// Id of a session.
    SessionIdKind SessionId = 3 "session";
    /// Id of a volume.
    VolumeIdKind VolumeId = 4 "volume";
    /// Id of an approval request.
    RequestIdKind RequestId = 5 "request";
}

/// Id of an object of an executor. Its text form is a UUID, which contains the kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "Uuid", try_from = "Uuid")]
pub enum ObjectId {
    /// Id of a volume.
    Volume(VolumeId),
    /// Id of an incarnation.
    Incarnation(IncarnationId),
}

impl ObjectId {
    /// Position of the event that issued the id.
    pub fn position(self) -> Position {
        match self {
            ObjectId::Volume(id) => id.position(),
            ObjectId::Incarnation(id) => id.position(),
        }
    }

    /// Lineage of the journal that issued the id.
    pub fn lineage(self) -> Lineage {
        match self {
            ObjectId::Volume(id) => id.lineage(),
            ObjectId::Incarnation(id) => id.lineage(),
        }
    }

    /// UUID of the id.
    pub fn uuid(self) -> Uuid {
        match self {
            ObjectId::Volume(id) => id.uuid(),
            ObjectId::Incarnation(id) => id.uuid(),
        }
    }
}

impl From<ObjectId> for Uuid {
    fn from(id: ObjectId) -> Uuid {
        id.uuid()
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
    fn an_id_is_parsed_to_its_parts() {
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
