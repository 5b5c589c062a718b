//! See the function of the same name in `chancery_tests::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chancery_tests::fuzz::inbox_message(bytes));
