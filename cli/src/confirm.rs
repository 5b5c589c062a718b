//! Confirmation of commands that end many entities, or that cannot be undone. A person is asked; a command without a terminal
//! is refused, unless it has `--yes`.

use std::io::{BufRead, Write};

use super::context::CliContext;
use super::error::CliError;

/// Asks for confirmation of a verb. `what` describes its effects, as in `deletes 3 entities`.
pub(super) fn ask(verb: &str, what: &str, context: &CliContext) -> Result<(), CliError> {
    if !context.person {
        return Err(CliError::usage(format!(
            "cannot {verb} without confirmation: {what}\nhint: confirm with --yes"
        )));
    }
    if agreed(what, &mut std::io::stdin().lock(), &mut std::io::stderr())? {
        return Ok(());
    }
    Err(CliError::failure(format!("cannot {verb}: not confirmed")))
}

/// Asks for confirmation; every answer other than yes is a no.
fn agreed(what: &str, input: &mut dyn BufRead, prompt: &mut dyn Write) -> Result<bool, CliError> {
    write!(prompt, "{what}; continue? [y/N] ")?;
    prompt.flush()?;
    let mut answer = String::new();
    let read = input.read_line(&mut answer);
    read.map_err(|error| CliError::failure(format!("cannot read answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for (answer, wanted) in
            [("y\n", true), ("yes\n", true), ("n\n", false), ("\n", false), ("", false), ("yep\n", false)]
        {
            let mut prompt = Vec::new();
            assert_eq!(
                agreed("deletes 2 entities", &mut answer.as_bytes(), &mut prompt),
                Ok(wanted),
                "{answer:?}"
            );
            assert_eq!(prompt, b"deletes 2 entities; continue? [y/N] ");
        }
    }
}
