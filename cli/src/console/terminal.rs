//! Terminal that passes on each key as it is typed. Its mode is restored when this is dropped, and on a signal that ends the
//! program.

#[cfg(unix)]
pub(super) use unix::RawTerminal;

#[cfg(not(unix))]
pub(super) use other::LineTerminal as RawTerminal;

#[cfg(unix)]
mod unix {
    use std::io::{self, IsTerminal as _, Read as _};
    use std::os::unix::net::UnixStream;

    use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    /// Standard input in raw mode, if it is a terminal.
    pub(in super::super) struct RawTerminal(Termios);

    impl RawTerminal {
        /// Starts raw mode. Returns `None` if the standard input is no terminal.
        pub(in super::super) fn begin() -> io::Result<Option<RawTerminal>> {
            if !io::stdin().is_terminal() {
                return Ok(None);
            }
            let before = tcgetattr(io::stdin())?;
            // Before the mode changes: no signal may leave it changed.
            for signal in [SIGTERM, SIGHUP, SIGINT] {
                restore_on(signal, before.clone())?;
            }
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
            Ok(Some(RawTerminal(before)))
        }
    }

    impl Drop for RawTerminal {
        fn drop(&mut self) {
            restore(&self.0);
        }
    }

    fn restore(before: &Termios) {
        // A terminal that was closed needs no mode.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, before);
    }

    /// Restores the mode when the signal arrives, and ends the program as the signal would.
    fn restore_on(signal: i32, before: Termios) -> io::Result<()> {
        let (mut arrived, sender) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal, sender)?;
        std::thread::Builder::new().name("signal".to_owned()).spawn(move || {
            if arrived.read_exact(&mut [0]).is_ok() {
                restore(&before);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        })?;
        Ok(())
    }
}

#[cfg(not(unix))]
mod other {
    use std::io;

    /// Terminal whose mode cannot be changed here: lines reach the guest when they are complete.
    pub(in super::super) struct LineTerminal(());

    impl LineTerminal {
        /// Changes nothing.
        pub(in super::super) fn begin() -> io::Result<Option<LineTerminal>> {
            Ok(None)
        }
    }
}
