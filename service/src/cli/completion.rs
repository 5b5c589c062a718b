//! `completion`: shell scripts that complete commands, kinds and flags.

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::local::CliArgs;

/// Returns the script of a shell. The generator would end the process if it wrote to an output whose reader stops early.
pub fn completion(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut CliArgs::command(), "chancery", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_receives_the_commands_and_the_kinds() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completion(*shell)).expect("text");
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
