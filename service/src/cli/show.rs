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
            let count = if output == OutputFormat::Wide { 5 } else { 3 };
            let heads = ["NAME", "VALUE", "FROM", "ENV", "MEANING"];
            let mut rows = TextTable::new(heads.into_iter().take(count));
            for (setting, value, origin) in settings.shown() {
                let cells = [setting.name, value, &origin.to_string(), setting.env, setting.doc];
                rows.add(cells.into_iter().take(count).map(str::to_owned));
            }
            Ok(out.write_all(rows.lines("").as_bytes())?)
        }
    }
}
