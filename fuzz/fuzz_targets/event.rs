//! See `chancery_tests::fuzz::event`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chancery_tests::fuzz::event(bytes));
