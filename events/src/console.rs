//! Messages about consoles of guests: between a server and an executor, and from a server to an attached client.
//!
//! Each message is one line of JSON. Bytes are base64, so that whatever a guest writes arrives as it is.
//!
//! ```text
//! client          server                           executor
//!   attach   ─►     ConsoleRequest::Attach      ─►
//!   ◄─ ConsoleLine  ◄─ ConsoleReply::Attached
//!   ◄─ output       ◄─ ConsoleReply::Output             at most WINDOW bytes that were not read
//!                   ConsoleRequest::Read        ─►
//!   input    ─►     ConsoleRequest::Input       ─►
//!   ◄─ taken        ◄─ ConsoleReply::Taken              one input at a time
//! ```

use std::fmt;

use data_encoding::BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::id::IncarnationId;
use crate::name::{Actor, PayloadName};
use crate::spec::ConsoleAccess;

/// Maximum number of bytes of one input.
pub const MAX_INPUT: usize = 4096;
/// Maximum number of bytes of one output.
pub const MAX_OUTPUT: usize = 16 << 10;
/// Maximum cost of output that was sent and not read, of one attachment. An executor sends no more.
pub const WINDOW: usize = 64 << 10;
/// Cost of an output in addition to its bytes, so that the window also bounds the number of messages.
pub const OUTPUT_COST: usize = 256;

/// Bytes of a console, as base64 in JSON.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ConsoleBytes(pub Vec<u8>);

impl fmt::Debug for ConsoleBytes {
    /// Shows the length alone: what is typed must reach no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for ConsoleBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for ConsoleBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ConsoleBytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64.decode(text.as_bytes()).map(ConsoleBytes).map_err(D::Error::custom)
    }
}

impl ConsoleBytes {
    /// Cost of the bytes as an output.
    pub fn cost(&self) -> usize {
        self.0.len() + OUTPUT_COST
    }
}

/// Request of a server to the executor that has the guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ConsoleRequest {
    /// Attaches a client.
    Attach {
        /// Id of the attachment.
        attachment: Uuid,
        /// Incarnation with the guest.
        incarnation: IncarnationId,
        /// Payload of the guest; the only one if absent.
        #[serde(default)]
        payload: Option<PayloadName>,
        /// Access of the client.
        access: ConsoleAccess,
        /// Actor of the client.
        actor: Actor,
    },
    /// Gives input to the guest. The next input follows the answer to this one.
    Input {
        /// Id of the attachment.
        attachment: Uuid,
        /// Number of the input in the attachment.
        number: u64,
        /// Typed bytes.
        data: ConsoleBytes,
    },
    /// Notes that output was read.
    Read {
        /// Id of the attachment.
        attachment: Uuid,
        /// Cost of the output that was read.
        cost: usize,
    },
    /// Ends an attachment.
    Detach {
        /// Id of the attachment.
        attachment: Uuid,
    },
}

impl ConsoleRequest {
    /// Id of the attachment that the request is about.
    pub const fn attachment(&self) -> Uuid {
        match self {
            ConsoleRequest::Attach { attachment, .. }
            | ConsoleRequest::Input { attachment, .. }
            | ConsoleRequest::Read { attachment, .. }
            | ConsoleRequest::Detach { attachment } => *attachment,
        }
    }
}

/// Reason why a client cannot attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachRefusal {
    /// The guest has no console here.
    Missing,
    /// Another client has the access, or the number of clients is at its limit.
    InUse,
    /// The executor cannot use the console.
    Failed,
}

/// Reply of an executor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ConsoleReply {
    /// The client is attached.
    Attached {
        /// Id of the attachment.
        attachment: Uuid,
    },
    /// The client is not attached.
    Refused {
        /// Id of the attachment.
        attachment: Uuid,
        /// Kind of the refusal.
        reason: AttachRefusal,
        /// Reason, for people.
        detail: String,
    },
    /// Output of the guest.
    Output {
        /// Id of the attachment.
        attachment: Uuid,
        /// Bytes that the guest has written.
        data: ConsoleBytes,
    },
    /// Answer to an input.
    Taken {
        /// Id of the attachment.
        attachment: Uuid,
        /// Number of the input.
        number: u64,
        /// Number of its bytes that the guest's port has taken.
        taken: usize,
    },
    /// The attachment has ended.
    Ended {
        /// Id of the attachment.
        attachment: Uuid,
        /// Reason, for people; absent if the guest has ended.
        #[serde(default)]
        error: Option<String>,
    },
}

impl ConsoleReply {
    /// Id of the attachment that the reply is about.
    pub const fn attachment(&self) -> Uuid {
        match self {
            ConsoleReply::Attached { attachment }
            | ConsoleReply::Refused { attachment, .. }
            | ConsoleReply::Output { attachment, .. }
            | ConsoleReply::Taken { attachment, .. }
            | ConsoleReply::Ended { attachment, .. } => *attachment,
        }
    }
}

/// Line that an attached client receives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsoleLine {
    /// First line: id of the attachment, by which input is sent.
    Attached(Uuid),
    /// Output of the guest.
    Output(ConsoleBytes),
    /// Last line: reason why the attachment has ended, for people; null if the guest has ended.
    Ended(Option<String>),
}
