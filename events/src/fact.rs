//! Facts: conclusions of the decider. Only facts change the state. Each fact names its cause, and every
//! entity that it changes. A consequence that always follows from a fact is not a fact of its own.

mod common;
mod register;
mod requested;

pub use common::*;
pub use register::*;
pub use requested::*;
