//! `config show`: every setting, its value, and the origin of the value.

use std::io::Write;

use chancery_cli::{CliContext, CliError, OutputFormat, TextTable, json_text};
use serde_json::json;

use crate::config::{ServiceConfig, SettingEntry, SettingOrigin};

/// Writes every setting.
pub fn config(settings: &ServiceConfig, context: &CliContext, out: &mut dyn Write) -> Result<(), CliError> {
    match context.output(&[OutputFormat::Table, OutputFormat::Wide, OutputFormat::Json])? {
        OutputFormat::Json => {
            let one = |(setting, value, origin): (&SettingEntry, &str, &SettingOrigin)| {
                json!({
                    "name": setting.name, "value": value, "from": origin.to_string(), "default": setting.default,
                    "env": setting.env, "doc": setting.doc,
                })
            };
            json_text(&settings.shown().map(one).collect(), out)
        }
        output => {
            let wide = output == OutputFormat::Wide;
            let mut rows = TextTable::new(
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
