use std::fs;

use super::*;

fn kept(path: &Path, by: FileAccess) -> io::Result<Option<String>> {
    #[derive(serde::Deserialize)]
    struct StoredText {
        word: String,
    }
    Ok(read::<StoredText>(path, by)?.map(|kept| kept.word))
}

fn keep(path: &Path, word: &str) {
    write(path, &serde_json::json!({ "word": word })).unwrap();
}

fn bytes(path: &Path) -> [Option<Vec<u8>>; 2] {
    copies(path).map(|copy| fs::read(copy).ok())
}

#[test]
fn one_altered_truncated_or_missing_copy_loses_nothing_and_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
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
        for (number, bad) in bad.iter().enumerate() {
            match bad {
                Some(bytes) => fs::write(&copy, bytes).unwrap(),
                None => fs::remove_file(&copy).unwrap(),
            }
            let text = bad.as_deref().map(String::from_utf8_lossy);
            // An observer retries for a while, so not each time.
            if number % 16 == 0 {
                assert_eq!(kept(&path, FileAccess::Observer).unwrap().as_deref(), Some("second"), "{text:?}");
                assert_eq!(fs::read(&copy).ok(), *bad, "an observer does not repair it");
            }
            assert_eq!(kept(&path, FileAccess::Owner).unwrap().as_deref(), Some("second"), "{text:?}");
            assert_eq!(bytes(&path), [Some(whole.clone()), Some(whole.clone())], "{text:?}");
        }
    }
}

#[test]
fn an_interrupted_write_in_place_leaves_the_old_or_the_new_content() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    for words in [["short", "rather longer"], ["rather longer", "short"], ["black", "white"]] {
        let [before, after] = words.map(|word| {
            keep(&path, word);
            fs::read(&path).unwrap()
        });
        let cut = |length: usize| {
            let rest = before.get(length..).unwrap_or_default();
            [&after[..length], rest].concat()
        };
        let [first, second] = copies(&path);
        for (torn, whole, is_second) in [(&first, &second, false), (&second, &first, true)] {
            for length in 0..=after.len() {
                fs::write(torn, cut(length)).unwrap();
                // The other copy: not started, or done.
                fs::write(whole, if is_second { &after } else { &before }).unwrap();
                let done = is_second || cut(length) == after;
                let content = kept(&path, FileAccess::Owner).unwrap();
                assert_eq!(
                    content.as_deref(),
                    Some(words[usize::from(done)]),
                    "{words:?} {length} {is_second}"
                );
            }
        }
        // No leftovers hinder the next write.
        keep(&path, words[0]);
        assert_eq!(kept(&path, FileAccess::Observer).unwrap().as_deref(), Some(words[0]));
    }
}

#[test]
fn a_file_that_others_have_under_a_name_of_theirs_is_replaced_and_not_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    for number in [0, 1] {
        keep(&path, "before");
        let snapshot = directory.path().join("snapshot");
        fs::hard_link(&copies(&path)[number], &snapshot).unwrap();
        let before = fs::read(&snapshot).unwrap();
        keep(&path, "after");
        assert_eq!(fs::read(&snapshot).unwrap(), before);
        assert_eq!(kept(&path, FileAccess::Owner).unwrap().as_deref(), Some("after"));
        fs::remove_file(&snapshot).unwrap();
    }
    // A symbolic link.
    let elsewhere = directory.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let before = fs::read(&elsewhere).unwrap();
    keep(&path, "last");
    assert_eq!(fs::read(&elsewhere).unwrap(), before);
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
}

#[test]
fn while_it_grows_into_no_new_block_it_stays_the_same_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    let inodes = || copies(&path).map(|copy| fs::metadata(copy).unwrap().ino());
    keep(&path, "short");
    let first = inodes();
    keep(&path, &"x".repeat(3000));
    assert_eq!(inodes(), first);
    keep(&path, &"x".repeat(5000));
    assert!(
        inodes().iter().all(|inode| !first.contains(inode)),
        "a full disk must not change existing copies"
    );
}

#[test]
fn a_reader_alongside_the_writer_finds_what_was_written_or_what_is_being_written() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    let word = |number: usize| format!("{number} {}", "x".repeat(number * 977 % 9000));
    keep(&path, &word(0));
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=500 {
                begun.store(number, Ordering::SeqCst);
                keep(&path, &word(number));
                done.store(number, Ordering::SeqCst);
            }
        });
        while done.load(Ordering::SeqCst) < 500 {
            let least = done.load(Ordering::SeqCst);
            let found = kept(&path, FileAccess::Observer).unwrap().unwrap();
            let most = begun.load(Ordering::SeqCst);
            let number: usize = found.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(found, word(number));
            assert!((least..=most).contains(&number), "{number} is not from {least} to {most}");
        }
    });
}

#[test]
fn when_both_copies_are_bad_it_is_an_error_that_names_the_record_until_it_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    assert_eq!(kept(&path, FileAccess::Owner).unwrap(), None, "a missing record is no error");
    let bad =
        [("", ""), ("{\"wo", "x"), ("{\"word\":\"alone\"}", ""), ("chancery-record 1 00000000\n{}", "")];
    for (first, second) in bad {
        keep(&path, "one");
        for (copy, bad) in copies(&path).iter().zip([first, second]) {
            fs::write(copy, bad).unwrap();
        }
        let error = kept(&path, FileAccess::Owner).unwrap_err();
        assert!(error.to_string().contains("it.json: no valid copy"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), first, "the damaged copy is unchanged");
    }
    keep(&path, "two");
    assert_eq!(kept(&path, FileAccess::Observer).unwrap().as_deref(), Some("two"));
}

#[test]
fn of_two_whole_copies_the_one_that_was_written_last_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    keep(&path, "before");
    let before = fs::read(&path).unwrap();
    keep(&path, "after");
    let after = fs::read(&path).unwrap();
    for copy in copies(&path) {
        // State after a crash between the two writes.
        fs::write(copy, &before).unwrap();
        assert_eq!(kept(&path, FileAccess::Owner).unwrap().as_deref(), Some("after"));
        assert_eq!(bytes(&path), [Some(after.clone()), Some(after.clone())]);
    }
    // The count continues from the copy that is left.
    fs::write(&path, "rubbish").unwrap();
    keep(&path, "later");
    fs::write(&path, &after).unwrap();
    assert_eq!(kept(&path, FileAccess::Owner).unwrap().as_deref(), Some("later"));
}

#[test]
fn a_removal_deletes_both_copies_and_leaves_nothing_alongside() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    keep(&path, "one");
    let names: std::collections::BTreeSet<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["it.copy", "it.json"].map(Into::into).into());
    remove(&path).unwrap();
    remove(&path).unwrap();
    assert_eq!(kept(&path, FileAccess::Owner).unwrap(), None);
}

#[test]
fn a_record_notices_whatever_happened_to_its_files_since_its_last_writing() {
    type FileChange<'a> = (&'a str, &'a dyn Fn(&Path));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    let aside = directory.path().join("aside");
    let changes: [FileChange<'_>; 9] = [
        ("nothing", &|_| {}),
        ("removed", &|copy| fs::remove_file(copy).unwrap()),
        ("cut", &|copy| fs::write(copy, "chancery-record 1").unwrap()),
        ("an older one", &|copy| fs::write(copy, sealed(1, br#"{"word":"older"}"#)).unwrap()),
        ("longer", &|copy| fs::write(copy, [fs::read(copy).unwrap(), vec![b' '; 9]].concat()).unwrap()),
        ("the same again", &|copy| fs::write(copy, fs::read(copy).unwrap()).unwrap()),
        ("away and back", &|copy| {
            fs::rename(copy, &aside).unwrap();
            fs::rename(&aside, copy).unwrap();
        }),
        ("another file", &|copy| {
            fs::copy(copy, &aside).unwrap();
            fs::rename(&aside, copy).unwrap();
        }),
        ("a name more", &|copy| fs::hard_link(copy, &aside).unwrap()),
    ];
    let mut record = StateFile::at(path.clone());
    let stands = |record: &StateFile| {
        let (copies, left) = (copies(&path), record.left.as_ref());
        let found = look(&copies).unwrap();
        in_place(&copies, &found, 1).zip(left).is_some_and(|(places, left)| left.is(&places).unwrap())
    };
    let mut number = 0;
    for (what, change) in changes {
        for copy in copies(&path) {
            for time in 0..3 {
                number += 1;
                record.write(&serde_json::json!({ "word": number.to_string() })).unwrap();
                // The first write may have created new files.
                assert!(time == 0 || stands(&record), "{what}: before");
            }
            // Lets the file system's clock advance.
            std::thread::sleep(Duration::from_millis(20));
            change(&copy);
            assert_eq!(stands(&record), what == "nothing", "{what}");
            let snapshot = fs::read(&aside).ok();
            number += 1;
            record.write(&serde_json::json!({ "word": number.to_string() })).unwrap();
            let whole = sealed(number, format!(r#"{{"word":"{number}"}}"#).as_bytes());
            assert_eq!(bytes(&path), [Some(whole.clone()), Some(whole)], "{what}");
            assert_eq!(fs::read(&aside).ok(), snapshot, "{what}: an observer writes nothing");
            let _ = fs::remove_file(&aside);
        }
    }
}

#[test]
fn a_pipe_instead_of_a_copy_is_damage_and_is_never_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.json");
    keep(&path, "first");
    let pipe = |path: &Path| rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
    for copy in copies(&path) {
        fs::remove_file(&copy).unwrap();
        pipe(&copy);
        assert_eq!(kept(&path, FileAccess::Observer).unwrap().as_deref(), Some("first"));
        assert_eq!(kept(&path, FileAccess::Owner).unwrap().as_deref(), Some("first"));
        assert!(fs::symlink_metadata(&copy).unwrap().is_file(), "it was written again");
    }
    let lock_path = directory.path().join("lock");
    pipe(&lock_path);
    assert!(lock(&lock_path).is_err());
    assert!(lock_existing(&lock_path).is_err());
}
