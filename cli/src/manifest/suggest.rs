//! Nearest known name of a misspelt name.

/// Returns the name in `known` that `given` most likely means, if one is similar enough.
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let given = given.to_ascii_lowercase();
    let score = |name: &str| strsim::jaro_winkler(&given, &name.to_ascii_lowercase());
    let best = known.iter().copied().max_by(|a, b| score(a).total_cmp(&score(b)));
    best.filter(|name| score(name) > 0.75)
}

/// Returns the end of an error about an unknown name: the nearest known name, or else all known names.
pub fn instead(given: &str, known: &[&str]) -> String {
    match nearest(given, known) {
        Some(name) => format!(": did you mean {name:?}?"),
        None if known.is_empty() => String::new(),
        None => format!(": must be one of {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_corrected_and_an_unknown_name_is_not() {
        let known = ["cpu", "memory", "disk", "persistentVolumes"];
        let cases = [
            ("memroy", Some("memory")),
            ("Memory", Some("memory")),
            ("persistentVolume", Some("persistentVolumes")),
        ];
        for (given, name) in cases {
            assert_eq!(nearest(given, &known), name, "{given}");
        }
        assert_eq!(nearest("zebra", &known), None);
        assert_eq!(instead("zebra", &["a", "b"]), ": must be one of a, b");
    }
}
