//! Rules about approvals, as people write them.

use chancery_events::name::{DomainName, PlanName};
use chancery_events::spec::{ApprovalWindow, PolicyKind, PolicyRule, PolicySpec, Weekday};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::edge::{AnyCase, ClockTime, MinuteSpan};

/// A rule about approvals: either what it approves, or that four eyes are wanted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyForm {
    /// Operations of these kinds; of every kind, unless set.
    #[serde(default)]
    kinds: Vec<AnyCase<PolicyKind>>,
    /// Of these plans; of every plan, unless set.
    #[serde(default)]
    plans: Vec<PlanName>,
    /// On nodes of these update domains; anywhere, unless set.
    #[serde(default)]
    domains: Vec<DomainName>,
    /// Approves them, while all of this holds; `{}` for always.
    #[serde(default)]
    approve: Option<ApproveForm>,
    /// `true`: whoever approves must be another than whoever asked.
    #[serde(default)]
    #[schemars(with = "Option<bool>")]
    four_eyes: Option<Spanned<bool>>,
}

/// When it approves.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApproveForm {
    /// Only in one of these windows; at any time, unless set.
    #[serde(default)]
    windows: Vec<WindowForm>,
    /// Only while fewer that it approved are not over.
    #[serde(default)]
    in_flight: Option<u32>,
}

/// A time of the week, in UTC.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WindowForm {
    /// The days on which it opens; every day, unless set.
    #[serde(default)]
    days: Vec<AnyCase<Weekday>>,
    /// When it opens, in UTC: `"22:00"`.
    from: ClockTime,
    /// How long it stays open, from a minute to seven days: `8h`.
    #[serde(rename = "for")]
    lasts: MinuteSpan,
}

impl From<WindowForm> for ApprovalWindow {
    fn from(form: WindowForm) -> ApprovalWindow {
        let days = form.days.into_iter().map(|AnyCase(day)| day).collect();
        ApprovalWindow { days, from: form.from.0, minutes: form.lasts.0 }
    }
}

impl PolicyForm {
    /// The spec, or what is wrong and, if at a place of its own, where.
    pub(super) fn spec(self) -> Result<PolicySpec, (String, Option<Location>)> {
        let rule = match (self.approve, self.four_eyes) {
            (Some(ApproveForm { windows, in_flight }), None) => PolicyRule::Approve {
                windows: windows.into_iter().map(ApprovalWindow::from).collect(),
                in_flight,
            },
            (None, Some(Spanned { value: true, .. })) => PolicyRule::FourEyes {},
            (None, Some(Spanned { referenced, .. })) => {
                return Err(("write true, or leave it out".into(), Some(referenced)));
            }
            (Some(_), Some(Spanned { referenced, .. })) => {
                let what = "a policy either approves or wants four eyes: write two policies";
                return Err((what.into(), Some(referenced)));
            }
            (None, None) => {
                return Err(("say what it does: \"spec.approve\" or \"spec.four_eyes\"".into(), None));
            }
        };
        let kinds = self.kinds.into_iter().map(|AnyCase(kind)| kind).collect();
        Ok(PolicySpec { kinds, plans: self.plans, domains: self.domains, rule })
    }
}
