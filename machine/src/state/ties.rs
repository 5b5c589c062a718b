//! What ties an incarnation to other things than its node's amounts. Most have nothing of it, and are smaller for it.

use std::collections::BTreeMap;
use std::ops::Deref;

use chancery_events::amount::Amounts;
use chancery_events::id::IncarnationId;
use chancery_events::name::{StorageClass, VolumeName};
use serde::{Deserialize, Serialize};

/// What ties an incarnation.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Bonds {
    /// The run that must be over before it is begun.
    pub follows: Option<IncarnationId>,
    /// What of its amounts that run holds until it is over.
    pub shares: Option<Amounts>,
    /// What it holds of its node's storage.
    pub volumes: BTreeMap<StorageClass, u64>,
    /// The volumes that it uses, from when it is begun.
    pub mounts: Vec<VolumeName>,
    /// Which affinity could not be kept.
    pub strained: Option<String>,
}

static NONE: Bonds =
    Bonds { follows: None, shares: None, volumes: BTreeMap::new(), mounts: Vec::new(), strained: None };

/// The bonds of an incarnation, or none.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Ties(Option<Box<Bonds>>);

impl Ties {
    /// Changes them.
    pub(crate) fn change(&mut self, how: impl FnOnce(&mut Bonds)) {
        let mut bonds = self.0.take().map_or_else(Bonds::default, |bonds| *bonds);
        how(&mut bonds);
        *self = bonds.into();
    }
}

impl From<Bonds> for Ties {
    fn from(bonds: Bonds) -> Ties {
        Ties((bonds != NONE).then(|| Box::new(bonds)))
    }
}

impl Deref for Ties {
    type Target = Bonds;

    fn deref(&self) -> &Bonds {
        self.0.as_deref().unwrap_or(&NONE)
    }
}
