//! Queue of messages to an executor: bounded by number and bytes. The decider never waits: an executor that
//! does not receive its messages is disconnected, and starts again with a full report.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Maximum number of waiting messages.
const MESSAGES: usize = 65_536;
/// Maximum number of bytes of all waiting messages: more than any message has, and enough for a whole
/// deployment.
const BYTES: usize = 32 << 20;

/// Sending end of the queue, for the decider.
#[derive(Clone, Debug)]
pub struct ExecutorOutbox {
    messages: mpsc::Sender<(Vec<u8>, OwnedSemaphorePermit)>,
    free_bytes: Arc<Semaphore>,
}

/// Receiving end of the queue, which ends when the sending end is dropped.
#[derive(Debug)]
pub struct OutboxReceiver {
    messages: mpsc::Receiver<(Vec<u8>, OwnedSemaphorePermit)>,
}

/// Error for an executor that does not receive its messages, or is disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot queue message: the executor's queue is full or closed")]
pub struct OutboxFull;

/// Returns both ends of a new queue.
pub fn outbox() -> (ExecutorOutbox, OutboxReceiver) {
    let (sender, messages) = mpsc::channel(MESSAGES);
    (
        ExecutorOutbox { messages: sender, free_bytes: Arc::new(Semaphore::new(BYTES)) },
        OutboxReceiver { messages },
    )
}

impl ExecutorOutbox {
    /// Queues a message, if there is space.
    pub fn put(&self, message: Vec<u8>) -> Result<(), OutboxFull> {
        let bytes = u32::try_from(message.len()).map_err(|_| OutboxFull)?;
        let permit = Arc::clone(&self.free_bytes).try_acquire_many_owned(bytes).map_err(|_| OutboxFull)?;
        self.messages.try_send((message, permit)).map_err(|_| OutboxFull)
    }
}

impl OutboxReceiver {
    /// Returns the next message; `None` at the end.
    pub async fn take(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await.map(|(message, _)| message)
    }

    /// Returns the next messages, until they reach `bytes` or no more wait; none at the end. Safe to cancel.
    pub async fn take_many(&mut self, bytes: usize) -> Vec<Vec<u8>> {
        let Some(first) = self.take().await else { return Vec::new() };
        let mut taken = first.len();
        let mut all = vec![first];
        while taken < bytes
            && let Ok((message, _)) = self.messages.try_recv()
        {
            taken += message.len();
            all.push(message);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_bounded_by_bytes_and_by_count_and_what_is_taken_frees_capacity() {
        let (executor_outbox, mut messages) = outbox();
        let large = vec![b'x'; BYTES / 4];
        for _ in 0..4 {
            assert_eq!(executor_outbox.put(large.clone()), Ok(()));
        }
        assert_eq!(executor_outbox.put(b"y".to_vec()), Err(OutboxFull), "not a byte more");
        assert_eq!(messages.take().await, Some(large));
        assert_eq!(executor_outbox.put(b"y".to_vec()), Ok(()));
        assert_eq!(messages.take_many(BYTES / 4 + 1).await.len(), 2, "not many more than were wanted");
        assert_eq!(messages.take_many(BYTES).await.len(), 2);
        for _ in 0..MESSAGES {
            assert_eq!(executor_outbox.put(Vec::new()), Ok(()));
        }
        assert_eq!(executor_outbox.put(Vec::new()), Err(OutboxFull), "not a message more");
        drop(executor_outbox);
        assert_eq!(messages.take_many(1).await.len(), MESSAGES);
        assert!(messages.take_many(1).await.is_empty());
    }
}
