//! Pages of the documentation that are generated from the program.

mod error_reference;
mod settings_reference;
