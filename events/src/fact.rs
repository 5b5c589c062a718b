//! Facts: what the decider concluded. The only thing that changes state; each names its cause, and every entity
//! that it changes. What always follows from a fact is not a fact of its own.

mod parts;
mod register;
mod requested;

pub use parts::*;
pub use register::*;
pub use requested::*;
