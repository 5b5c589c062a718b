//! Slots of connections, and the reserve for probes when no slot is free.
//!
//! | connection | condition | closed without an answer |
//! |---|---|---|
//! | has a slot | a slot is free, and its peer has fewer than three quarters of all slots | as the limits of requests define |
//! | in the reserve, for one request | no slot is free for its peer | when room is needed: first the one that has waited longest for its request |
//!
//! The reserve answers `/livez` and `/readyz` and refuses all other requests as busy. A silent connection
//! cannot displace a probe: a probe sends its request immediately, and is then not closed for others.
//!
//! Invariants: slots and reserve are bounded. No number of slow connections keeps a probe from its answer. No
//! peer has all slots.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Maximum number of connections in the reserve.
pub const RESERVED: usize = 32;

/// Slots of all connections.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    max: usize,
    max_of_peer: usize,
    taken: Mutex<TakenSlots>,
}

#[derive(Debug, Default)]
struct TakenSlots {
    all: usize,
    of_peer: HashMap<IpAddr, usize>,
}

/// Slot of one connection, which is released on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    peer: IpAddr,
}

impl ConnectionSlots {
    /// Returns `max` slots, of which any one peer may take three quarters.
    pub(super) fn new(max: usize) -> ConnectionSlots {
        ConnectionSlots { max, max_of_peer: max - max / 4, taken: Mutex::default() }
    }

    /// Takes a slot for a connection of the peer, if one is free.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let mut taken = self.lock();
        let of_peer = taken.of_peer.get(&peer).copied().unwrap_or(0);
        if taken.all >= self.max || of_peer >= self.max_of_peer {
            return None;
        }
        taken.all += 1;
        taken.of_peer.insert(peer, of_peer + 1);
        Some(ConnectionSlot { slots: Arc::clone(self), peer })
    }

    fn lock(&self) -> MutexGuard<'_, TakenSlots> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.all -= 1;
        if let Some(count) = taken.of_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                taken.of_peer.remove(&self.peer);
            }
        }
    }
}

/// Connections without a slot, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ProbeReserve(VecDeque<ReservedConnection>);

#[derive(Debug)]
struct ReservedConnection {
    task: AbortHandle,
    /// Set when the connection's request has arrived.
    asked: Arc<AtomicBool>,
}

impl ProbeReserve {
    /// Makes space for one more connection. Returns whether a connection was closed for it.
    pub(super) fn make_space(&mut self) -> bool {
        self.0.retain(|one| !one.task.is_finished());
        if self.0.len() < RESERVED {
            return false;
        }
        let silent = self.0.iter().position(|one| !one.asked.load(Ordering::Relaxed));
        if let Some(ended) = self.0.remove(silent.unwrap_or(0)) {
            ended.task.abort();
        }
        true
    }

    /// Adds the connection that `task` serves; the task sets `asked`.
    pub(super) fn add(&mut self, task: AbortHandle, asked: Arc<AtomicBool>) {
        self.0.push_back(ReservedConnection { task, asked });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_leaves_a_quarter_to_others_and_what_is_closed_is_free_again() {
        let slots = Arc::new(ConnectionSlots::new(8));
        let take = |last: u8| slots.take(IpAddr::from([127, 0, 0, last]));
        let mut of_one: Vec<_> = (0..6).map(|_| take(1).expect("a slot")).collect();
        assert!(take(1).is_none(), "three quarters are taken");
        let others = [take(2), take(3)];
        assert!(others.iter().all(Option::is_some));
        assert!(take(4).is_none(), "all are taken");
        of_one.pop();
        assert!(take(4).is_some());
        drop((of_one, others));
        assert!(slots.lock().of_peer.is_empty() && slots.lock().all == 0);
        assert!(Arc::new(ConnectionSlots::new(1)).take(IpAddr::from([127, 0, 0, 1])).is_some());
    }

    #[tokio::test]
    async fn what_has_waited_longest_without_a_request_frees_its_slot() {
        let mut reserve = ProbeReserve::default();
        let mut tasks = Vec::new();
        for n in 0..RESERVED {
            assert!(!reserve.make_space());
            let task = tokio::spawn(std::future::pending::<()>());
            reserve.add(task.abort_handle(), Arc::new(AtomicBool::new(n == 0)));
            tasks.push(task);
        }
        assert!(reserve.make_space());
        assert!(tasks.remove(1).await.expect_err("ended").is_cancelled(), "the first has its request");
        assert!(!reserve.make_space(), "there is room for one now");
        tasks.remove(5).abort();
        while reserve.0.iter().filter(|one| one.task.is_finished()).count() == 0 {
            tokio::task::yield_now().await;
        }
        let task = tokio::spawn(std::future::pending::<()>());
        reserve.add(task.abort_handle(), Arc::default());
        assert!(!reserve.make_space(), "one that has ended is not counted");
    }
}
