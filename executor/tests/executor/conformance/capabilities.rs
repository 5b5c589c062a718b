//! Capabilities of an orchestrator under test. The suite leaves out what they exclude.

/// Access to the output of processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutputAccess {
    /// Standard output and standard error can be read, also after the end.
    Kept,
    /// Both are one output, which exists until the end. There is no `oh`.
    UntilEnd,
    /// Standard output is the console of a guest, which writes `READY` and then more lines until its end, instead of `one` and
    /// `two`. It can be read, also after the end.
    Console,
    /// Processes write nothing.
    None,
}

/// Whether the processes are guests of virtual machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GuestSupport {
    /// They are, and can power themselves off and be reset.
    Guests,
    /// They are not.
    None,
}

/// Evidence that the end of a process leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExitAccess {
    /// Its exit status.
    Status,
    /// Whether it failed: the guest of a virtual machine panics, and has no status.
    Failure,
}

/// Whether processes can be probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProbeSupport {
    /// They can, and stop answering.
    Probes,
    /// They cannot: they have no network.
    None,
}

/// State of the API between the orchestrator and its world, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ApiAccess {
    /// No responses until the API is connected.
    CutOff,
    /// Requests are answered.
    Connected,
}
