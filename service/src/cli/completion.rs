//! `completion`: shell scripts that complete commands, kinds and flags.

use std::io::Write;

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::local::CliArgs;

/// Writes the script of a shell.
pub fn completion(shell: Shell, out: &mut dyn Write) -> std::io::Result<()> {
    // The generator ends the process if its writer fails; a reader that stops early must not cause that.
    let mut script = Vec::new();
    generate(shell, &mut CliArgs::command(), "chancery", &mut script);
    out.write_all(&script)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_receives_the_commands_and_the_kinds() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            completion(*shell, &mut script).expect("a script");
            let script = String::from_utf8(script).expect("text");
            for word in ["describe", "completion", "watch", "--server", "--version"] {
                assert!(script.contains(word.trim_start_matches('-')), "{shell}: {word}");
            }
            for word in ["supervisor", "trampoline", "demo-payload"] {
                assert!(!script.contains(word), "{shell} offers the hidden {word}");
            }
            // The other shells complete only the values of flags.
            assert!(script.contains("deployments") || !matches!(shell, Shell::Bash | Shell::Zsh), "{shell}");
        }
    }
}
