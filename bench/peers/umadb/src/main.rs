//! Callers of UmaDB: each appends events of 400 bytes to a stream of its own, a tag, on the condition that
//! nothing was appended since. Each round has a new server on an empty directory.

#[path = "../../load.rs"]
mod load;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use load::CallerTimes;
use umadb_client::{AsyncUmaDbClient, UmaDbClient};
use umadb_dcb::{DcbAppendCondition, DcbEvent, DcbEventStoreAsync as _, DcbQuery, DcbQueryItem};

/// Running server, which is killed on drop.
struct UmadbServer {
    child: Child,
    url: String,
    data: PathBuf,
}

impl UmadbServer {
    fn start(program: &Path, data: PathBuf) -> Result<UmadbServer> {
        std::fs::create_dir_all(&data)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new(program)
            .arg("--listen")
            .arg(format!("127.0.0.1:{port}"))
            .arg("--db-path")
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start UmaDB")?;
        Ok(UmadbServer { child, url: format!("http://127.0.0.1:{port}"), data })
    }

    async fn client(&self) -> Result<AsyncUmaDbClient> {
        let began = Instant::now();
        loop {
            match UmaDbClient::new(self.url.clone()).connect_async().await {
                Ok(client) => return Ok(client),
                Err(error) if began.elapsed() > Duration::from_secs(30) => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

impl Drop for UmadbServer {
    fn drop(&mut self) {
        // The process is not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let program = args.next().context("name UmaDB's program")?;
    let directory = args.next().context("name a directory for its data")?;
    let mut round = 0;
    while let Some((callers, lasts)) = load::order()? {
        round += 1;
        let server =
            UmadbServer::start(&program, directory.join(format!("umadb-{}-{round}", std::process::id())))?;
        let mut all = Vec::new();
        for caller in 0..callers {
            let client = server.client().await?;
            let tag = format!("stream-{caller}");
            let mut last = None;
            all.push(async move {
                let mut calls = CallerTimes::begin(lasts);
                while calls.next().is_some() {
                    let stream = DcbQuery::new().item(DcbQueryItem::new().tags([tag.as_str()]));
                    let event =
                        DcbEvent::default().event_type("appended").tags([tag.as_str()]).data(vec![b'x'; 400]);
                    let condition = DcbAppendCondition::new(stream).after(last);
                    last = Some(client.append(vec![event], Some(condition), None).await?);
                }
                Ok(calls)
            });
        }
        load::round(all).await?;
    }
    Ok(())
}
