//! Input senders. Each executor's connection has a bounded share of the decider's queue, and all connections
//! together have half; inbox messages have a quarter. So a client that floods only delays itself, and the
//! rest is left to producers. A large intent or message counts as several, so that the queue is bounded in
//! bytes too.

use std::sync::Arc;

use chancery_events::inbox_message::InboxMessage;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::handle::{ChannelNumber, DeciderHandle, DeciderInput, DeciderStopped};
use super::outbox::ExecutorOutbox;

/// Maximum number of waiting pieces of one connection.
const SHARE: usize = 64;
/// Bytes of a piece. A message counts as one piece, plus one for each `PIECE` bytes.
const PIECE: usize = 16 << 10;

/// Input sender of a connection: see the module. Messages reach the decider in order.
#[derive(Debug)]
pub struct InputSender {
    decider: DeciderHandle,
    connection: ChannelNumber,
    own: Arc<Semaphore>,
}

/// Permit of a waiting inbox message or intent, released when dropped.
#[derive(Debug)]
pub struct InboxPermit(
    #[expect(dead_code, reason = "held until it is dropped")] pub(super) OwnedSemaphorePermit,
);

/// Permit of a waiting executor message, released when dropped.
#[derive(Debug)]
pub struct InputPermit {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl DeciderHandle {
    /// Returns an input sender for a connection.
    pub fn way(&self, connection: ChannelNumber) -> InputSender {
        InputSender { decider: self.clone(), connection, own: Arc::new(Semaphore::new(SHARE)) }
    }

    /// Queues an inbox message: waits for space. Messages reach the decider in posting order.
    pub async fn post(&self, message: InboxMessage) -> Result<(), DeciderStopped> {
        let pieces = pieces(message.bytes(), self.quarter);
        let permit =
            Arc::clone(&self.messages).acquire_many_owned(pieces).await.map_err(|_| DeciderStopped)?;
        self.send(DeciderInput::InboxMessage(Box::new(message), InboxPermit(permit))).await
    }
}

/// Returns the number of pieces of `bytes`, at most `most`.
pub(super) fn pieces(bytes: usize, most: usize) -> u32 {
    u32::try_from((1 + bytes / PIECE).min(most)).unwrap_or(u32::MAX)
}

impl InputSender {
    /// Reports the connection; messages of the decider go into the mailbox.
    pub async fn connected(&self, outbox: ExecutorOutbox) -> Result<(), DeciderStopped> {
        self.decider.send(DeciderInput::Connected(self.connection, outbox)).await
    }

    /// Queues a message: waits for its share, and then for space.
    pub async fn send(&self, message: Vec<u8>) -> Result<(), DeciderStopped> {
        let pieces = pieces(message.len(), SHARE.min(self.decider.half));
        // The connection's own share first: it bounds how many of its messages wait for the common share.
        let own = Arc::clone(&self.own).acquire_many_owned(pieces).await.map_err(|_| DeciderStopped)?;
        let common = Arc::clone(&self.decider.executors);
        let of_all = common.acquire_many_owned(pieces).await.map_err(|_| DeciderStopped)?;
        let share = InputPermit { _own: own, _of_all: of_all };
        self.decider.send(DeciderInput::ExecutorMessage(self.connection, message, share)).await
    }

    /// Reports the end of the connection.
    pub async fn disconnected(&self) -> Result<(), DeciderStopped> {
        self.decider.send(DeciderInput::Disconnected(self.connection)).await
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use chancery_events::extension::ExtensionAttributes;
    use chancery_events::intent::{IntentRequest, PolicyDelete};
    use tokio::sync::mpsc;
    use tokio::task::unconstrained;

    use super::*;
    use crate::handle::UnchangedVerdict;

    /// Whether the message can be sent without waiting.
    async fn is_sent(way: &InputSender, message: &[u8]) -> bool {
        let mut sending = pin!(unconstrained(way.send(message.to_vec())));
        poll_fn(|context| Poll::Ready(sending.as_mut().poll(context).is_ready())).await
    }

    /// Sends messages until one waits. Returns how many did not.
    async fn flood(way: &InputSender, message: &[u8]) -> usize {
        let mut sent = 0;
        while is_sent(way, message).await {
            sent += 1;
        }
        sent
    }

    #[tokio::test]
    async fn a_flooding_executor_has_its_share_and_leaves_capacity_for_others_and_for_producers() {
        let (queue, mut inputs) = mpsc::channel(4 * SHARE);
        let decider = DeciderHandle::over(queue);
        let (greedy, other) = (decider.way(ChannelNumber(1)), decider.way(ChannelNumber(2)));
        assert_eq!(flood(&greedy, b"x").await, SHARE);
        assert!(is_sent(&other, b"y").await, "the other has a share of its own");
        assert_eq!(flood(&other, b"y").await, SHARE - 1);
        // All executors together leave half to producers.
        let third = decider.way(ChannelNumber(3));
        assert_eq!(flood(&third, b"z").await, 0);
        assert_eq!(decider.backlog(), 2 * SHARE);
        // Handled messages free space, in order of request.
        drop(inputs.recv().await.expect("an input"));
        assert_eq!(flood(&greedy, b"x").await, 1);
    }

    #[tokio::test]
    async fn messages_wait_for_the_decider_and_leave_capacity_for_others() {
        let (queue, mut inputs) = mpsc::channel(16);
        let decider = DeciderHandle::over(queue);
        let posts = async |bytes: usize| {
            let message = InboxMessage { value: Some(vec![b'x'; bytes]), ..InboxMessage::default() };
            let mut posted = pin!(unconstrained(decider.post(message)));
            poll_fn(|context| Poll::Ready(posted.as_mut().poll(context).is_ready())).await
        };
        for _ in 0..4 {
            assert!(posts(1).await);
        }
        assert!(!posts(1).await, "inbox messages have only a quarter");
        assert_eq!(decider.backlog(), 4);
        drop(inputs.recv().await.expect("an input"));
        assert!(posts(1).await, "handled inputs free space");
        while inputs.try_recv().is_ok() {}
        assert!(posts(1000 * PIECE).await, "a large one has all of it");
        assert!(!posts(1).await);
    }

    #[tokio::test]
    async fn a_large_message_counts_for_more() {
        let (queue, mut inputs) = mpsc::channel(1024);
        let decider = DeciderHandle::over(queue);
        let way = decider.way(ChannelNumber(1));
        assert_eq!(flood(&way, &vec![b'x'; 15 * PIECE]).await, SHARE / 16);
        drop(inputs.recv().await);
        assert_eq!(flood(&way, &vec![b'x'; 1000 * PIECE]).await, 0, "a larger message takes the whole share");
        while inputs.try_recv().is_ok() {}
        assert_eq!(flood(&way, &vec![b'x'; 1000 * PIECE]).await, 1);
    }

    #[tokio::test]
    async fn intents_that_wait_are_bounded_in_bytes_also_when_no_client_waits_for_their_answers() {
        let (queue, mut inputs) = mpsc::channel(64);
        let decider = DeciderHandle::over(queue);
        let request = || IntentRequest {
            id: "a".parse().expect("a name"),
            source: "test".parse().expect("a name"),
            actor: "ann".parse().expect("a name"),
            time: None,
            expect: None,
            claim: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            intent: PolicyDelete { name: "p".parse().expect("a name") }.into(),
        };
        let ask = async |bytes: usize| {
            let mut asked = pin!(decider.ask(request(), UnchangedVerdict::default(), bytes));
            // Dropped as soon as it waits for its answer.
            poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_pending())).await
        };
        for _ in 0..4 {
            assert!(ask(15 * PIECE).await);
        }
        assert!(!ask(1).await, "all of the queue");
        assert_eq!(decider.backlog(), 4);
        drop(inputs.recv().await.expect("an input"));
        assert!(!ask(16 * PIECE).await, "more than is free");
        for _ in 0..16 {
            assert!(ask(1).await, "handled inputs free space");
        }
        assert!(!ask(1).await);
        let (queue, _inputs) = mpsc::channel(1);
        let decider = DeciderHandle::over(queue);
        let mut large = pin!(decider.ask(request(), UnchangedVerdict::default(), 100 * PIECE));
        let waits = poll_fn(|context| Poll::Ready(large.as_mut().poll(context).is_pending())).await;
        assert!(waits, "a large one has all of the smallest queue");
    }
}
