//! `completion`: what makes a shell complete commands, kinds and flags.

use std::io::Write;

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::args::Cli;

/// Writes the script of a shell.
pub fn completion(shell: Shell, out: &mut dyn Write) -> std::io::Result<()> {
    // The generator ends the process if its writer fails: a reader that has seen enough is no reason to.
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "chancery", &mut script);
    out.write_all(&script)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_is_told_the_commands_and_the_kinds() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            completion(*shell, &mut script).expect("a script");
            let script = String::from_utf8(script).expect("text");
            for word in ["describe", "completion", "watch"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
            // The others complete the values of flags alone.
            assert!(script.contains("deployments") || !matches!(shell, Shell::Bash | Shell::Zsh), "{shell}");
        }
    }
}
