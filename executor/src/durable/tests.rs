use std::fs;

use super::*;

fn kept(path: &Path, by: Reader) -> io::Result<Option<String>> {
    #[derive(serde::Deserialize)]
    struct Kept {
        word: String,
    }
    Ok(read::<Kept>(path, by)?.map(|kept| kept.word))
}

fn keep(path: &Path, word: &str) {
    write(path, &serde_json::json!({ "word": word })).unwrap();
}

fn bytes(path: &Path) -> [Option<Vec<u8>>; 2] {
    copies(path).map(|copy| fs::read(copy).ok())
}

#[test]
fn one_copy_that_is_altered_cut_or_gone_loses_nothing_and_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.json");
    keep(&path, "first");
    keep(&path, "second");
    let whole = fs::read(&path).unwrap();
    let mut bad: Vec<Option<Vec<u8>>> = vec![None];
    bad.extend((0..whole.len()).map(|length| Some(whole[..length].to_vec())));
    bad.extend((0..whole.len() * 8).map(|bit| {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        Some(bytes)
    }));
    for copy in copies(&path) {
        for bad in &bad {
            match bad {
                Some(bytes) => fs::write(&copy, bytes).unwrap(),
                None => fs::remove_file(&copy).unwrap(),
            }
            let told = bad.as_deref().map(String::from_utf8_lossy);
            assert_eq!(kept(&path, Reader::Another).unwrap().as_deref(), Some("second"), "{told:?}");
            assert_eq!(fs::read(&copy).ok(), *bad, "whoever does not write it leaves it alone");
            assert_eq!(kept(&path, Reader::Writer).unwrap().as_deref(), Some("second"), "{told:?}");
            assert_eq!(bytes(&path), [Some(whole.clone()), Some(whole.clone())], "{told:?}");
        }
    }
}

#[test]
fn when_both_copies_are_bad_it_is_an_error_that_names_the_record_until_it_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.json");
    assert_eq!(kept(&path, Reader::Writer).unwrap(), None, "nothing is no error");
    for (first, second) in [("", ""), ("{\"wo", "x"), ("chancery-record 1 00000000\n{}", "")] {
        keep(&path, "one");
        for (copy, bad) in copies(&path).iter().zip([first, second]) {
            fs::write(copy, bad).unwrap();
        }
        let error = kept(&path, Reader::Writer).unwrap_err();
        assert!(error.to_string().contains("it.json is whole"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), first, "it stays as it was found");
    }
    keep(&path, "two");
    assert_eq!(kept(&path, Reader::Another).unwrap().as_deref(), Some("two"));
}

#[test]
fn of_two_whole_copies_the_one_that_was_written_last_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.json");
    keep(&path, "before");
    let before = fs::read(&path).unwrap();
    keep(&path, "after");
    let after = fs::read(&path).unwrap();
    for copy in copies(&path) {
        // As a crash between the two leaves them.
        fs::write(copy, &before).unwrap();
        assert_eq!(kept(&path, Reader::Writer).unwrap().as_deref(), Some("after"));
        assert_eq!(bytes(&path), [Some(after.clone()), Some(after.clone())]);
    }
    // The count goes on from whichever is left.
    fs::write(&path, "rubbish").unwrap();
    keep(&path, "later");
    fs::write(&path, &after).unwrap();
    assert_eq!(kept(&path, Reader::Writer).unwrap().as_deref(), Some("later"));
}

#[test]
fn a_single_file_of_an_earlier_build_is_read_and_gets_its_copy_with_the_next_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.json");
    fs::write(&path, r#"{"word":"old"}"#).unwrap();
    assert_eq!(kept(&path, Reader::Writer).unwrap().as_deref(), Some("old"));
    assert_eq!(bytes(&path)[1], None, "reading alone adds nothing: it may not be ours");
    keep(&path, "new");
    fs::write(&path, r#"{"word":"old"}"#).unwrap();
    assert_eq!(kept(&path, Reader::Writer).unwrap().as_deref(), Some("new"), "what has a count is newer");
    fs::write(&path, r#"{"word":"o"#).unwrap();
    fs::remove_file(path.with_extension("copy")).unwrap();
    assert!(kept(&path, Reader::Writer).is_err(), "a single file that is cut is an error, as it was");
}

#[test]
fn what_is_removed_is_gone_with_both_copies_and_nothing_is_left_beside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it.json");
    keep(&path, "one");
    let names: std::collections::BTreeSet<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["it.copy", "it.json"].map(Into::into).into());
    remove(&path).unwrap();
    remove(&path).unwrap();
    assert_eq!(kept(&path, Reader::Writer).unwrap(), None);
}
