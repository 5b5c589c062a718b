//! Parts of messages: counts with their nouns.

use std::fmt::Display;

/// Returns a count with its noun, given in the singular, as in `1 replica` or `2 replicas`.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    if count == N::from(1) {
        return format!("{count} {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{count} {stem}ies"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_has_the_number_of_its_count() {
        assert_eq!(counted(1_u32, "replica"), "1 replica");
        assert_eq!(counted(0_usize, "replica"), "0 replicas");
        assert_eq!(counted(3_i32, "copy"), "3 copies");
        assert_eq!(counted(2_u64, "day"), "2 days");
    }
}
