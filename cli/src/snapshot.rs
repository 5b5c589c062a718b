//! `snapshot`: creates a volume with the content of another one, and waits for it.

use chancery_events::intent::{Intent, VolumeSnapshot};

use super::act::{self, read, read_in};
use super::client::CommandIo;
use super::context::OutputFormat;
use super::error::{CliError, CliExit};
use super::flags::SnapshotArgs;
use super::get::find;
use super::kind::{EntityKind, KindNaming as _};
use super::wait::wait_for;

pub(super) fn run(args: &SnapshotArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let name = args.which.name()?;
    if args.which.what.kind != EntityKind::Volume {
        let what = format!("{}/{name}", args.which.what.kind.word());
        return Err(CliError::usage(format!("cannot snapshot {what}: only volumes have snapshots")));
    }
    let new = EntityKind::Volume.name_in(&args.new)?;
    let intent: Intent = VolumeSnapshot {
        name: read_in(EntityKind::Volume, &name)?,
        snapshot: read(EntityKind::Volume, new)?,
    }
    .into();
    act::ask_as(io, "snapshot", &format!("volume/{name} as volume/{new}"), &intent, "requested")?;
    if args.wait { wait(new, args, io) } else { Ok(()) }
}

fn wait(new: &str, args: &SnapshotArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let doing = format!("cannot create volume/{new}");
    let mut message = String::new();
    let done = wait_for(io.client, format!("volume/{new}"), args.timeout, &mut || {
        let Some(row) = find(io.client, &doing, EntityKind::Volume, new)? else {
            // A volume that cannot be created is deleted.
            let reason = if message.is_empty() { "it was deleted" } else { &message };
            let advice = format!("try: chancery events --subject volume/{new}");
            return Err(CliError::failure(format!("{doing}: {reason}\n{advice}")));
        };
        if let Some(text) = row["message"].as_str().filter(|text| !text.is_empty()) {
            text.clone_into(&mut message);
        }
        match row["state"].as_str() {
            Some("ready") => Ok(Some(())),
            Some("lost") => Err(CliError::failure(format!("{doing}: it is lost: {message}"))),
            _ => Ok(None),
        }
    })?;
    if done.is_none() {
        let what = format!("{doing}: after {:?} it is not ready", args.timeout);
        return Err(CliError::new(CliExit::Unknown, what));
    }
    if io.client.context.output(act::FORMS)? == OutputFormat::Table {
        writeln!(io.out, "volume/{new} ready")?;
    }
    Ok(())
}
