//! Folds the journal into read models.

pub mod rows;
