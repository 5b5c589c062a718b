//! Simulated Kubernetes clusters: the real executor of pods, over an API in memory.
//!
//! The truth about a cluster is in its API ([`api`]), which outlives every executor: the executor store, a record of each
//! object, pods and claims. The kubelet of a cluster ([`kubelet`]) runs, ends and removes pods. An executor
//! ([`executor`]) has a runtime of its own with a clock of its own, so that it can sleep while others act, and requests
//! that it has sent arrive after its end. [`driving`] has the steps of such executors in a world.

mod api;
mod driving;
mod executor;
mod kubelet;
mod resource;

pub(super) use api::lock;
pub use api::{AdmissionPolicy, SimulatedApi};
pub use executor::PodExecutor;
pub use resource::ClusterChange;
