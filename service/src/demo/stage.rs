//! Foundation of the demonstration: the program as a server, its commands, and waiting for their results.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{DemoRun, LOG, NOTHING, print_indented, say};

/// Gives a program its input, and waits for its output.
fn feed(mut child: Child, input: &str) -> Result<Output> {
    child.stdin.take().context("cannot open input of the program")?.write_all(input.as_bytes())?;
    Ok(child.wait_with_output()?)
}

impl DemoRun {
    /// Returns the path of the server's output.
    pub(super) fn log(&self) -> PathBuf {
        self.data.join(LOG)
    }

    /// Starts the program as a server, and waits until it accepts requests.
    pub(super) fn start(&mut self) -> Result<()> {
        let address = self.data.join("address");
        let _ = std::fs::remove_file(&address);
        self.url.clear();
        let log = std::fs::File::options().create(true).append(true).open(self.log())?;
        let server = self
            .program()
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&self.data)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start server")?;
        self.server = Some(server);
        self.find()
    }

    /// Waits until the started server accepts requests.
    pub(super) fn find(&mut self) -> Result<()> {
        let address = self.data.join("address");
        let found = self.until("address of the server", |demo| {
            if let Some(status) = demo.server.as_mut().and_then(|server| server.try_wait().ok().flatten()) {
                let log = std::fs::read_to_string(demo.log()).unwrap_or_default();
                bail!("cannot reach server: it ended with {status}:\n{log}");
            }
            Ok(std::fs::read_to_string(&address).ok().filter(|text| text.ends_with('\n')))
        })?;
        self.url = format!("http://{}", found.trim());
        self.until("ready server", |demo| Ok(demo.get("/readyz").is_ok().then_some(())))
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            server.kill().context("cannot kill server")?;
            server.wait().context("cannot wait for end of server")?;
        }
        Ok(())
    }

    /// Returns a command of the program without this process's settings, in a process group of its own: the
    /// demonstration itself handles a terminal's Ctrl-C.
    pub(super) fn program(&self) -> Command {
        let mut command = Command::new(&self.program);
        let settings = std::env::vars_os().map(|(name, _)| name);
        for name in settings.filter(|name| name.to_string_lossy().starts_with("CHANCERY_")) {
            command.env_remove(name);
        }
        command.args(["--config", "/dev/null"]).stdin(Stdio::null()).process_group(0);
        command
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program();
        command.args(["--server", &self.url]).args(args);
        command
    }

    /// Runs one of the program's commands and prints it with its output.
    pub(super) fn show(&self, args: &[&str]) -> Result<()> {
        self.check_interrupted()?;
        say!("  $ chancery {}", args.join(" "));
        let output = self.command(args).output().context("cannot run program")?;
        print_indented(&output.stdout);
        if !output.status.success() {
            bail!(
                "cannot run chancery {}: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }

    pub(super) fn apply(&self, manifests: &str) -> Result<()> {
        self.check_interrupted()?;
        let output = feed(self.applying().spawn().context("cannot run program")?, manifests)?;
        print_indented(&output.stdout);
        ensure!(
            output.status.success(),
            "cannot apply manifests: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// Returns the command that applies manifests from its input.
    fn applying(&self) -> Command {
        let mut command = self.command(&["apply", "-f", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(super) fn get(&self, path: &str) -> Result<String> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(5))).build().into();
        Ok(agent.get(format!("{}{path}", self.url)).call()?.body_mut().read_to_string()?)
    }

    pub(super) fn items(&self, query: &str) -> Result<Vec<Value>> {
        let body: Value = serde_json::from_str(&self.get(&format!("/v1/fleets/default/{query}"))?)?;
        Ok(body["items"].as_array().cloned().unwrap_or_default())
    }

    pub(super) fn wait_for(&mut self, query: &str, count: usize) -> Result<Vec<Value>> {
        self.until(&format!("{count} of {query}"), |demo| {
            Ok(demo.items(query).ok().filter(|items| items.len() == count))
        })
    }

    pub(super) fn running(&mut self, count: usize) -> Result<Vec<Value>> {
        self.until(&format!("{count} running replicas"), |demo| {
            let items = demo.items("replicas?plan=web&phase=running").unwrap_or_default();
            let ready = items.len() == count && items.iter().all(|replica| replica["ready"] == true);
            Ok(ready.then_some(items))
        })
    }

    /// Requests the identity of the replica's process.
    pub(super) fn visit(&self, replica: &Value) -> Result<()> {
        self.check_interrupted()?;
        let address = replica["processes"][0]["addresses"][0]["address"]
            .as_str()
            .context("cannot find address of the replica")?;
        say!("  $ curl http://{address}/");
        let mut answer = String::new();
        ureq::get(format!("http://{address}/")).call()?.body_mut().as_reader().read_to_string(&mut answer)?;
        print_indented(answer.as_bytes());
        Ok(())
    }

    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut ready: impl FnMut(&mut DemoRun) -> Result<Option<T>>,
    ) -> Result<T> {
        let began = Instant::now();
        loop {
            self.check_interrupted()?;
            if let Some(found) = ready(self)? {
                return Ok(found);
            }
            ensure!(
                began.elapsed() < Duration::from_mins(1),
                "cannot continue demonstration: no {what} after a minute"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn check_interrupted(&self) -> Result<()> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "cannot continue demonstration: interrupted");
        Ok(())
    }

    pub(super) fn keep(mut self, temporary: bool) {
        let pid = self.server.take().map_or(0, |server| server.id());
        let data = self.data.display();
        say!("\nLeft running: server {pid}, data in {data}. To explore it:");
        say!("  export CHANCERY_SERVER={}", self.url);
        say!("  chancery describe plan web");
        say!("  chancery events --follow");
        say!("To stop it, payloads first:");
        say!("  printf '{}' | chancery apply -f -", NOTHING.replace('\n', "\\n"));
        say!("  chancery wait plan/web --for operations.delete.pending_approval=1");
        say!("  chancery approve --plan web --all");
        say!("  chancery wait plan/web --for replicas.total=0");
        say!("  kill {pid}{}", if temporary { format!("; rm -r {data}") } else { String::new() });
    }

    /// Ends everything that was started: the payloads through the API, then the server.
    pub(super) fn end(&mut self) -> Result<()> {
        self.interrupted.store(false, Ordering::Relaxed);
        if self.server.as_mut().is_some_and(|server| matches!(server.try_wait(), Ok(None))) {
            self.find()?;
        } else {
            self.server = None;
            self.start()?;
        }
        if !self.items("plans")?.is_empty() {
            let output = feed(self.applying().spawn()?, NOTHING)?;
            ensure!(
                output.status.success(),
                "cannot delete replicas: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            self.until("deletion of all replicas", |demo| {
                if !demo.items("operations?state=pending_approval")?.is_empty() {
                    let output = demo.command(&["approve", "--plan", "web", "--all"]).output()?;
                    tracing::debug!(status = %output.status, "deletions approved");
                }
                Ok(demo.items("replicas")?.is_empty().then_some(()))
            })?;
        }
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let pid = i32::try_from(server.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .context("cannot stop server: invalid process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("cannot stop server")?;
        server.wait().context("cannot wait for end of server")?;
        Ok(())
    }
}
