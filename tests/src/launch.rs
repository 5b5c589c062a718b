//! How the program is started and killed, for tests that start it in another way from one life to the next.

use std::path::PathBuf;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::host::HostProcess;
use crate::program;

/// What one start has that another has not.
#[derive(Clone, Default, Debug)]
pub struct Launch {
    /// A command that executes the program, with its arguments: `unshare -p -f`.
    pub wrapper: Vec<String>,
    /// Variables of its environment.
    pub env: Vec<(String, String)>,
    /// File for its standard error output, if not its usual one.
    pub stderr: Option<PathBuf>,
}

impl Launch {
    /// In a PID namespace of its own, with a `/proc` of its own.
    pub fn in_pid_namespace() -> Launch {
        let wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
        Launch { wrapper: wrapper.map(str::to_owned).to_vec(), ..Launch::default() }
    }

    /// The program, without its arguments.
    pub(crate) fn command(&self) -> Command {
        let mut words = self.wrapper.iter().map(Into::into).chain([program().into_os_string()]);
        let mut command = Command::new(words.next().expect("the program at least"));
        command.args(words).envs(self.env.iter().cloned());
        command
    }

    /// Kills what was started, also behind the wrapper: whoever comes next must find it dead.
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
