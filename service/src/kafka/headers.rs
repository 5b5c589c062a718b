//! Headers of a message, also where the name of one is not UTF-8.
//!
//! The client library takes names for UTF-8 and panics where one is not. That panic is caught here, header by header, so
//! that one message cannot end the thread that reads it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};

/// The headers of a message in their order (one without a value has an empty one), and the index of the first whose name
/// is not UTF-8, which is left out.
pub(super) fn of<'a>(message: &'a BorrowedMessage<'_>) -> (Vec<(&'a str, &'a [u8])>, Option<usize>) {
    let Some(headers) = message.headers() else { return (Vec::new(), None) };
    let (mut read, mut unreadable) = (Vec::with_capacity(headers.count()), None);
    for index in 0..headers.count() {
        // It borrows from the message alone, which a panic leaves as it was.
        match catch_unwind(AssertUnwindSafe(|| headers.try_get(index))) {
            Ok(Some(header)) => read.push((header.key, header.value.unwrap_or_default())),
            Ok(None) => break,
            Err(_) => {
                unreadable.get_or_insert(index);
            }
        }
    }
    (read, unreadable)
}
