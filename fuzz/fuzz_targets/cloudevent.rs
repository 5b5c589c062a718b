//! See `chancery_tests::fuzz::cloudevent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chancery_tests::fuzz::cloudevent(bytes));
