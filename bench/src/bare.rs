//! Bare server for reads: axum with a handler that decodes rows from their stored form and serialises them.
//! It has no store, no filters, and no writes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use bincode::config::standard;
use chancery_projector::rows::NodeRow;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::server::FLEET;

/// Argument that makes this program a bare server of the answers on its standard input.
pub(crate) const BARE: &str = "--bare";

/// Running bare server.
pub(crate) struct BareServer {
    child: Child,
    pub(crate) address: String,
}

impl BareServer {
    /// Starts a server that returns these answers in rotation.
    pub(crate) fn start(answers: &[Vec<u8>]) -> Result<BareServer> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(BARE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let texts: Vec<_> = answers.iter().map(|answer| String::from_utf8_lossy(answer)).collect();
        serde_json::to_writer(child.stdin.take().context("its standard input")?, &texts)?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().context("its standard output")?).read_line(&mut address)?;
        Ok(BareServer { child, address: address.trim().to_owned() })
    }
}

impl Drop for BareServer {
    fn drop(&mut self) {
        // The process is not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answer in its stored form.
enum StoredAnswer {
    Row(Vec<u8>),
    Page { rows: Vec<Vec<u8>>, next: Option<String>, position: u64 },
    History { entries: Vec<String>, next: Option<u64>, position: u64 },
}

#[derive(Serialize, Deserialize)]
struct NodePage {
    items: Vec<NodeRow>,
    next_page_token: Option<String>,
    position: u64,
}

#[derive(Serialize, Deserialize)]
struct EventPage<T> {
    items: Vec<T>,
    next_from: Option<u64>,
    position: u64,
}

/// Event of a history; its data stays in its stored form.
#[derive(Serialize, Deserialize)]
struct StoredEvent {
    position: u64,
    time: String,
    kind: String,
    #[serde(rename = "type")]
    type_name: String,
    initiator: Box<RawValue>,
    cause: Option<u64>,
    root_cause: Option<Box<RawValue>>,
    data: Box<RawValue>,
}

impl StoredAnswer {
    fn read(text: &str) -> Result<StoredAnswer> {
        let encode = |row: &NodeRow| bincode::serde::encode_to_vec(row, standard());
        if let Ok(page) = serde_json::from_str::<NodePage>(text) {
            let rows = page.items.iter().map(encode).collect::<Result<_, _>>()?;
            return Ok(StoredAnswer::Page { rows, next: page.next_page_token, position: page.position });
        }
        if let Ok(history) = serde_json::from_str::<EventPage<Box<RawValue>>>(text) {
            let entries = history.items.iter().map(|entry| entry.get().to_owned()).collect();
            return Ok(StoredAnswer::History {
                entries,
                next: history.next_from,
                position: history.position,
            });
        }
        Ok(StoredAnswer::Row(encode(&serde_json::from_str(text)?)?))
    }

    fn show(&self) -> Result<Vec<u8>> {
        let decode = |bytes: &Vec<u8>| -> Result<NodeRow> {
            Ok(bincode::serde::decode_from_slice(bytes, standard())?.0)
        };
        Ok(match self {
            StoredAnswer::Row(row) => serde_json::to_vec(&decode(row)?)?,
            StoredAnswer::Page { rows, next, position } => {
                let items = rows.iter().map(decode).collect::<Result<_>>()?;
                serde_json::to_vec(&NodePage { items, next_page_token: next.clone(), position: *position })?
            }
            StoredAnswer::History { entries, next, position } => {
                let items: Vec<StoredEvent> =
                    entries.iter().map(|entry| serde_json::from_str(entry)).collect::<Result<_, _>>()?;
                serde_json::to_vec(&EventPage { items, next_from: *next, position: *position })?
            }
        })
    }
}

struct StoredAnswers {
    all: Vec<StoredAnswer>,
    next: AtomicUsize,
}

/// Serves until the process is killed.
#[tokio::main]
pub(crate) async fn serve() -> Result<()> {
    let texts: Vec<String> = serde_json::from_reader(std::io::stdin().lock())?;
    let all = texts.iter().map(|text| StoredAnswer::read(text)).collect::<Result<Vec<_>>>()?;
    anyhow::ensure!(!all.is_empty(), "there is nothing to answer");
    let answers = Arc::new(StoredAnswers { all, next: AtomicUsize::new(0) });
    let router = Router::new()
        .route(&format!("{FLEET}/nodes"), get(answer))
        .route(&format!("{FLEET}/nodes/{{name}}"), get(answer))
        .route(&format!("{FLEET}/nodes/{{name}}/history"), get(answer))
        .with_state(answers);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

async fn answer(State(answers): State<Arc<StoredAnswers>>) -> impl IntoResponse {
    let index = answers.next.fetch_add(1, Ordering::Relaxed) % answers.all.len();
    let body = answers.all[index].show();
    body.map(|body| ([(header::CONTENT_TYPE, "application/json")], body))
        .map_err(|error| (axum::http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_returned_unchanged() {
        let row = concat!(
            r#"{"name":"node-1","state":"allocated","cluster":"local","domain":"d-1","zone":null,"labels":{},"#,
            r#""resources":{"cpu":1,"memory":2,"disk":3},"reserved":{"cpu":0,"memory":0,"disk":0},"#,
            r#""remaining":{"cpu":1,"memory":2,"disk":3},"capabilities":[],"storage":[],"incarnations":0,"#,
            r#""disruptions":[],"bypass":null,"version":1,"#,
            r#""created_at":"2026-11-21T09:00:00.000000Z","updated_at":"2026-11-21T09:00:00.000000Z","position":7}"#
        );
        let page = format!(r#"{{"items":[{row},{row}],"next_page_token":"t","position":9}}"#);
        let entry = r#"{"position":5,"time":"t","kind":"fact","type":"x.v1","initiator":{"a":1},"cause":4,"root_cause":null,"data":{"b":2}}"#;
        let history = format!(r#"{{"items":[{entry}],"next_from":null,"position":9}}"#);
        for answer in [row.to_owned(), page, history] {
            let shown = StoredAnswer::read(&answer).expect("read").show().expect("show");
            let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).expect("JSON");
            assert_eq!(value(&shown), value(answer.as_bytes()));
        }
        assert!(matches!(StoredAnswer::read(row), Ok(StoredAnswer::Row(_))));
    }
}
