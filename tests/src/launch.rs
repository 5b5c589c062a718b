//! Starts and kills of the program, for tests in which one start differs from the next.

use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::host::HostProcess;
use crate::program;

/// Special conditions of one start.
#[derive(Clone, Default, Debug)]
pub struct StartConditions {
    /// Command that executes the program, with its arguments: `unshare -p -f`.
    pub wrapper: Vec<String>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// File for standard error, if not the default.
    pub stderr: Option<PathBuf>,
}

impl StartConditions {
    /// Returns a launch in a separate PID namespace, with its own `/proc`.
    pub fn in_pid_namespace() -> StartConditions {
        let wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
        StartConditions { wrapper: wrapper.map(str::to_owned).to_vec(), ..StartConditions::default() }
    }

    /// Returns the program's command, without its arguments.
    pub(crate) fn command(&self) -> Command {
        let mut words = self.wrapper.iter().map(Into::into).chain([program().into_os_string()]);
        let mut command = Command::new(words.next().expect("the program at least"));
        command.args(words).envs(self.env.iter().cloned());
        command
    }

    /// Kills the started program, also behind the wrapper: it is dead when this returns.
    pub(crate) fn kill(&self, child: &mut Child) {
        let wrapped = if self.wrapper.is_empty() { Vec::new() } else { HostProcess::all().expect("/proc") };
        let wrapped = wrapped.into_iter().find(|process| process.parent == child.id());
        match wrapped.and_then(|process| Pid::from_raw(i32::try_from(process.pid).ok()?)) {
            Some(pid) => kill_process(pid, Signal::KILL).expect("it can be killed"),
            None => child.kill().expect("it can be killed"),
        }
        child.wait().expect("it is ours");
    }
}
