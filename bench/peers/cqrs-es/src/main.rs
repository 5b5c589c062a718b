//! Callers of the crate cqrs-es on PostgreSQL: each command creates an aggregate and writes one event of 400 bytes.
//!
//! A new aggregate for each command is the best case of the crate: there are never events to load.

#[path = "../../load.rs"]
mod load;

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cqrs_es::event_sink::EventSink;
use cqrs_es::{Aggregate, DomainEvent};
use load::CallerTimes;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Event {
    Appended { text: String },
}

impl DomainEvent for Event {
    fn event_type(&self) -> String {
        "appended".into()
    }

    fn event_version(&self) -> String {
        "1".into()
    }
}

#[derive(Default, Serialize, Deserialize)]
struct EventCounter {
    appended: u64,
}

struct AppendCommand;

impl Aggregate for EventCounter {
    const TYPE: &'static str = "counter";
    type Command = AppendCommand;
    type Event = Event;
    type Error = Infallible;
    type Services = ();

    async fn handle(&mut self, _: AppendCommand, (): &(), sink: &EventSink<Self>) -> Result<(), Infallible> {
        // {"Appended":{"text":"…"}}
        sink.write(Event::Appended { text: "x".repeat(400 - 24) }, self).await;
        Ok(())
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Appended { .. } => self.appended += 1,
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("name the database")?;
    let mut round = 0;
    while let Some((callers, lasts)) = load::order()? {
        round += 1;
        let connections = u32::try_from(callers)?;
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .min_connections(connections)
            .test_before_acquire(false)
            .connect(&url)
            .await?;
        let store = Arc::new(postgres_es::postgres_cqrs::<EventCounter>(pool.clone(), vec![], ()));
        let caller = |caller: usize| {
            let store = Arc::clone(&store);
            async move {
                let mut calls = CallerTimes::begin(lasts);
                while let Some(number) = calls.next() {
                    store.execute(&format!("{round}-{caller}-{number}"), AppendCommand).await?;
                }
                Ok(calls)
            }
        };
        load::round((0..callers).map(caller).collect()).await?;
        pool.close().await;
    }
    Ok(())
}
