//! Short SHA-256 digests: of idempotency keys, of bodies, and of the work that an approval is bound to.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::text::string_form;

/// First 128 bits of a SHA-256. Its text form has 32 hexadecimal digits. Stored in two words, so that a type
/// that contains a digest need not be aligned to 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    high: u64,
    low: u64,
}

impl Digest {
    /// Returns the digest of the parts, each with its length, so that different lists of parts never have
    /// equal input.
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

    /// Returns the digest with the first 24 bits of `actor`, then the first 24 bits of `producer`. All
    /// digests of an actor, or of a producer, share these bits.
    #[must_use]
    pub const fn under(self, actor: Digest, producer: Digest) -> Digest {
        const LOW: u64 = (1 << 16) - 1;
        const ACTOR: u64 = !(u64::MAX >> 24);
        let producer = producer.high >> 24 & !ACTOR & !LOW;
        Digest { high: actor.high & ACTOR | producer | self.high & LOW, low: self.low }
    }

    /// First 48 bits of the digest.
    pub const fn prefix(self) -> u64 {
        self.high >> 16
    }

    /// Bits of the digest.
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
#[error("invalid digest: must have 32 lower-case hexadecimal digits")]
pub struct InvalidDigest;

impl FromStr for Digest {
    type Err = InvalidDigest;
    fn from_str(text: &str) -> Result<Digest, InvalidDigest> {
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|_| InvalidDigest)?;
        Ok(Digest::from_bits(u128::from_be_bytes(bytes.try_into().map_err(|_| InvalidDigest)?)))
    }
}

string_form!(Digest, { "type": "string", "pattern": "^[0-9a-f]{32}$" });
