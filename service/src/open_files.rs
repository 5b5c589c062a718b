//! Descriptors of open files: as many as the system allows, some of them reserved from connections.
//!
//! Shells and init systems start programs with 1,024 and let them raise the limit. Without a free descriptor
//! the journal cannot create a segment and the rows cannot grow, so connections must not use all.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum descriptors of a connection: its own, and one of a segment, a log or another server.
const CONNECTION: usize = 2;
/// Descriptors reserved for journal, rows, snapshots, supervisor sockets, and probes; at most half.
const RESERVE: u64 = 200 + chancery_api::RESERVED as u64;
/// Descriptors reserved for each further fleet: on Kafka about 30, most of them to brokers.
const FLEET: u64 = 40;

/// Limits of open files of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFileLimit {
    /// Soft limit at the start of the process, if it was raised since; started programs get this limit.
    pub began: Option<u64>,
    /// Current limit; `None` if there is no limit.
    most: Option<u64>,
}

impl OpenFileLimit {
    /// Raises the soft limit of this process to the hard one.
    pub fn raise() -> OpenFileLimit {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        if current == maximum {
            return OpenFileLimit { began: None, most: current };
        }
        match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
            Ok(()) => OpenFileLimit { began: current, most: maximum },
            Err(error) => {
                tracing::warn!(%error, ?current, ?maximum, "cannot raise limit of open files");
                OpenFileLimit { began: None, most: current }
            }
        }
    }

    /// Returns the maximum number of connections, at most `configured`, for a server with `fleets` fleets.
    pub fn connections(&self, configured: usize, fleets: usize) -> usize {
        let Some(most) = self.most else { return configured };
        let reserve = RESERVE + FLEET * (fleets as u64).saturating_sub(1);
        let capacity = usize::try_from(most - reserve.min(most / 2)).unwrap_or(usize::MAX);
        let capacity = (capacity / CONNECTION).max(1);
        if capacity < configured {
            tracing::warn!(
                configured,
                connections = capacity,
                open_files = most,
                hint = "raise the hard limit of open files (ulimit -Hn, LimitNOFILE)",
                "accepting fewer connections than limits.connections"
            );
        }
        configured.min(capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_descriptors_are_kept_from_connections() {
        let cases = [
            (None, 1024, 1024, "no limit"),
            (Some(1_048_576), 1024, 1024, "more than enough"),
            (Some(2280), 1024, 1024, "just enough"),
            (Some(1024), 1024, 396, "as the limits are without being raised"),
            (Some(300), 1024, 75, "few: half of them are reserved"),
            (Some(1), 1024, 1, "never fewer than one"),
        ];
        for (most, configured, expected, why) in cases {
            assert_eq!(OpenFileLimit { began: None, most }.connections(configured, 1), expected, "{why}");
        }
        assert_eq!(
            OpenFileLimit { began: None, most: Some(1024) }.connections(1024, 3),
            356,
            "each fleet has some"
        );
    }
}
