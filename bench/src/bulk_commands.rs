//! W16: ten thousand documents by the command line: applied, applied again, listed, deleted; a thousand in a
//! dry run; and ten thousand operations approved. Each is one command, timed from start to end, as an operator experiences it.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::server::BenchmarkServer;
use crate::table::{CellResult, ResultRow, ValueBar};

/// Number of documents and of operations.
const MANY: usize = 10_000;
/// Bar: maximum time of a command, in seconds.
const SECONDS: f64 = 3.0;
/// Number of documents of the dry run, which is the maximum.
const DRY: usize = 1000;
/// Bar: maximum time of the dry run, in seconds.
const DRY_SECONDS: f64 = 2.0;
/// Nodes that the replicas share.
const NODES: usize = 100;
/// Time until all operations wait for approval.
const PREPARED: Duration = Duration::from_mins(2);

fn node(number: usize, cpu: usize) -> String {
    format!(
        "---\napiVersion: chancery/v1\nkind: Node\nmetadata:\n  name: node-{number}\n  labels: {{tier: web}}\nspec:\n  cluster: local\n  \
         domain: d-{}\n  resources: {{cpu: {cpu}, memory: 64GiB, disk: 500GB}}\n",
        number % 8
    )
}

fn fleet(nodes: usize, cpu: usize) -> String {
    let mut text =
        "apiVersion: chancery/v1\nkind: Cluster\nmetadata: {name: local}\nspec: {runtime: simulated}\n"
            .to_owned();
    for number in 0..nodes {
        text.push_str(&node(number, cpu));
    }
    text
}

/// Returns a plan whose operations wait for manual approval, and its deployment.
fn plan() -> String {
    let mut text = String::new();
    let _ = write!(
        text,
        "apiVersion: chancery/v1\nkind: Plan\nmetadata: {{name: web}}\nspec:\n  namespace: bench\n  service: web\n  cluster: local\n  \
         sharing: allowed\n  payloads:\n  - name: app\n    resources: {{cpu: 10m, memory: 1MiB}}\n    run: {{argv: [app]}}\n\
         ---\napiVersion: chancery/v1\nkind: Deployment\nmetadata: {{name: d-1}}\nspec: {{plan: web, count: {MANY}}}\n"
    );
    text
}

/// Directory with the documents, and their server.
struct BulkDocuments {
    server: BenchmarkServer,
    directory: tempfile::TempDir,
}

impl BulkDocuments {
    fn start(text: &str) -> Result<BulkDocuments> {
        let bulk = BulkDocuments { server: BenchmarkServer::start()?, directory: crate::directory()? };
        bulk.write(text)?;
        Ok(bulk)
    }

    fn write(&self, text: &str) -> Result<()> {
        Ok(std::fs::write(self.directory.path().join("all.yaml"), text)?)
    }

    /// Runs a command whose `-f` is the file. Returns its duration, and the number of lines that it writes.
    fn run(&self, args: &[&str]) -> Result<(Duration, usize)> {
        let program =
            std::env::var_os("CHANCERY_BIN").context("CHANCERY_BIN names the program: use bench/run")?;
        let began = Instant::now();
        let output = Command::new(program)
            .args(["--server", &format!("http://{}", self.server.address)])
            .args(args)
            .current_dir(self.directory.path())
            .stderr(Stdio::piped())
            .output()?;
        let took = began.elapsed();
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok((took, output.stdout.split(|byte| *byte == b'\n').count() - 1))
    }

    /// Returns the row of a command that writes `lines` lines.
    fn row(&self, what: &str, lines: usize, args: &[&str]) -> Result<ResultRow> {
        self.row_within(what, lines, args, SECONDS)
    }

    fn row_within(&self, what: &str, lines: usize, args: &[&str], seconds: f64) -> Result<ResultRow> {
        let (took, found) = self.run(args)?;
        ensure!(found == lines, "{what}: {found} lines, not {lines}");
        let cell = CellResult::rate(lines as f64 / took.as_secs_f64());
        Ok(ResultRow::new("W16", what, cell).check("seconds", took.as_secs_f64(), ValueBar::Below(seconds)))
    }
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let bulk = BulkDocuments::start(&fleet(MANY, 8))?;
    let mut rows = vec![bulk.row("applied", MANY + 1, &["apply", "-f", "all.yaml"])?];
    rows.push(bulk.row("applied again", MANY + 1, &["apply", "-f", "all.yaml"])?);
    bulk.write(&fleet(DRY - 1, 16))?;
    // A head, the cluster, and of each node its resources and what remains of them.
    let dry_run = ["apply", "--dry-run", "-f", "all.yaml"];
    rows.push(bulk.row_within("dry run of a thousand", 2 * DRY, &dry_run, DRY_SECONDS)?);
    bulk.write(&fleet(MANY, 16))?;
    rows.push(bulk.row("changed", MANY + 1, &["apply", "-f", "all.yaml"])?);
    rows.push(bulk.row("listed", MANY, &["get", "nodes", "--all", "-o", "name"])?);
    rows.push(bulk.row("a table", MANY + 1, &["get", "nodes", "--all"])?);
    rows.push(bulk.row("deleted", MANY + 1, &["delete", "-f", "all.yaml", "--yes"])?);
    drop(bulk);
    let bulk = BulkDocuments::start(&(fleet(NODES, 64) + "---\n" + &plan()))?;
    bulk.run(&["apply", "-f", "all.yaml"])?;
    let began = Instant::now();
    let waiting = ["get", "operations", "--filter", "state=pending_approval", "--all", "-o", "name"];
    while bulk.run(&waiting)?.1 < MANY {
        ensure!(began.elapsed() < PREPARED, "the operations are not prepared");
        std::thread::sleep(Duration::from_millis(200));
    }
    rows.push(bulk.row("approved", MANY, &["approve", "--plan", "web", "--all"])?);
    Ok(rows)
}
