//! Descriptors of open files: as many as the system gives this process, some of them kept from connections.
//!
//! Shells and init systems start programs with 1,024 and let them ask for more. Without one the journal cannot make a
//! segment and the store of rows cannot grow, so connections must not use them up.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a connection at most: its own, and a segment, a log or a connection to another server behind it.
const CONNECTION: usize = 2;
/// What is kept for journal, rows, snapshots, links to keepers, and probes. Of few, the half.
const RESERVE: u64 = 200 + chancery_api::RESERVED as u64;
/// And for each further fleet: on Kafka it has some 30, most of them connections to brokers.
const FLEET: u64 = 40;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFiles {
    /// How many this process might have open when it began, if it may have more now: what programs get that it starts.
    pub began: Option<u64>,
    /// How many it may have open now; `None` if there is no limit.
    most: Option<u64>,
}

impl OpenFiles {
    /// Raises the soft limit of this process to the hard one.
    pub fn raise() -> OpenFiles {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        if current == maximum {
            return OpenFiles { began: None, most: current };
        }
        match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
            Ok(()) => OpenFiles { began: current, most: maximum },
            Err(error) => {
                tracing::warn!(%error, ?current, ?maximum, "the limit of open files cannot be raised");
                OpenFiles { began: None, most: current }
            }
        }
    }

    /// How many connections may be open at a time, of so many that are configured, beside so many fleets.
    pub fn connections(&self, configured: usize, fleets: usize) -> usize {
        let Some(most) = self.most else { return configured };
        let reserve = RESERVE + FLEET * (fleets as u64).saturating_sub(1);
        let room = usize::try_from(most - reserve.min(most / 2)).unwrap_or(usize::MAX);
        let room = (room / CONNECTION).max(1);
        if room < configured {
            tracing::warn!(
                configured,
                connections = room,
                open_files = most,
                "fewer connections are taken than limits.connections says: raise the hard limit of open files \
                 (ulimit -Hn, LimitNOFILE)"
            );
        }
        configured.min(room)
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
            (Some(300), 1024, 75, "few: the half is kept"),
            (Some(1), 1024, 1, "one, whatever comes of it"),
        ];
        for (most, configured, expected, why) in cases {
            assert_eq!(OpenFiles { began: None, most }.connections(configured, 1), expected, "{why}");
        }
        assert_eq!(
            OpenFiles { began: None, most: Some(1024) }.connections(1024, 3),
            356,
            "each fleet has some"
        );
    }
}
