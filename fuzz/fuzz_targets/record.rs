//! See `chancery_tests::fuzz::record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chancery_tests::fuzz::record(bytes));
