//! `config show`: every setting, its value, and the origin of the value.

use std::io::Write;

use chancery_cli::{CliError, Context, Output, Rows, json_text};
use serde_json::json;

use crate::config::{Config, Origin, Setting};

/// Writes every setting.
pub fn config(settings: &Config, context: &Context, out: &mut dyn Write) -> Result<(), CliError> {
    match context.output(&[Output::Table, Output::Wide, Output::Json])? {
        Output::Json => {
            let one = |(setting, value, origin): (&Setting, &str, &Origin)| {
                json!({
                    "name": setting.name, "value": value, "from": origin.to_string(), "default": setting.default,
                    "env": setting.env, "doc": setting.doc,
                })
            };
            json_text(&settings.shown().map(one).collect(), out)
        }
        output => {
            let wide = output == Output::Wide;
            let mut rows = Rows::new(
                ["NAME", "VALUE", "FROM"]
                    .into_iter()
                    .chain(wide.then_some(["ENV", "MEANING"]).into_iter().flatten()),
            );
            for (setting, value, origin) in settings.shown() {
                let cells = [setting.name.to_owned(), value.to_owned(), origin.to_string()];
                let more = wide.then(|| [setting.env.to_owned(), setting.doc.to_owned()]);
                rows.add(cells.into_iter().chain(more.into_iter().flatten()));
            }
            Ok(out.write_all(rows.lines("").as_bytes())?)
        }
    }
}
