//! Requirements of orchestrators while their API does not respond.

use chancery_events::fact::CommandEffect;
use chancery_events::id::IncarnationId;

use super::reader::{OrchestratorClient, PATIENCE};
use super::{ApiAccess, OrchestratorUnderTest, TestBehaviour, command, is_ready};
use chancery_executor::orchestrator::{Orchestrator as _, WorkProgress};

pub(super) async fn a_failed_list_reports_nothing_about_running_incarnations<S: OrchestratorUnderTest>(
    subject: &S,
    [runs, late, never]: [IncarnationId; 3],
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    reader.order(runs, 1, CommandEffect::Ensure, &spec).await;
    let ready = reader.until(runs, 1, "it is ready", is_ready).await;
    if subject.set_api(ApiAccess::CutOff) {
        let orchestrator = &reader.orchestrator;
        let cut_off = async {
            let error = orchestrator.list().await.expect_err("an incomplete list is an error");
            assert!(!error.unreachable.is_empty() && !error.reason.is_empty(), "{error}");
            for again in [false, true] {
                assert!(orchestrator.changes(1).await.is_err(), "the watch is lost; again: {again}");
            }
            let (stop, start) = (
                command(runs, 2, CommandEffect::Kill, &spec),
                command(late, 1, CommandEffect::Ensure, &spec),
            );
            for work in [stop, start] {
                assert_eq!(orchestrator.carry_out(work).await, WorkProgress::PutOff, "the call is put off");
            }
            assert_eq!(orchestrator.remove(never.into(), 1).await, WorkProgress::PutOff);
            assert_eq!(orchestrator.forget(runs.into()).await, WorkProgress::PutOff);
        };
        tokio::time::timeout(PATIENCE, cut_off).await.expect("calls return without the API");
        assert_eq!((subject.running(runs), subject.running(late)), (1, 0), "nothing was ended or started");
        assert!(subject.set_api(ApiAccess::Connected));
        let lost = tokio::time::timeout(PATIENCE, orchestrator.changes(1)).await;
        assert!(lost.expect("in time").is_err(), "missed changes are lost until the next list");
        let listed = reader.list().await;
        assert_eq!(listed.get(&runs.into()), Some(&ready), "it is unchanged");
        assert!(!listed.contains_key(&late.into()), "a command that was put off is not recorded");
        reader.order(late, 1, CommandEffect::Ensure, &spec).await;
        reader.until(late, 1, "it is started, and changes are reported again", is_ready).await;
        reader.end(late, 2, &spec).await;
    }
    reader.end(runs, 2, &spec).await;
}
