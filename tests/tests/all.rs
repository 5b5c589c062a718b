//! Tests across crates and of the real program, in one binary: linking is what costs.

mod imports;
mod kills;
mod walkthrough;
