//! Predecessor, storage and violated affinity of an incarnation, boxed because most incarnations have none.

use std::collections::BTreeMap;
use std::ops::Deref;

use chancery_events::id::IncarnationId;
use chancery_events::name::{StorageClass, VolumeName};
use chancery_events::resources::Resources;
use serde::{Deserialize, Serialize};

/// Rare fields of an incarnation.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct IncarnationExtras {
    /// Incarnation that must end before this one starts.
    pub starts_after: Option<IncarnationId>,
    /// Resources counted on the predecessor until it ends.
    pub shared_resources: Option<Resources>,
    /// Storage reserved on the node, bytes by class.
    pub reserved_storage: BTreeMap<StorageClass, u64>,
    /// Volumes that the incarnation uses once started.
    pub mounts: Vec<VolumeName>,
    /// Soft affinity that the placement violates.
    pub affinity_violated: Option<String>,
}

static NONE: IncarnationExtras = IncarnationExtras {
    starts_after: None,
    shared_resources: None,
    reserved_storage: BTreeMap::new(),
    mounts: Vec::new(),
    affinity_violated: None,
};

/// Boxed [`IncarnationExtras`], or nothing if all are empty.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct BoxedExtras(Option<Box<IncarnationExtras>>);

impl BoxedExtras {
    pub(crate) fn change(&mut self, how: impl FnOnce(&mut IncarnationExtras)) {
        let mut bonds = self.0.take().map_or_else(IncarnationExtras::default, |bonds| *bonds);
        how(&mut bonds);
        *self = bonds.into();
    }
}

impl From<IncarnationExtras> for BoxedExtras {
    fn from(bonds: IncarnationExtras) -> BoxedExtras {
        BoxedExtras((bonds != NONE).then(|| Box::new(bonds)))
    }
}

impl Deref for BoxedExtras {
    type Target = IncarnationExtras;

    fn deref(&self) -> &IncarnationExtras {
        self.0.as_deref().unwrap_or(&NONE)
    }
}
