//! Texts of manifests: files, directories, standard input, and addresses.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::CliError;
use crate::manifest::LARGEST;

/// Maximum time to read an address.
const DOWNLOAD: Duration = Duration::from_secs(30);
/// Maximum number of redirects of an address.
const REDIRECTS: u32 = 5;
/// Reason why an address with TLS cannot be read.
const WITHOUT_TLS: &str = "https is not supported\nhint: download the file first";

/// Returns the name and the text of each file. A directory has its files, in the order of their names.
pub(super) fn texts(files: &[PathBuf]) -> Result<Vec<(String, String)>, CliError> {
    let mut texts = Vec::new();
    for file in files {
        if let Some(url) = address(file) {
            texts.push((url.to_owned(), download(url)?));
        } else if file.as_os_str() == "-" {
            let mut text = String::new();
            // One byte above the limit, so that a longer input is reported and not truncated.
            let most = LARGEST as u64 + 1;
            std::io::stdin().take(most).read_to_string(&mut text).map_err(|error| unreadable("-", &error))?;
            texts.push(("-".into(), text));
        } else if file.is_dir() {
            for path in manifests_in(file)? {
                texts.push(text_of(&path)?);
            }
        } else {
            texts.push(text_of(file)?);
        }
    }
    Ok(texts)
}

fn manifests_in(directory: &Path) -> Result<Vec<PathBuf>, CliError> {
    let bad = |error: std::io::Error| unreadable(&directory.display().to_string(), &error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(bad)? {
        let path = entry.map_err(bad)?.path();
        if path.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known)) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn text_of(path: &Path) -> Result<(String, String), CliError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(&name, &error))?;
    Ok((name, text))
}

fn unreadable(name: &str, error: &dyn std::fmt::Display) -> CliError {
    CliError::failure(format!("cannot read {name}: {error}"))
}

/// Returns the address that an argument names, if it is one.
fn address(file: &Path) -> Option<&str> {
    file.to_str().filter(|text| ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme)))
}

/// Reads an address. Redirects, time and size are bounded.
fn download(url: &str) -> Result<String, CliError> {
    if url.starts_with("https://") {
        return Err(unreadable(url, &WITHOUT_TLS));
    }
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(REDIRECTS)
        .timeout_connect(Some(Duration::from_secs(5)))
        .timeout_global(Some(DOWNLOAD))
        .build()
        .new_agent();
    let failed = |error: ureq::Error| match error {
        ureq::Error::TlsRequired => unreadable(url, &WITHOUT_TLS),
        ureq::Error::BodyExceedsLimit(_) => unreadable(url, &format!("it has more than {LARGEST} bytes")),
        other => unreadable(url, &other),
    };
    let response = agent.get(url).call().map_err(failed)?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(unreadable(url, &format!("HTTP status {status}")));
    }
    response.into_body().into_with_config().limit(LARGEST as u64).read_to_string().map_err(failed)
}
