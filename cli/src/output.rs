//! Output formats with a parameter: `jsonpath=TEMPLATE`, as in kubectl.

use std::ffi::OsStr;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command};
use serde_json::Value;
use serde_json_path::JsonPath;

use super::context::OutputFormat;
use super::table::plain;

/// Start of the format with a template.
const WITH_TEMPLATE: &str = "jsonpath=";

/// Output format, with its template if it has one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputChoice {
    /// Output format.
    pub format: OutputFormat,
    /// Template of [`OutputFormat::Jsonpath`].
    pub template: Option<OutputTemplate>,
}

/// Reads [`OutputChoice`], and lists the formats for completion.
#[derive(Clone, Debug)]
pub(super) struct OutputChoiceParser;

impl TypedValueParser for OutputChoiceParser {
    type Value = OutputChoice;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<OutputChoice, clap::Error> {
        let invalid =
            |why: String| clap::Error::raw(ErrorKind::ValueValidation, why + "\n").with_cmd(command);
        let text = value.to_string_lossy();
        if let Some(template) = text.strip_prefix(WITH_TEMPLATE) {
            let template = OutputTemplate::read(template).map_err(invalid)?;
            return Ok(OutputChoice { format: OutputFormat::Jsonpath, template: Some(template) });
        }
        let format = EnumValueParser::<OutputFormat>::new().parse_ref(command, arg, value)?;
        if format == OutputFormat::Jsonpath {
            return Err(invalid(
                "invalid output format \"jsonpath\": must be as in jsonpath='{.name}'".into(),
            ));
        }
        Ok(OutputChoice { format, template: None })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        EnumValueParser::<OutputFormat>::new().possible_values().map(|values| {
            // The values of the enumeration do not live as long as this parser.
            let values: Vec<_> = values.collect();
            Box::new(values.into_iter()) as Box<dyn Iterator<Item = PossibleValue>>
        })
    }
}

/// Template of text and JSON paths: `{range .items[*]}{.name}{"\n"}{end}`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputTemplate(Vec<TemplatePart>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum TemplatePart {
    Text(String),
    Path(String),
    /// Path, and the parts for each of its values.
    Range(String, Vec<TemplatePart>),
}

impl OutputTemplate {
    /// Reads a template, or a path without braces.
    pub(super) fn read(text: &str) -> Result<OutputTemplate, String> {
        if text.starts_with(['.', '$']) {
            return Ok(OutputTemplate(vec![TemplatePart::Path(path(text)?)]));
        }
        // Parts of the template, and of each open range with its path.
        let mut open: Vec<(String, Vec<TemplatePart>)> = vec![(String::new(), Vec::new())];
        let mut rest = text;
        while let Some((before, inner)) = rest.split_once('{') {
            let end = closing(inner).ok_or_else(|| format!("invalid template {text:?}: a {{ has no }}"))?;
            let (inside, after) = (inner[..end].trim(), &inner[end + 1..]);
            rest = after;
            let parts = &mut open.last_mut().expect("the template is open").1;
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before.to_owned()));
            }
            if let Some(of) = inside.strip_prefix("range ") {
                open.push((path(of.trim())?, Vec::new()));
            } else if inside == "end" {
                let (of, parts) = open.pop().expect("the template is open");
                let outer =
                    open.last_mut().ok_or_else(|| format!("invalid template {text:?}: no range ends"))?;
                outer.1.push(TemplatePart::Range(of, parts));
            } else if inside.starts_with('"') {
                let text = serde_json::from_str(inside).map_err(|_| format!("invalid text {inside}"))?;
                parts.push(TemplatePart::Text(text));
            } else {
                parts.push(TemplatePart::Path(path(inside)?));
            }
        }
        match open.pop() {
            Some((_, mut parts)) if open.is_empty() => {
                if !rest.is_empty() {
                    parts.push(TemplatePart::Text(rest.to_owned()));
                }
                Ok(OutputTemplate(parts))
            }
            _ => Err(format!("invalid template {text:?}: a range has no {{end}}")),
        }
    }

    /// Returns the text for a value.
    pub(super) fn render(&self, value: &Value) -> String {
        let mut text = String::new();
        render(&self.0, value, &mut text);
        text
    }
}

fn render(parts: &[TemplatePart], value: &Value, text: &mut String) {
    for part in parts {
        match part {
            TemplatePart::Text(more) => text.push_str(more),
            TemplatePart::Path(path) => {
                let found: Vec<_> = found(path, value).into_iter().map(plain).collect();
                text.push_str(&found.join(" "));
            }
            TemplatePart::Range(path, parts) => {
                for value in found(path, value) {
                    render(parts, value, text);
                }
            }
        }
    }
}

/// Returns the values at a path.
pub(super) fn found<'v>(path: &str, value: &'v Value) -> Vec<&'v Value> {
    JsonPath::parse(path).expect("the path was read before").query(value).all()
}

/// Returns the position of the brace that ends a part; braces in quotes do not.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut is_escaped = false;
    for (at, char) in text.char_indices() {
        match (quote, char) {
            _ if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (None, '"' | '\'') => quote = Some(char),
            (Some(open), _) if open == char => quote = None,
            (None, '}') => return Some(at),
            _ => {}
        }
    }
    None
}

/// Reads a path as kubectl does: the root may be omitted, and braces surround it or not.
pub(super) fn path(text: &str) -> Result<String, String> {
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text).trim();
    let inner = inner.strip_prefix(['$', '@']).unwrap_or(inner);
    let path = match inner {
        "" | "." => "$".to_owned(),
        _ if inner.starts_with(['.', '[']) => format!("${inner}"),
        _ => format!("$.{inner}"),
    };
    match JsonPath::parse(&path) {
        Ok(_) => Ok(path),
        Err(_) => Err(format!("invalid JSON path {text:?}: must be as in .items[*].name")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_has_text_paths_and_ranges() {
        let value = json!({ "name": "web", "ready": true, "items": [
            { "name": "a", "node": "n}1", "ports": [1, 2] }, { "name": "b", "node": null, "ports": [] },
        ]});
        for (template, wanted) in [
            ("{.name}", "web"),
            (".name", "web"),
            ("{$.name}{@.ready}", "webtrue"),
            ("name: {.name}\n", "name: web\n"),
            ("{.items[*].name}", "a b"),
            ("{.items[0].ports}", "[1,2]"),
            ("{.absent}", ""),
            ("{range .items[*]}{.name}={.node}{\"\\n\"}{end}", "a=n}1\nb=null\n"),
            ("{range .items[*]}{.name}:{range .ports[*]}{@},{end};{end}", "a:1,2,;b:;"),
            ("{.items[?(@.name==\"b\")].name}", "b"),
            ("{.items[?(@.node=='n}1')].name}", "a"),
            ("{.items[-1:].name}", "b"),
            ("", ""),
        ] {
            let read = OutputTemplate::read(template).unwrap_or_else(|error| panic!("{template}: {error}"));
            assert_eq!(read.render(&value), wanted, "{template}");
        }
        for template in ["{.name", "{range .items[*]}{.name}", "{end}", "{.items[}", "{\"a}"] {
            assert!(OutputTemplate::read(template).is_err(), "{template}");
        }
    }
}
