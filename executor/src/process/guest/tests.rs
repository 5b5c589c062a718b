//! Guests over a fake QEMU, for what the real one does not do when asked.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chancery_events::spec::{GuestNetwork, MachineModel, PortProtocol, VM_OVERHEAD, VirtualMachineSpec};
use serde_json::{Value, json};

use super::link::GuestLink;
use super::qmp::{QmpMessage, QmpReader};
use super::*;

fn record() -> GuestRecord {
    GuestRecord::begin("i/app".into(), None)
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

/// Returns the arguments of a guest with these files and disks.
fn arguments(
    images: Vec<PathBuf>,
    machine: &VirtualMachineSpec,
    memory: u64,
    disks: Vec<(String, PathBuf)>,
) -> Result<Vec<String>, String> {
    let settings = QemuSettings { program: "qemu".into(), images, ..QemuSettings::default() };
    let guest = GuestProcess {
        name: "i,x/app",
        uuid: uuid::Uuid::nil(),
        machine,
        memory,
        cmdline: machine.kernel.is_some().then(|| "a=1,b -daemonize".to_owned()),
        ports: vec![(PortProtocol::Tcp, 40_000, 80), (PortProtocol::Udp, 40_001, 53)],
        disks,
    };
    command_line(&settings, &guest)
}

/// Returns the values of an option.
fn values(argv: &[String], option: &str) -> Vec<String> {
    let all = argv.iter().zip(&argv[1..]).filter(|(name, _)| name.as_str() == option);
    all.map(|(_, value)| value.clone()).collect()
}

fn spec(kernel: Option<&str>, image: Option<&str>) -> VirtualMachineSpec {
    VirtualMachineSpec {
        kernel: kernel.map(str::to_owned),
        initrd: None,
        cmdline: None,
        image: image.map(str::to_owned),
        firmware: None,
        cpus: 2,
        machine: MachineModel::Pc,
        network: GuestNetwork::Forwarded,
    }
}

#[test]
fn text_of_a_plan_stays_one_value_of_an_option() {
    let images = tempfile::tempdir().expect("a directory");
    let directory = images.path().join("a,b");
    std::fs::create_dir(&directory).expect("a directory");
    for file in ["kernel", "disk.qcow2", "disk"] {
        std::fs::write(directory.join(file), "").expect("a file");
    }
    let argv = |machine: &VirtualMachineSpec| {
        let images = vec!["/nowhere".into(), directory.clone()];
        arguments(images, machine, VM_OVERHEAD + (16 << 20), Vec::new()).expect("arguments")
    };
    let with_kernel = argv(&spec(Some("kernel"), None));
    assert_eq!(values(&with_kernel, "-name"), ["guest=i,,x/app"]);
    assert_eq!(values(&with_kernel, "-append"), ["a=1,b -daemonize"]);
    assert_eq!(values(&with_kernel, "-m"), ["16M"]);
    let ports = "user,id=network,restrict=on,hostfwd=tcp:127.0.0.1:40000-:80,hostfwd=udp:127.0.0.1:40001-:53";
    assert_eq!(values(&with_kernel, "-netdev"), [ports]);
    let place = directory.canonicalize().expect("a path").display().to_string().replace(',', ",,");
    for (image, format) in [("disk.qcow2", "qcow2"), ("disk", "raw")] {
        let wanted = format!(
            "if=none,id=image,format={format},snapshot=on,werror=report,rerror=report,file={place}/{image}"
        );
        assert_eq!(values(&argv(&spec(None, Some(image))), "-drive"), [wanted]);
    }
}

#[test]
fn a_disk_is_two_arguments_whatever_its_path_contains() {
    let images = tempfile::tempdir().expect("a directory");
    std::fs::write(images.path().join("image"), "").expect("a file");
    let file = PathBuf::from("/a,b=\"c\"\n/disk");
    let argv = |disks: &[(&str, &Path)]| {
        let disks = disks.iter().map(|(mount, file)| ((*mount).to_owned(), (*file).to_owned())).collect();
        let machine = spec(None, Some("image"));
        arguments(vec![images.path().to_owned()], &machine, VM_OVERHEAD + (16 << 20), disks)
    };
    let with_disks = argv(&[("/data", &file), ("/a.B_c-4567890123456", &file)]).expect("arguments");
    let nodes = values(&with_disks, "-blockdev");
    assert_eq!(nodes.len(), 2);
    for (number, node) in nodes.iter().enumerate() {
        let cache = json!({"direct": false, "no-flush": false});
        let wanted = json!({
            "driver": "raw", "node-name": format!("volume{number}"), "read-only": false, "discard": "unmap",
            "cache": cache,
            "file": {
                "driver": "file", "filename": "/a,b=\"c\"\n/disk", "locking": "on", "discard": "unmap",
                "cache": cache,
            },
        });
        assert_eq!(serde_json::from_str::<Value>(node).expect("JSON"), wanted);
    }
    let policy = "write-cache=on,werror=report,rerror=report";
    let wanted = [
        "pvpanic".to_owned(),
        "virtio-blk-pci,drive=image,bootindex=0".to_owned(),
        "virtio-net-pci,netdev=network,romfile=".to_owned(),
        format!("virtio-blk-pci,drive=volume0,serial=data,{policy}"),
        format!("virtio-blk-pci,drive=volume1,serial=a.B_c-4567890123456,{policy}"),
    ];
    assert_eq!(values(&with_disks, "-device"), wanted);
    for mount in ["data", "/", "/a/b", "/a,id=b", "/a=b", "/a12345678901234567890", "/\u{e9}"] {
        let error = argv(&[(mount, &file)]).expect_err(mount);
        assert!(error.starts_with(&format!("invalid mount {mount:?}: ")), "{error}");
    }
    let bytes = std::ffi::OsStr::from_bytes(b"/\xff/disk");
    let error = argv(&[("/data", Path::new(bytes))]).expect_err("an error");
    assert!(error.starts_with("cannot use disk "), "{error}");
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_reason() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = root.path().join("images");
    let at = |name: &str| directory.join(name);
    std::fs::create_dir_all(at("linux")).expect("a directory");
    std::fs::write(at("kernel"), "").expect("a file");
    std::fs::write(root.path().join("outside"), "").expect("a file");
    symlink("../outside", at("link")).expect("a link");
    symlink("nowhere", at("broken")).expect("a link");
    symlink("kernel", at("good")).expect("a link");
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR).expect("a pipe");
    let argv = |kernel: &str, memory: u64| {
        let images = vec!["/nowhere".into(), directory.clone()];
        arguments(images, &spec(Some(kernel), None), memory, Vec::new())
    };
    let shown = directory.display();
    for (kernel, error) in [
        ("absent", format!("cannot find file \"absent\" in the image directories: /nowhere, {shown}")),
        ("kernel/x", format!("cannot find file \"kernel/x\" in the image directories: /nowhere, {shown}")),
        ("link", format!("cannot use file \"link\": {shown}/link leads out of the image directory")),
        ("../outside", format!("cannot use file \"../outside\": {shown}/../outside leads out of")),
        ("broken", format!("cannot use file \"broken\": {shown}/broken is a link to a missing file")),
        ("linux", format!("cannot use file \"linux\": {shown}/linux is a directory")),
        ("pipe", format!("cannot use file \"pipe\": {shown}/pipe is not a regular file")),
    ] {
        let found = argv(kernel, VM_OVERHEAD << 1).expect_err(kernel);
        assert!(found.starts_with(&error), "{found}");
    }
    assert!(argv("good", VM_OVERHEAD << 1).is_ok());
    assert!(argv("kernel", VM_OVERHEAD).expect_err("an error").starts_with("invalid memory"));
}

#[test]
fn an_awaited_line_counts_until_a_reset_and_is_never_missed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listener, mut link) = fake(directory.path());
    let (go, wait) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut session = FakeSession::accept(&listener);
        session.serve("i/app", "running", "query-status");
        let reset = json!({"event": "RESET", "data": {"guest": true, "reason": "guest-reset"}});
        while wait.recv().is_ok() {
            session.say(&reset);
        }
    });
    let mut guest = GuestRecord::begin("i/app".into(), Some("login:"));
    advance_until(&mut link, &mut guest, |guest| guest.status == GuestStatus::Running);
    assert!(guest.awaits_line(), "it was not written yet");
    guest.note_line(true);
    link.advance(&mut guest);
    assert!(!guest.awaits_line());
    go.send(()).expect("it waits");
    advance_until(&mut link, &mut guest, GuestRecord::awaits_line);
    assert_eq!(guest.resets, 1, "the line was from before the reset");
    // Read after the last check of the events: it may be from after the reset whose event is read next.
    go.send(()).expect("it waits");
    std::thread::sleep(Duration::from_millis(200));
    guest.note_line(true);
    link.note_line();
    link.advance(&mut guest);
    assert!(!guest.awaits_line());
    go.send(()).expect("it waits");
    advance_until(&mut link, &mut guest, GuestRecord::awaits_line);
    drop(go);
    server.join().expect("every step");
}
