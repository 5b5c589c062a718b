//! Return of unused memory to the operating system.
//!
//! mimalloc returns free pages when it frees another page, and not earlier than a second after they were freed. An idle
//! server frees no page, so it would keep the memory of its last load.

use std::hint::black_box;
use std::time::Duration;

/// Time between two occasions for the allocator to return pages.
const PERIOD: Duration = Duration::from_secs(1);
/// Size of a block that has a page of its own, in bytes: freeing the block frees that page. No program writes to the
/// block, so it occupies no memory.
const BLOCK: usize = 16 << 20;

/// Lets the allocator return unused pages, every second and without end. Pages that a thread still owns are returned
/// when the thread ends: threads for blocking calls end after 10 idle seconds.
pub async fn return_unused() {
    loop {
        tokio::time::sleep(PERIOD).await;
        drop(black_box(Vec::<u8>::with_capacity(BLOCK)));
    }
}
