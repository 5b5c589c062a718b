//! Approval policies in manifests.

use chancery_events::name::{DomainName, PlanName};
use chancery_events::spec::{ApprovalWindow, PolicyKind, PolicyRule, PolicySpec, Weekday};
use schemars::JsonSchema;
use serde::Deserialize;

use super::form::FormFault;
use super::units::{AnyCase, ClockTime, MinuteSpan};

/// Policy about approvals: either operations that it approves, or operations that another person must
/// approve.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyForm {
    /// Changes that the policy applies to (default: all): kinds of operations, and `expunge` of a node, for
    /// `four_eyes` only.
    #[serde(default)]
    kinds: Vec<AnyCase<PolicyKind>>,
    /// Plans that the policy applies to (default: all).
    #[serde(default)]
    plans: Vec<PlanName>,
    /// Update domains of the nodes that the policy applies to (default: all).
    #[serde(default)]
    domains: Vec<DomainName>,
    /// Conditions under which the policy approves; `{}` for always.
    #[serde(default)]
    approve: Option<ApproveForm>,
    /// `true`: the approver must be another person than the requester.
    #[serde(default)]
    four_eyes: Option<bool>,
}

/// Conditions under which a policy approves.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApproveForm {
    /// Windows in which the policy approves (default: always).
    #[serde(default)]
    windows: Vec<WindowForm>,
    /// Maximum number of operations that the policy approved and that have not ended.
    #[serde(default)]
    max_in_flight: Option<u32>,
}

/// Time of the week, in UTC.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WindowForm {
    /// Days on which the window opens (default: every day).
    #[serde(default)]
    days: Vec<AnyCase<Weekday>>,
    /// Time at which the window opens, in UTC: `"22:00"`.
    start: ClockTime,
    /// Duration of the window, from a minute to seven days: `8h`.
    duration: MinuteSpan,
}

impl From<WindowForm> for ApprovalWindow {
    fn from(form: WindowForm) -> ApprovalWindow {
        let days = form.days.into_iter().map(|AnyCase(day)| day).collect();
        ApprovalWindow { days, start: form.start.0, duration: form.duration.0 }
    }
}

impl PolicyForm {
    /// Returns the spec of the policy.
    pub(super) fn spec(self) -> Result<PolicySpec, FormFault> {
        let rule = match (self.approve, self.four_eyes) {
            (Some(ApproveForm { windows, max_in_flight }), None) => PolicyRule::Approve {
                windows: windows.into_iter().map(ApprovalWindow::from).collect(),
                max_in_flight,
            },
            (None, Some(true)) => PolicyRule::FourEyes {},
            (None, Some(false)) => {
                return Err(("invalid four_eyes: must be true or omitted".into(), "/spec/four_eyes".into()));
            }
            (Some(_), Some(_)) => {
                let what =
                    "invalid policy: must have either approve or four_eyes, or be divided into two policies";
                return Err((what.into(), "/spec/four_eyes".into()));
            }
            (None, None) => {
                let what = "invalid policy: must have \"spec.approve\" or \"spec.four_eyes\"";
                return Err((what.into(), String::new()));
            }
        };
        let kinds = self.kinds.into_iter().map(|AnyCase(kind)| kind).collect();
        Ok(PolicySpec { kinds, plans: self.plans, domains: self.domains, rule })
    }
}
