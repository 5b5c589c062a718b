//! W2: durable intents over HTTP with keep-alive: accepted, decided, and answered after they are durable; the
//! projector runs along. The floor is the raw program without HTTP, decision or read model.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::floor::Floor;
use crate::load::round;
use crate::table::{Row, median};
use crate::{CALLERS, ROUNDS};

struct Server {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Result<Server> {
        let folder = crate::folder()?;
        let program =
            std::env::var_os("CHANCERY_BIN").context("CHANCERY_BIN names the program: use bench/run")?;
        let child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let (path, began) = (folder.path().join("address"), Instant::now());
        let address = loop {
            match std::fs::read_to_string(&path) {
                Ok(text) if text.ends_with('\n') => break text.trim().to_owned(),
                _ => ensure!(began.elapsed() < Duration::from_secs(30), "the server does not listen"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Ok(Server { child, address, _folder: folder })
    }

    /// A caller with a connection of its own. Every intent changes a capability of its own.
    fn caller(&self, number: usize) -> Result<impl FnMut() -> Result<()> + Send + use<>> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        let mut answers = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        let mut score = 0_u32;
        Ok(move || {
            score += 1;
            let body = format!(r#"{{"spec":{{"type":"bench","score":{score}}}}}"#);
            let head = format!(
                "PUT /v1/fleets/default/capabilities/c-{number} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes())?;
            read_answer(&mut answers)
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing of it is needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_answer(answers: &mut impl std::io::BufRead) -> Result<()> {
    let (mut line, mut length) = (String::new(), 0);
    answers.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 2") {
        bail!("the server answers {line}");
    }
    loop {
        line.clear();
        answers.read_line(&mut line)?;
        let header = line.trim_end();
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    std::io::copy(&mut answers.take(length), &mut std::io::sink())?;
    Ok(())
}

pub(crate) fn run() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for callers in CALLERS {
        let (mut ours, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let floor = Floor::open()?;
            floors.push(round(callers, |_| Ok(floor.caller(vec![b'x'; 400])))?);
            floor.close()?;
            let server = Server::start()?;
            ours.push(round(callers, |number| server.caller(number))?);
        }
        rows.push(Row { workload: "W2", callers, ours: median(ours), floor: median(floors) });
    }
    Ok(rows)
}
