//! See `chancery_tests::fuzz::intent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chancery_tests::fuzz::intent(bytes));
