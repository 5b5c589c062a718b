//! Rules about names and texts of the workspace. Each rule is a function from sources to violations.
//!
//! `source` reads tokens and passages, `types` to `wire` are the rules, and `examples` has a row for each
//! text that a rule must find.
#![cfg(test)]

mod banned;
mod docs;
mod errors;
mod examples;
mod source;
mod tree;
mod types;
mod wire;
