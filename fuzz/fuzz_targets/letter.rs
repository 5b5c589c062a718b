//! See `chancery_tests::fuzz::letter`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chancery_tests::fuzz::letter(bytes));
