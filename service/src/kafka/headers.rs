//! Headers of a message, also if the name of one is not UTF-8.
//!
//! The client library assumes UTF-8 names and panics otherwise. The panic is caught here, so that one message
//! cannot end the thread that reads it. Headers after such a header are not read: the message is refused in
//! any case. Each panic costs time and a line of the log.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _};

/// Names and values of headers in their order.
type HeaderList<'a> = Vec<(&'a str, &'a [u8])>;

/// Returns the headers of a message in their order, up to the first whose name is not UTF-8, and the index of
/// that header. A header without a value has an empty one.
pub(super) fn of<'a>(message: &'a BorrowedMessage<'_>) -> (HeaderList<'a>, Option<usize>) {
    let Some(headers) = message.headers() else { return (Vec::new(), None) };
    read_headers(headers.count(), |index| headers.try_get(index))
}

fn read_headers<'a>(
    count: usize,
    read_one: impl Fn(usize) -> Option<Header<'a, &'a [u8]>>,
) -> (HeaderList<'a>, Option<usize>) {
    let mut read = Vec::with_capacity(count);
    for index in 0..count {
        // The closure borrows only the message, which a panic leaves unchanged.
        match catch_unwind(AssertUnwindSafe(|| read_one(index))) {
            Ok(Some(header)) => read.push((header.key, header.value.unwrap_or_default())),
            Ok(None) => break,
            Err(_) => return (read, Some(index)),
        }
    }
    (read, None)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn nothing_is_read_after_the_first_header_whose_name_is_not_utf_8() {
        const COUNT: usize = 100_000;
        // The index of the first unreadable header, after which all are unreadable.
        for first in [0, 1, 7, COUNT] {
            let reads = Cell::new(0);
            let (read, unreadable) = read_headers(COUNT, |index| {
                reads.set(reads.get() + 1);
                assert!(index < first, "this name is not UTF-8");
                Some(Header { key: "name", value: (index > 0).then_some(&b"value"[..]) })
            });
            assert_eq!(reads.get(), COUNT.min(first + 1));
            assert_eq!((read.len(), unreadable), (first, (first < COUNT).then_some(first)));
        }
    }
}
