//! Incarnations with many processes and ports.

use chancery_events::fact::CommandEffect;
use chancery_events::observation::ObservedState;
use chancery_events::protocol::IncarnationSpec;
use chancery_events::spec::{PayloadPort, PortProtocol};
use chancery_executor::Orchestrator as _;

use crate::world::{TestRoot, command, id, is_ended, is_ready, payload, spec, until, wait_until};

const PROCESSES: u16 = 200;
const PORTS: usize = 16;

/// Returns a spec whose record exceeds a socket's buffer. Each process reports when its program is executed.
fn large() -> IncarnationSpec {
    let name = "a-payload-whose-name-is-as-long-as-a-name-may-be-and-that-is-63";
    let mut payload = payload(name, PROCESSES, &["sh", "-c", "touch executed; exec sleep 3600"]);
    let port = |number| PayloadPort {
        name: format!("a-port-with-a-name-that-is-as-long-as-such-a-name-may-be-{number:02}")
            .parse()
            .unwrap(),
        protocol: PortProtocol::Tcp,
        port: 1,
    };
    payload.ports = (0..PORTS).map(port).collect();
    spec(vec![payload])
}

fn executed(root: &TestRoot) -> usize {
    let entries = std::fs::read_dir(root.incarnation_directory(id(1))).into_iter().flatten();
    entries.filter(|entry| entry.as_ref().unwrap().path().join("work/executed").exists()).count()
}

pub(crate) async fn an_incarnation_of_many_processes_and_ports_is_reported_whole_and_ended() {
    let root = TestRoot::new();
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &large())).await;
    let ready = until(&processes, id(1), "it is ready", is_ready).await;
    let ObservedState::Ready { processes: seen } = ready.observed else { unreachable!() };
    assert_eq!(seen.len(), usize::from(PROCESSES));
    assert!(seen.iter().all(|process| process.addresses.len() == PORTS));
    // A later executor sees them too.
    drop(processes);
    let processes = root.open().await;
    until(&processes, id(1), "it is ready", is_ready).await;
    processes.carry_out(command(id(1), 2, CommandEffect::Kill, &large())).await;
    until(&processes, id(1), "it has ended", is_ended).await;
    assert!(root.payloads().is_empty());
}

pub(crate) async fn a_stop_during_the_start_of_many_processes_is_executed_immediately() {
    let root = TestRoot::new();
    let processes = root.open().await;
    processes.carry_out(command(id(1), 1, CommandEffect::Ensure, &large())).await;
    wait_until("its supervisor has started", || {
        root.incarnation_directory(id(1)).join("supervisor.sock").exists()
    });
    processes.carry_out(command(id(1), 2, CommandEffect::Stop, &large())).await;
    let ended = until(&processes, id(1), "it has ended", is_ended).await;
    assert_eq!(executed(&root), 0, "nothing was executed: {ended:?}");
    wait_until("no process is left", || root.trampolines() == 0 && root.supervisors().is_empty());
}
