//! Amounts: CPU in millicores, memory and disk in bytes. Text forms occur only in input and output.
//!
//! | field | text | bare number |
//! |---|---|---|
//! | cpu | `4`, `1.5`, `500m` | cores |
//! | memory | `64GiB`, `512MiB`, `64GB`, `1024B` | GiB |
//! | disk, capacity | the same | GB |

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resources of a node, or of an incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// CPU, in millicores; 0 if absent.
    #[serde(default)]
    pub cpu: u64,
    /// Memory, in bytes; 0 if absent.
    #[serde(default)]
    pub memory: u64,
    /// Disk, in bytes; 0 if absent.
    #[serde(default)]
    pub disk: u64,
}

impl Resources {
    /// No resources: every field is zero.
    pub const ZERO: Resources = Resources { cpu: 0, memory: 0, disk: 0 };

    /// Subtracts `other`; `None` if any field of `other` is greater than that of `self`.
    pub fn checked_sub(self, other: Resources) -> Option<Resources> {
        Some(Resources {
            cpu: self.cpu.checked_sub(other.cpu)?,
            memory: self.memory.checked_sub(other.memory)?,
            disk: self.disk.checked_sub(other.disk)?,
        })
    }

    /// Adds `other`; `None` if a sum overflows.
    pub fn checked_add(self, other: Resources) -> Option<Resources> {
        Some(Resources {
            cpu: self.cpu.checked_add(other.cpu)?,
            memory: self.memory.checked_add(other.memory)?,
            disk: self.disk.checked_add(other.disk)?,
        })
    }

    /// Subtracts `other`, field by field; a field becomes zero where that of `other` is greater.
    #[must_use]
    pub fn less(self, other: Resources) -> Resources {
        Resources {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
            disk: self.disk.saturating_sub(other.disk),
        }
    }

    /// Returns the smaller value of each field.
    #[must_use]
    pub fn at_most(self, other: Resources) -> Resources {
        Resources {
            cpu: self.cpu.min(other.cpu),
            memory: self.memory.min(other.memory),
            disk: self.disk.min(other.disk),
        }
    }

    /// Whether each field is at most that of `capacity`.
    pub fn fits(self, capacity: Resources) -> bool {
        self.cpu <= capacity.cpu && self.memory <= capacity.memory && self.disk <= capacity.disk
    }
}

impl Add for Resources {
    type Output = Resources;
    fn add(self, other: Resources) -> Resources {
        Resources {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
            disk: self.disk.saturating_add(other.disk),
        }
    }
}

impl AddAssign for Resources {
    fn add_assign(&mut self, other: Resources) {
        *self = *self + other;
    }
}

impl Sum for Resources {
    fn sum<I: Iterator<Item = Resources>>(all: I) -> Resources {
        all.fold(Resources::ZERO, Add::add)
    }
}

/// Text that is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid amount {found:?}: must be {wanted}")]
pub struct InvalidAmount {
    wanted: &'static str,
    found: String,
}

/// Parses an amount of CPU and returns millicores: `4`, `1.5`, `500m`.
pub fn parse_cpu(text: &str) -> Result<u64, InvalidAmount> {
    let bad = || InvalidAmount { wanted: "cores as in 4, 1.5 or 500m", found: text.into() };
    match text.strip_suffix('m') {
        Some(millis) => millis.parse().map_err(|_| bad()),
        None => scaled(text, 1000).ok_or_else(bad),
    }
}

/// Parses an amount of bytes: `64GiB`, `64GB`, `1.5MiB`, `100B`. A bare number is multiplied by `bare`.
pub fn parse_bytes(text: &str, bare: u64) -> Result<u64, InvalidAmount> {
    let bad = || InvalidAmount { wanted: "an amount as in 64GiB, 512MiB or 64GB", found: text.into() };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => bare,
        "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1000_u64.pow(2),
        "GB" => GB,
        "TB" => 1000_u64.pow(4),
        "KiB" | "Ki" => 1 << 10,
        "MiB" | "Mi" => 1 << 20,
        "GiB" | "Gi" => GIB,
        "TiB" | "Ti" => 1 << 40,
        _ => return Err(bad()),
    };
    scaled(digits.trim_end(), unit).ok_or_else(bad)
}

/// Bytes in a gibibyte, the unit of a bare number of memory.
pub const GIB: u64 = 1 << 30;
/// Bytes in a gigabyte, the unit of a bare number of disk.
pub const GB: u64 = 1_000_000_000;

/// Multiplies a plain decimal by `unit`, exactly; `None` if the text is invalid, or the result is fractional
/// or too large.
fn scaled(text: &str, unit: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(part) || (part.is_empty() && text.contains('.')) {
        return None;
    }
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
    let scale = 10_u128.checked_pow(u32::try_from(part.len()).ok()?)?;
    let product = digits.checked_mul(u128::from(unit))?;
    if product % scale == 0 { u64::try_from(product / scale).ok() } else { None }
}

/// Formats millicores for people.
pub fn show_cpu(millis: u64) -> String {
    if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") }
}

/// Formats bytes for people: in the largest unit that divides them, else with one decimal in the nearest
/// unit.
pub fn show_bytes(bytes: u64) -> String {
    let units = [
        ("TiB", 1 << 40),
        ("TB", 1000_u64.pow(4)),
        ("GiB", GIB),
        ("GB", GB),
        ("MiB", 1 << 20),
        ("MB", 1_000_000),
    ];
    for (name, unit) in units {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    match units.iter().filter(|(name, _)| name.contains('i')).find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1}{name}", bytes as f64 / *unit as f64),
        None => format!("{bytes}B"),
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cpu {}, memory {}, disk {}",
            show_cpu(self.cpu),
            show_bytes(self.memory),
            show_bytes(self.disk)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gives_exact_amounts() {
        let cases = [("4", 4000), ("1.5", 1500), ("500m", 500), ("0", 0)];
        for (text, millis) in cases {
            assert_eq!(parse_cpu(text), Ok(millis), "{text}");
        }
        let cases =
            [("64", 64 * GIB), ("64GiB", 64 * GIB), ("64GB", 64_000_000_000), ("1.5KiB", 1536), ("7B", 7)];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text, GIB), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_exact_amount_is_refused() {
        for text in ["", "-1", "x", "1.", ".5", "1.0001", "1e3", "99999999999999999999"] {
            assert!(parse_cpu(text).is_err(), "{text}");
        }
        for text in ["", "GiB", "1.5B", "1XB", "1 2", "99999999999TiB"] {
            assert!(parse_bytes(text, GIB).is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_are_shown_as_they_are_written() {
        for text in ["64GiB", "64GB", "512MiB", "3TiB"] {
            assert_eq!(show_bytes(parse_bytes(text, 1).expect(text)), text);
        }
        assert_eq!((show_cpu(1500), show_cpu(4000)), ("1500m".into(), "4".into()));
    }
}
