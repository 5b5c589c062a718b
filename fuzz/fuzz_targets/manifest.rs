//! See `chancery_tests::fuzz::manifest`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chancery_tests::fuzz::manifest(bytes));
