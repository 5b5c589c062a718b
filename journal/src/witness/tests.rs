use chancery_events::fact::LineageStarted;

use super::*;

fn hash(of: u64) -> RecordHash {
    RecordHash::of(&of.to_be_bytes())
}

/// Journal that ends at position 200 of its second lineage. The first ended at 120, and one was abandoned.
fn journal() -> ([Lineage; 4], LineageHistory) {
    let all = [1, 2, 3, 4].map(Lineage::from_random);
    let [first, second, abandoned, _] = all;
    let mut lineages = LineageHistory::new(first);
    let at = Position::new(120);
    let missing_through = Some(Position::new(150));
    let fact = LineageStarted { previous: first, at, missing_through, abandoned: vec![abandoned] };
    lineages.start(second, &fact);
    (all, lineages)
}

#[test]
fn a_witness_is_weighed_by_its_lineage_its_position_and_its_hash() {
    let ([first, second, abandoned, unknown], lineages) = journal();
    let cases = [
        (second, 200, Some(hash(200)), Some(hash(200)), WitnessCheck::Agrees, "the last record"),
        (second, 160, None, Some(hash(160)), WitnessCheck::Agrees, "the witness names no hash"),
        (second, 160, Some(hash(1)), Some(hash(160)), WitnessCheck::Differs, "another record ends there"),
        (second, 160, Some(hash(1)), None, WitnessCheck::Differs, "no record ends there"),
        (second, 201, Some(hash(201)), None, WitnessCheck::Ahead, "one position after the head"),
        (second, 201, None, None, WitnessCheck::Ahead, "the same without a hash"),
        (
            first,
            120,
            Some(hash(120)),
            Some(hash(120)),
            WitnessCheck::Agrees,
            "the last record of an ancestor",
        ),
        (first, 100, Some(hash(1)), Some(hash(100)), WitnessCheck::Differs, "another record of an ancestor"),
        (first, 121, Some(hash(1)), Some(hash(121)), WitnessCheck::Past, "its loss was accepted"),
        (first, 900, Some(hash(1)), None, WitnessCheck::Past, "the same, after the head"),
        (abandoned, 130, Some(hash(1)), Some(hash(130)), WitnessCheck::Past, "its lineage was abandoned"),
        (abandoned, 900, Some(hash(1)), None, WitnessCheck::Past, "the same, after the head"),
        (
            unknown,
            201,
            Some(hash(1)),
            None,
            WitnessCheck::Ahead,
            "its lineage may have started in what is missing",
        ),
        (unknown, 150, Some(hash(1)), Some(hash(150)), WitnessCheck::Foreign, "a record of another journal"),
    ];
    for (lineage, position, hash, recorded, expected, why) in cases {
        let position = Position::new(position);
        let witness = JournalWitness { name: why.into(), lineage, position, hash };
        assert_eq!(weigh(&witness, Some(Position::new(200)), Some(&lineages), recorded), expected, "{why}");
        assert_eq!(weigh(&witness, None, None, None), WitnessCheck::Ahead, "an empty journal: {why}");
    }
}

#[test]
fn a_loss_reports_what_is_left_what_is_missing_and_which_lineages_are_abandoned() {
    let ([first, second, _, unknown], lineages) = journal();
    let witness = |lineage, position, weight| {
        let name = format!("snapshot {position}");
        (JournalWitness { name, lineage, position: Position::new(position), hash: None }, weight)
    };
    let head = Some(ChainCursor {
        position: Position::new(200),
        hash: hash(200),
        term: chancery_events::id::Term::FIRST,
        writer: chancery_events::id::WriterId::from_random(1),
        lineage: second,
        time: chancery_events::time::Time::from_micros(1),
    });
    let ahead = vec![witness(unknown, 300, WitnessCheck::Ahead), witness(second, 250, WitnessCheck::Ahead)];
    let mut loss =
        JournalLoss { head, lineages: Some(lineages), witnesses: ahead, agreed: Position::new(60) };
    assert_eq!((loss.at(), loss.missing_through()), (Position::new(200), Some(Position::new(300))));
    assert_eq!(loss.abandoned(), [unknown]);
    let message = format!(
        "the journal ends at position 200 of lineage {second}; snapshot 300 names a record at position 300 of lineage \
         {unknown}; snapshot 250 names a record at position 250"
    );
    assert_eq!(loss.to_string(), message);
    loss.witnesses =
        vec![witness(second, 180, WitnessCheck::Differs), witness(first, 90, WitnessCheck::Differs)];
    assert_eq!((loss.at(), loss.missing_through()), (Position::new(60), Some(Position::new(180))));
    assert!(loss.to_string().contains("snapshot 90 names another record at position 90 of lineage"));
    loss.witnesses = vec![witness(unknown, 150, WitnessCheck::Foreign)];
    assert_eq!(
        (loss.at(), loss.missing_through()),
        (Position::new(200), None),
        "the journal is unchanged up to its head"
    );
    assert_eq!(loss.abandoned(), [unknown]);
    assert!(
        loss.to_string().contains("snapshot 150 names a record of another history at position 150"),
        "{loss}"
    );
    let empty = JournalLoss {
        head: None,
        lineages: None,
        witnesses: vec![witness(first, 7, WitnessCheck::Ahead)],
        agreed: Position::ZERO,
    };
    assert_eq!((empty.at(), empty.abandoned()), (Position::ZERO, vec![first]));
}

#[test]
fn of_a_journal_that_differs_only_what_a_witness_agrees_on_before_that_counts() {
    let (_, lineages) = journal();
    let second = lineages.current;
    let head = ChainCursor {
        position: Position::new(200),
        hash: hash(200),
        term: chancery_events::id::Term::FIRST,
        writer: chancery_events::id::WriterId::from_random(1),
        lineage: second,
        time: chancery_events::time::Time::from_micros(1),
    };
    let witness = |position, hash| JournalWitness {
        name: "a snapshot".into(),
        lineage: second,
        position: Position::new(position),
        hash,
    };
    let cases = [
        (vec![(180, 1)], 0, "the histories may have diverged anywhere"),
        (vec![(140, 140), (180, 1)], 140, "a snapshot from before the divergence agrees"),
        (
            vec![(140, 140), (150, 2), (180, 1), (190, 190)],
            140,
            "a snapshot of a third history diverged before that",
        ),
        (vec![(140, 140), (300, 300)], 200, "nothing differs"),
    ];
    for (named, expected, why) in cases {
        let witnesses: Vec<_> = named.into_iter().map(|(at, of)| witness(at, Some(hash(of)))).collect();
        let recorded = |at: Position| Ok::<_, ()>(Some(hash(at.get())));
        let loss = against(Some(head), Some(lineages.clone()), &witnesses, recorded).expect("readable");
        assert_eq!(loss.expect("a loss").at(), Position::new(expected), "{why}");
    }
}
