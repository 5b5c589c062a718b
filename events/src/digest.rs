//! Short SHA-256 digests: of idempotency keys, of bodies, and of the work that an approval is bound to.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// The first 128 bits of a SHA-256; 32 hexadecimal digits for people. In two words, so that what holds one need not be
/// aligned to sixteen bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    high: u64,
    low: u64,
}

impl Digest {
    /// Digests the parts, each with its length, so that no two lists of parts are alike.
    pub fn of(parts: &[&[u8]]) -> Digest {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let full: [u8; 32] = hash.finalize().into();
        let mut half = [0; 16];
        half.copy_from_slice(&full[..16]);
        Digest::from_bits(u128::from_be_bytes(half))
    }

    /// The digest with the first 24 bits of an actor's, then the first 24 bits of a producer's: the same for all of one
    /// actor's, and for all of one producer's.
    #[must_use]
    pub const fn under(self, actor: Digest, producer: Digest) -> Digest {
        const LOW: u64 = (1 << 16) - 1;
        const ACTOR: u64 = !(u64::MAX >> 24);
        let producer = producer.high >> 24 & !ACTOR & !LOW;
        Digest { high: actor.high & ACTOR | producer | self.high & LOW, low: self.low }
    }

    /// The first 48 bits.
    pub const fn prefix(self) -> u64 {
        self.high >> 16
    }

    /// The bits.
    pub const fn bits(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }

    const fn from_bits(bits: u128) -> Digest {
        Digest { high: (bits >> 64) as u64, low: bits as u64 }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.bits().to_be_bytes()))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write 32 lower-case hexadecimal digits")]
pub struct InvalidDigest;

impl FromStr for Digest {
    type Err = InvalidDigest;
    fn from_str(text: &str) -> Result<Digest, InvalidDigest> {
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| InvalidDigest)?;
        Ok(Digest::from_bits(u128::from_be_bytes(bytes.try_into().map_err(|_| InvalidDigest)?)))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        Cow::<'de, str>::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Digest {
    fn schema_name() -> Cow<'static, str> {
        "Digest".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9a-f]{32}$" })
    }
}
