//! Guests over a fake QEMU, for what the real one does not do when asked.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use chancery_events::spec::{GuestNetwork, MachineModel, PortProtocol, VM_OVERHEAD, VirtualMachineSpec};
use serde_json::{Value, json};

use super::link::GuestLink;
use super::qmp::{QmpMessage, QmpReader};
use super::*;

fn record() -> GuestRecord {
    GuestRecord::begin("i/app".into())
}

#[test]
fn each_report_of_qemu_has_its_meaning() {
    let event = |name: &str, data: Value| QmpEvent { name: name.into(), data };
    // The link counts resets: see below.
    for (event, end, resets) in [
        (
            event("SHUTDOWN", json!({"guest": true, "reason": "guest-shutdown"})),
            Some(GuestEnd::PoweredOff),
            0,
        ),
        (event("SHUTDOWN", json!({"guest": true, "reason": "guest-panic"})), Some(GuestEnd::Panicked), 0),
        (event("SHUTDOWN", json!({"guest": false, "reason": "host-signal"})), None, 0),
        (event("SHUTDOWN", Value::Null), None, 0),
        (event("GUEST_PANICKED", json!({"action": "pause"})), Some(GuestEnd::Panicked), 0),
        (event("RESET", json!({"guest": true, "reason": "guest-reset"})), None, 0),
        (event("POWERDOWN", Value::Null), None, 0),
        (event("OF_A_LATER_VERSION", json!({"guest": true})), None, 0),
    ] {
        let mut guest = record();
        guest.note_event(&event);
        assert_eq!((guest.end, guest.resets), (end, resets), "{event:?}");
    }
    for (status, runs, now, end) in [
        ("prelaunch", false, GuestStatus::Starting, None),
        ("running", true, GuestStatus::Running, None),
        ("io-error", false, GuestStatus::Starting, None),
        ("of-a-later-version", true, GuestStatus::Running, None),
        ("shutdown", false, GuestStatus::Starting, Some(GuestEnd::PoweredOff)),
        ("guest-panicked", false, GuestStatus::Starting, Some(GuestEnd::Panicked)),
        ("internal-error", false, GuestStatus::Starting, Some(GuestEnd::InternalError)),
    ] {
        let mut guest = record();
        guest.note_status(status, runs);
        assert_eq!((guest.status, guest.end), (now, end), "{status}");
    }
    let mut guest = record();
    guest.note_event(&event("GUEST_PANICKED", Value::Null));
    guest.note_status("shutdown", false);
    assert_eq!(guest.end, Some(GuestEnd::Panicked), "the first end counts");
}

#[test]
fn messages_are_read_in_any_pieces_and_unknown_ones_are_kept() {
    let text = concat!(
        r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#,
        "\r\n",
        r#"{"event": "STOP", "timestamp": {"seconds": 1}}"#,
        "\r\n\n",
        r#"{"return": {"status": "running", "new": 1}, "id": 7}"#,
        "\r\n",
        r#"{"error": {"class": "GenericError", "desc": "no"}, "id": 8}"#,
        "\n",
        r#"{"return": {}}"#,
        "\n",
        "[1]\n",
    );
    let wanted = vec![
        QmpMessage::Greeting(json!({"version": {}, "capabilities": ["oob"]})),
        QmpMessage::Event(QmpEvent { name: "STOP".into(), data: Value::Null }),
        QmpMessage::Reply(7, Ok(json!({"status": "running", "new": 1}))),
        QmpMessage::Reply(8, Err("no".into())),
        QmpMessage::Unknown(json!({"return": {}})),
        QmpMessage::Unknown(json!([1])),
    ];
    for size in [1, 2, 7, text.len()] {
        let mut reader = QmpReader::default();
        let pieces = text.as_bytes().chunks(size);
        let read: Vec<_> = pieces.flat_map(|piece| reader.read(piece).expect("messages")).collect();
        assert_eq!(read, wanted, "{size}");
    }
    assert!(QmpReader::default().read(b"{\n").is_err());
    assert!(QmpReader::default().read(&vec![b' '; (1 << 20) + 1]).is_err());
}

/// Client of the fake QEMU.
struct FakeSession {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl FakeSession {
    fn accept(listener: &UnixListener) -> FakeSession {
        let (stream, _) = listener.accept().expect("a client");
        let lines = BufReader::new(stream.try_clone().expect("a copy"));
        FakeSession { stream, lines }
    }

    fn say(&mut self, message: &Value) {
        // The client may have hung up.
        let _ = self.stream.write_all(format!("{message}\r\n").as_bytes());
    }

    /// Replies to one command, which must be this one.
    fn serve_one(&mut self, command: &str) {
        let (heard, id) = self.hear().expect("a command");
        assert_eq!(heard, command);
        self.say(&json!({"return": {}, "id": id}));
    }

    /// Returns the next command, and its id.
    fn hear(&mut self) -> Option<(String, u64)> {
        let mut line = String::new();
        self.lines.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let command: Value = serde_json::from_str(&line).expect("a command");
        Some((command["execute"].as_str()?.to_owned(), command["id"].as_u64()?))
    }

    /// Greets, and answers commands, until `last` was answered.
    fn serve(&mut self, name: &str, status: &str, last: &str) {
        self.say(&json!({"QMP": {"version": {}}}));
        while let Some((command, id)) = self.hear() {
            let answer = match command.as_str() {
                "query-name" => json!({"name": name}),
                "query-status" => json!({"status": status, "running": status == "running"}),
                _ => json!({}),
            };
            // Events and replies of unknown commands come before the reply.
            self.say(&json!({"event": "OF_A_LATER_VERSION", "data": {"x": 1}}));
            self.say(&json!({"return": {}, "id": id + 1000}));
            self.say(&json!({"return": answer, "id": id}));
            if command == last {
                return;
            }
        }
    }
}

fn advance_until(link: &mut GuestLink, guest: &mut GuestRecord, mut done: impl FnMut(&GuestRecord) -> bool) {
    let began = Instant::now();
    while !done(guest) {
        assert!(began.elapsed() < Duration::from_mins(1), "{guest:?}");
        link.advance(guest);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn fake(directory: &Path) -> (UnixListener, GuestLink) {
    let listener = UnixListener::bind(directory.join("qmp.sock")).expect("a socket");
    (listener, GuestLink::new(0, directory, "i/app".into()))
}

#[test]
fn a_connection_that_ends_within_a_command_is_made_again_and_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listener, mut link) = fake(directory.path());
    let server = std::thread::spawn(move || {
        let mut first = FakeSession::accept(&listener);
        first.serve("i/app", "running", "query-status");
        // The next command gets no reply.
        first.hear();
        drop(first);
        let mut garbage = FakeSession::accept(&listener);
        garbage.stream.write_all(b"{]\n").expect("written");
        drop(garbage);
        FakeSession::accept(&listener).serve("i/app", "shutdown", "query-status");
        let mut last = FakeSession::accept(&listener);
        last.serve("i/app", "shutdown", "quit");
    });
    let mut guest = record();
    advance_until(&mut link, &mut guest, |guest| guest.status == GuestStatus::Running);
    link.power_down();
    advance_until(&mut link, &mut guest, |guest| guest.end == Some(GuestEnd::PoweredOff));
    link.quit();
    while !server.is_finished() {
        link.advance(&mut guest);
        std::thread::sleep(Duration::from_millis(2));
    }
    server.join().expect("every step");
    assert_eq!(guest.status, GuestStatus::Running);
}

#[test]
fn a_requested_reset_is_sent_until_it_is_seen_and_resets_in_quick_succession_count_as_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listener, mut link) = fake(directory.path());
    let (go, wait) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let reset = json!({"event": "RESET", "data": {"guest": true, "reason": "guest-reset"}});
        let mut first = FakeSession::accept(&listener);
        first.serve("i/app", "running", "query-status");
        // The request gets a reply, and the connection ends before the reset.
        first.serve_one("system_reset");
        drop(first);
        let mut second = FakeSession::accept(&listener);
        second.serve("i/app", "running", "system_reset");
        second.say(&reset);
        // As firmware does while it boots, and then without pause.
        let mut sent = 0;
        while wait.try_recv().is_err() {
            second.say(&reset);
            sent += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
        sent
    });
    let mut guest = record();
    advance_until(&mut link, &mut guest, |guest| guest.status == GuestStatus::Running);
    link.reset(7);
    advance_until(&mut link, &mut guest, |guest| guest.reset_revision == 7);
    assert_eq!(guest.resets, 1, "a requested reset is counted with its revision");
    advance_until(&mut link, &mut guest, |guest| guest.resets == 2);
    go.send(()).expect("it waits");
    let sent = server.join().expect("every step");
    assert!(sent > 50, "{sent} resets in quick succession count as one");
    assert_eq!(guest.reset_revision, 7);
}

#[test]
fn another_guest_behind_the_socket_is_neither_asked_nor_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listener, mut link) = fake(directory.path());
    link.quit();
    let server = std::thread::spawn(move || {
        let mut heard = Vec::new();
        for _ in 0..3 {
            let mut session = FakeSession::accept(&listener);
            session.serve("j/app", "shutdown", "query-name");
            heard.extend(session.hear());
        }
        heard
    });
    let mut guest = record();
    while !server.is_finished() {
        link.advance(&mut guest);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(server.join().expect("every step"), []);
    assert_eq!(guest, record());
}

#[test]
fn text_of_a_plan_stays_one_value_of_an_option() {
    let images = tempfile::tempdir().expect("a directory");
    let directory = images.path().join("a,b");
    std::fs::create_dir(&directory).expect("a directory");
    for file in ["kernel", "disk.qcow2", "disk"] {
        std::fs::write(directory.join(file), "").expect("a file");
    }
    std::fs::write(images.path().join("outside"), "").expect("a file");
    std::os::unix::fs::symlink("../outside", directory.join("link")).expect("a link");
    let settings =
        QemuSettings { program: "qemu".into(), images: vec!["/nowhere".into(), directory.clone()] };
    let spec = |kernel: Option<&str>, image: Option<&str>| VirtualMachineSpec {
        kernel: kernel.map(str::to_owned),
        initrd: None,
        cmdline: None,
        image: image.map(str::to_owned),
        firmware: None,
        cpus: 2,
        machine: MachineModel::Pc,
        network: GuestNetwork::Forwarded,
    };
    let argv = |machine: &VirtualMachineSpec, memory: u64| {
        let guest = GuestProcess {
            name: "i,x/app",
            uuid: uuid::Uuid::nil(),
            machine,
            memory,
            cmdline: machine.kernel.is_some().then(|| "a=1,b -daemonize".to_owned()),
            ports: vec![(PortProtocol::Tcp, 40_000, 80), (PortProtocol::Udp, 40_001, 53)],
        };
        command_line(&settings, &guest)
    };
    let value = |argv: &[String], option: &str| {
        let all = argv.iter().zip(&argv[1..]).filter(|(name, _)| name.as_str() == option);
        all.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let with_kernel = argv(&spec(Some("kernel"), None), VM_OVERHEAD + (16 << 20)).expect("arguments");
    assert_eq!(value(&with_kernel, "-name"), ["guest=i,,x/app"]);
    assert_eq!(value(&with_kernel, "-append"), ["a=1,b -daemonize"]);
    assert_eq!(value(&with_kernel, "-m"), ["16M"]);
    let ports = "user,id=network,restrict=on,hostfwd=tcp:127.0.0.1:40000-:80,hostfwd=udp:127.0.0.1:40001-:53";
    assert_eq!(value(&with_kernel, "-netdev"), [ports]);
    let place = directory.canonicalize().expect("a path").display().to_string().replace(',', ",,");
    for (image, format) in [("disk.qcow2", "qcow2"), ("disk", "raw")] {
        let argv = argv(&spec(None, Some(image)), VM_OVERHEAD + (16 << 20)).expect("arguments");
        let wanted = format!(
            "if=none,id=image,format={format},snapshot=on,werror=report,rerror=report,file={place}/{image}"
        );
        assert_eq!(value(&argv, "-drive"), [wanted]);
    }
    for (machine, memory, error) in [
        (
            spec(Some("absent"), None),
            VM_OVERHEAD << 1,
            "cannot find file \"absent\" in the image directories: /nowhere, ",
        ),
        (spec(Some("link"), None), VM_OVERHEAD << 1, "cannot find file \"link\""),
        (spec(Some("../outside"), None), VM_OVERHEAD << 1, "cannot find file \"../outside\""),
        (spec(Some("kernel"), None), VM_OVERHEAD, "invalid memory"),
    ] {
        let found = argv(&machine, memory).expect_err("an error");
        assert!(found.starts_with(error), "{found}");
    }
}
