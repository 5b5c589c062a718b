use std::io::{Read as _, Write as _};
use std::path::Path;

use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;

/// Source whose consoles are in one directory, with the output of the guest `app`.
struct OneGuest(PathBuf);

impl ConsoleSource for OneGuest {
    fn console(&self, _: IncarnationId, _: Option<&PayloadName>) -> Result<ConsoleFiles, AttachError> {
        let payload = "app".parse().expect("a name");
        Ok(ConsoleFiles { payload, input: self.0.join("in"), output: self.0.join("app-0.out") })
    }
}

/// Server that is connected to an executor with one guest.
struct FakeServer {
    directory: tempfile::TempDir,
    /// Both ends of the pipe, as QEMU holds them.
    guest: Option<File>,
    requests: mpsc::Sender<ConsoleRequest>,
    replies: mpsc::Receiver<ConsoleReply>,
}

fn open_both(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("a pipe")
}

impl FakeServer {
    fn new() -> FakeServer {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("in");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("a pipe");
        let guest = Some(open_both(&path));
        let (requests, received) = mpsc::channel(8);
        let (to_server, replies) = mpsc::channel(8);
        let hub = ConsoleHub::new(Arc::new(OneGuest(directory.path().to_owned())));
        tokio::spawn(serve_consoles(hub, received, to_server));
        FakeServer { directory, guest, requests, replies }
    }

    async fn ask(&self, request: ConsoleRequest) {
        self.requests.send(request).await.expect("an executor");
    }

    async fn reply(&mut self) -> ConsoleReply {
        self.replies.recv().await.expect("an executor")
    }

    async fn attach(&mut self, actor: &str, access: ConsoleAccess) -> (Uuid, ConsoleReply) {
        let attachment = Uuid::new_v4();
        let incarnation = "00000000-0008-8801-8000-000000000007".parse().expect("an id");
        let actor = actor.parse().expect("a name");
        self.ask(ConsoleRequest::Attach { attachment, incarnation, payload: None, access, actor }).await;
        (attachment, self.reply().await)
    }

    async fn writer(&mut self) -> Uuid {
        let (attachment, reply) = self.attach("ann", ConsoleAccess::ReadWrite).await;
        assert_eq!(reply, ConsoleReply::Attached { attachment });
        attachment
    }

    fn output(&self, bytes: &[u8]) {
        let path = self.directory.path().join("app-0.out.1");
        let mut file = File::options().append(true).create(true).open(path).expect("a file");
        file.write_all(bytes).expect("written");
    }
}

#[tokio::test]
async fn bytes_pass_in_both_directions_as_they_are_and_earlier_output_does_not() {
    let mut server = FakeServer::new();
    server.output(b"earlier\nlogin: ");
    let attachment = server.writer().await;
    let typed = b"\x00\xff\x1b[A\x1d root\r".to_vec();
    server.ask(ConsoleRequest::Input { attachment, number: 1, data: ConsoleBytes(typed.clone()) }).await;
    assert_eq!(server.reply().await, ConsoleReply::Taken { attachment, number: 1, taken: typed.len() });
    let mut read = vec![0; typed.len()];
    server.guest.as_mut().expect("it runs").read_exact(&mut read).expect("input");
    assert_eq!(read, typed);
    server.output(b"\xff\x00root\r\n");
    let data = ConsoleBytes(b"\xff\x00root\r\n".to_vec());
    assert_eq!(server.reply().await, ConsoleReply::Output { attachment, data });
}

#[tokio::test]
async fn one_client_writes_and_its_place_is_free_when_it_detaches() {
    let mut server = FakeServer::new();
    let first = server.writer().await;
    let (_, refused) = server.attach("bob", ConsoleAccess::ReadWrite).await;
    assert!(
        matches!(&refused, ConsoleReply::Refused { reason: AttachRefusal::InUse, detail, .. }
            if detail.starts_with("cannot attach: ann writes to the console")),
        "{refused:?}"
    );
    for _ in 1..CLIENTS {
        let (attachment, reply) = server.attach("bob", ConsoleAccess::ReadOnly).await;
        assert_eq!(reply, ConsoleReply::Attached { attachment });
    }
    let (_, refused) = server.attach("bob", ConsoleAccess::ReadOnly).await;
    assert!(matches!(refused, ConsoleReply::Refused { reason: AttachRefusal::InUse, .. }), "{refused:?}");
    server.ask(ConsoleRequest::Detach { attachment: first }).await;
    loop {
        if let (_, ConsoleReply::Attached { .. }) = server.attach("bob", ConsoleAccess::ReadWrite).await {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
}

#[tokio::test]
async fn a_writer_of_another_process_is_respected() {
    let mut server = FakeServer::new();
    let other = File::options().write(true).open(server.directory.path().join("in")).expect("a pipe");
    flock(&other, FlockOperation::LockExclusive).expect("a lock");
    let (_, refused) = server.attach("ann", ConsoleAccess::ReadWrite).await;
    assert!(
        matches!(&refused, ConsoleReply::Refused { reason: AttachRefusal::InUse, detail, .. }
            if detail.contains("another process")),
        "{refused:?}"
    );
    drop(other);
    server.writer().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_gets_a_window_and_later_the_rest() {
    let mut server = FakeServer::new();
    server.output(b"");
    let attachment = server.writer().await;
    let all: Vec<u8> = (0..400_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    server.output(&all);
    let (mut received, mut cost) = (Vec::new(), 0);
    while let Ok(reply) = tokio::time::timeout(POLL * 20, server.replies.recv()).await {
        let Some(ConsoleReply::Output { data, .. }) = reply else { panic!("{reply:?}") };
        cost += data.cost();
        received.extend(data.0);
    }
    assert!((WINDOW - MAX_OUTPUT..=WINDOW).contains(&cost), "{cost}");
    while received.len() < all.len() {
        server.ask(ConsoleRequest::Read { attachment, cost }).await;
        let ConsoleReply::Output { data, .. } = server.reply().await else { panic!("no output") };
        cost = data.cost();
        received.extend(data.0);
    }
    assert!(received == all);
}

#[tokio::test]
async fn input_that_a_guest_does_not_read_is_counted_and_the_end_of_the_guest_is_reported() {
    let mut server = FakeServer::new();
    let attachment = server.writer().await;
    let mut number = 0;
    // The pipe of the guest fills up.
    let taken = loop {
        number += 1;
        let data = ConsoleBytes(vec![b'x'; MAX_INPUT]);
        server.ask(ConsoleRequest::Input { attachment, number, data }).await;
        let ConsoleReply::Taken { taken, .. } = server.reply().await else { panic!("no answer") };
        if taken < MAX_INPUT {
            break taken;
        }
        assert!(number < 1000, "an unbounded pipe");
    };
    assert_eq!(taken % PIECE, 0);
    server.output(b"last words");
    server.guest = None;
    let data = ConsoleBytes(b"last words".to_vec());
    assert_eq!(server.reply().await, ConsoleReply::Output { attachment, data });
    assert_eq!(server.reply().await, ConsoleReply::Ended { attachment, error: None });
    let (_, refused) = server.attach("ann", ConsoleAccess::ReadWrite).await;
    assert!(matches!(refused, ConsoleReply::Refused { reason: AttachRefusal::Missing, .. }), "{refused:?}");
}
