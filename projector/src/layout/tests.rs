//! Stored rows, read by their layouts.

use serde_json::json;

use super::*;
use crate::build_row::{RowVisitor, every};
use crate::counts::RowCounts;
use crate::kind::ReadModelRow;
use crate::store::encode;
use crate::tests::driver::TestDriver;

/// Reads each row by its layout.
struct LayoutCheck {
    layouts: RowLayouts,
    rows: BTreeMap<RowKind, u64>,
}

impl RowVisitor for LayoutCheck {
    type Error = std::convert::Infallible;

    fn row<R: ReadModelRow>(&mut self, row: &R) -> Result<(), Self::Error> {
        let layout = &self.layouts.0[&(R::KIND as u8)].row;
        let read = layout.read(&[R::KIND as u8], &encode(row)).expect("a row of the layout");
        assert_eq!(read, serde_json::to_value(row).expect("JSON"), "{}", R::KIND);
        *self.rows.entry(R::KIND).or_default() += 1;
        Ok(())
    }
}

#[test]
fn a_stored_row_and_its_layout_give_the_json_of_the_row() {
    let mut check = LayoutCheck { layouts: RowLayouts::of_this_build(), rows: BTreeMap::new() };
    for seed in 0..4 {
        let mut driver = TestDriver::new(seed);
        driver.found(6, 4);
        for _ in 0..10 {
            (0..60).for_each(|_| driver.stir());
            let Ok(()) = every(&driver.fleet, &RowCounts::of(&driver.fleet), &mut check);
        }
    }
    let seen: Vec<_> = check.rows.keys().collect();
    assert!(seen.len() + 2 >= RowKind::ALL.len(), "{seen:?}");
}

#[test]
fn every_variant_of_every_enum_has_a_form() {
    let layouts = RowLayouts::of_this_build();
    let text = serde_json::to_string(&layouts).expect("JSON");
    assert!(text.len() < 30_000, "{} bytes", text.len());
    assert_eq!(serde_json::from_str::<RowLayouts>(&text).expect("layouts"), layouts);
    let RowLayout::Fields(fields) = &layouts.0[&(RowKind::Requests as u8)].row else {
        panic!("a row has fields")
    };
    let change = &fields.iter().find(|(name, _)| name == "change").expect("a field").1;
    let RowLayout::Variants(variants) = change else { panic!("{change:?}") };
    let names: Vec<_> = variants.iter().map(|(name, _)| name.as_str()).collect();
    let (first, last) = (names.first().copied(), names.last().copied());
    assert_eq!((first, last), (Some("plan_delete"), Some("volume_delete")), "{names:?}");
    assert!(variants.iter().all(|(_, form)| matches!(form, RowLayout::Fields(_))), "{variants:?}");
}

#[test]
fn a_row_that_does_not_have_its_layout_is_refused() {
    let layout = RowLayout::Fields(vec![("a".into(), RowLayout::Unsigned), ("b".into(), RowLayout::Text)]);
    let cases: [(&[u8], Option<Value>); 4] = [
        (&[7, 1, b'x'], Some(json!({"a": 7, "b": "x"}))),
        (&[7, 1, b'x', 0], None),
        (&[7, 2, b'x'], None),
        (&[], None),
    ];
    for (bytes, wanted) in cases {
        assert_eq!(layout.read(&[1], bytes).ok(), wanted, "{bytes:?}");
    }
}
