//! Bytes of records: written records can be read, and invalid records are refused.

use super::*;

fn parts(begins: Option<RecordStart>) -> HeaderParts {
    HeaderParts {
        fleet: "default".into(),
        lineage: Lineage::from_random(1),
        first: Position::new(7),
        term: Term::new(2),
        writer: WriterId::from_random(0xabc),
        time: Time::from_micros(1_795_251_600_000_000),
        build: "0.1.0".into(),
        starts: begins,
        watermark: None,
        prev: RecordHash::ZERO,
    }
}

fn sealed(begins: Option<RecordStart>, lines: &[&str]) -> Result<Record, InvalidBody> {
    let mut draft = RecordDraft::new();
    for line in lines {
        draft.push(line.as_bytes()).expect("an event fits");
    }
    draft.seal(parts(begins))
}

#[test]
fn the_bytes_are_these() {
    let record = sealed(Some(RecordStart::Term), &[r#"{"t":"term.started.v1"}"#, r#"{"t":"b.v1"}"#])
        .expect("a record");
    let wanted = concat!(
        r#"{"chancery":2,"fleet":"default","lineage":"0000000000000001","first":7,"count":2,"term":2,"#,
        r#""writer":"0000000000000abc","time":1795251600000000,"build":"0.1.0","starts":"term","#,
        r#""prev":"0000000000000000000000000000000000000000000000000000000000000000"}"#,
        "\n{\"t\":\"term.started.v1\"}\n{\"t\":\"b.v1\"}\n",
    );
    assert_eq!(str::from_utf8(record.bytes()), Ok(wanted));
    assert_eq!(record.hash(), RecordHash::of(wanted.as_bytes()));
    assert_eq!(Record::decode(wanted.as_bytes()).expect("a record"), record);
    let events: Vec<_> = record.events().map(|(at, line)| (at.get(), line.len())).collect();
    assert_eq!(events, [(7, 23), (8, 12)]);
}

#[test]
fn a_header_is_decoded_to_its_fields() {
    let previous = Lineage::from_random(9);
    let watermark = InboxWatermark { topic: "inbox/\"id\"".into(), next: 42 };
    let mut draft = RecordDraft::new();
    draft.push(br#"{"t":"lineage.started.v1"}"#).expect("an event fits");
    let parts = HeaderParts { watermark: Some(watermark), ..parts(Some(RecordStart::Lineage { previous })) };
    let record = draft.seal(parts).expect("a record");
    let (header, _) = RecordHeader::peek(record.bytes()).expect("a header");
    assert_eq!(&header, record.header());
    assert_eq!(header.starts, Some(RecordStart::Lineage { previous }));
}

#[test]
fn an_invalid_record_has_no_header_and_a_bad_body_has_one() {
    let good = String::from_utf8(sealed(None, &[r#"{"t":"a.v1"}"#]).expect("a record").bytes().to_vec())
        .expect("text");
    let noise = [
        String::new(),
        "\n".into(),
        "{}\n{}\n".into(),
        good.replace('\n', ""),
        good.replace("chancery", "chancellery"),
        good.replace("\"first\":7", "\"first\":0"),
        good.replace("\"first\":7", "\"first\":72057594037927936"),
        good.replace("\"count\":1", "\"count\":0"),
        good.replace("\"prev\":\"0", "\"prev\":\"A"),
        good.replace("\"prev\"", "\"starts\":\"lineage\",\"prev\""),
        good.replace("\"prev\"", "\"previous\":\"0000000000000001\",\"prev\""),
    ];
    for bytes in noise {
        assert!(matches!(Record::decode(bytes.as_bytes()), Err(InvalidRecord::NotARecord(_))), "{bytes}");
    }
    let bad = [
        good.replace("\"count\":1", "\"count\":2"),
        good.replace("\"count\":1", "\"count\":1001"),
        good.trim_end().into(),
        format!("{good}\n"),
        format!("{good}x\n"),
        good.replace("\"prev\"", "\"starts\":\"term\",\"prev\""),
        good.replace("a.v1", "term.started.v1"),
        good.replace("a.v1", "lineage.started.v1"),
    ];
    for bytes in bad {
        assert!(matches!(Record::decode(bytes.as_bytes()), Err(InvalidRecord::Body(_))), "{bytes}");
    }
    for format in [1, 3] {
        let other = good.replace("\"chancery\":2", &format!("\"chancery\":{format}"));
        let error = Record::decode(other.as_bytes()).expect_err("another format");
        assert!(matches!(error, InvalidRecord::Body(InvalidBody::Format { found }) if found == format));
        let reason = "this build reads only format 2; format 1 was written by builds before 0.1.0";
        assert_eq!(error.to_string(), format!("cannot read record of format {format}: {reason}"));
    }
    // A first event that only mentions such a type starts nothing.
    assert!(
        Record::decode(good.replace(r#"{"t":"a.v1"}"#, r#"{"t":"a.v1","d":"term.started.v1"}"#).as_bytes())
            .is_ok()
    );
}

#[test]
fn a_draft_keeps_to_the_limits() {
    let mut draft = RecordDraft::new();
    assert_eq!(draft.push(b"{\n}"), Err(DraftError::NotALine));
    assert_eq!(draft.push(b""), Err(DraftError::NotALine));
    let large = format!("{{{}}}", "1".repeat(MAX_BYTES));
    assert_eq!(draft.push(large.as_bytes()), Err(DraftError::TooLarge { bytes: large.len() }));
    assert!(matches!(draft.clone().seal(parts(None)), Err(InvalidBody::Shape(_))));
    for _ in 0..MAX_EVENTS {
        draft.push(b"{}").expect("an event fits");
    }
    assert_eq!(draft.push(b"{}"), Err(DraftError::Full));
    let mut draft = RecordDraft::new();
    draft.push(b"{}").expect("an event fits");
    let mark = draft.mark();
    let half = format!("{{{}}}", "1".repeat(MAX_BYTES / 2));
    draft.push(half.as_bytes()).expect("an event fits");
    assert_eq!(draft.push(half.as_bytes()), Err(DraftError::Full));
    draft.back_to(mark);
    assert_eq!(draft.count(), 1);
    assert!(draft.seal(parts(None)).expect("a record").bytes().len() <= MAX_BYTES);
}
