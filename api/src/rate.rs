//! Rate limits: a token bucket for each principal, so that no principal takes the capacity of others.
//!
//! Until there is authentication, a principal is the client's address with the actor that `Chancery-Actor`
//! names. Writes, reads and streams have separate budgets:
//!
//! | budget | a token for |
//! |---|---|
//! | writes | an intent; each of a batch |
//! | reads | a list, a row, a history; also a request without route, and OPTIONS, which the router and CORS answer |
//! | streams | opening a stream of events or logs, or an executor's channel |
//! | none | probes and metrics; messages on a channel, which wait for the decider in their own order |
//!
//! A bucket has the capacity of one second. It is stored as the time at which it will be full again (the
//! generic cell rate algorithm of ATM). So a full bucket need not be stored. A request is accepted when there
//! is a token for it; a batch may then owe the rest.
//!
//! Invariant: memory is bounded. Beyond the maximum number of recently active principals, all further
//! principals share a bucket.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Extensions, HeaderMap, Method, Request};
use chancery_events::name::Actor;

use super::HttpLimits;
use super::problem::{ProblemDetails, TOO_MANY};
use super::routes::RouteTarget;

/// Maximum number of principals with a bucket of their own.
const PRINCIPALS: usize = 10_000;
/// Time after which a bucket is full.
const SPAN: Duration = Duration::from_secs(1);

/// Address at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) IpAddr);

/// Sender of requests, to which limits apply.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct RequestPrincipal {
    peer: IpAddr,
    actor: Option<Actor>,
}

impl RequestPrincipal {
    /// Returns the principal of a request. An actor with an invalid name is refused later, with its reason.
    pub(super) fn of(headers: &HeaderMap, extensions: &Extensions) -> RequestPrincipal {
        let peer = extensions.get::<PeerAddress>().map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.0);
        RequestPrincipal { peer, actor: actor(headers) }
    }
}

fn actor(headers: &HeaderMap) -> Option<Actor> {
    headers.get("chancery-actor")?.to_str().ok()?.trim().parse().ok()
}

/// Buckets of all budgets.
#[derive(Debug)]
pub struct RateLimiter {
    began: Instant,
    writes: TokenBuckets,
    reads: TokenBuckets,
    streams: TokenBuckets,
}

impl RateLimiter {
    /// Returns full buckets with the rates of the limits.
    pub fn of(limits: &HttpLimits) -> RateLimiter {
        RateLimiter {
            began: Instant::now(),
            writes: TokenBuckets::new("intents", limits.writes_per_second),
            reads: TokenBuckets::new("reads", limits.reads_per_second),
            streams: TokenBuckets::new("streams opened", limits.streams_per_second),
        }
    }

    fn budget(&self, does: Option<RouteTarget>) -> Option<&TokenBuckets> {
        match does {
            Some(RouteTarget::Intents | RouteTarget::DryRun | RouteTarget::Intent(..)) => Some(&self.writes),
            Some(
                RouteTarget::Events
                | RouteTarget::Logs
                | RouteTarget::OpenChannel
                | RouteTarget::OfferConsoles
                | RouteTarget::AttachConsole,
            ) => Some(&self.streams),
            // Input is one request at a time for each attachment.
            Some(
                RouteTarget::Live
                | RouteTarget::Ready
                | RouteTarget::Metrics
                | RouteTarget::SendMessages
                | RouteTarget::SendReplies
                | RouteTarget::SendInput,
            ) => None,
            Some(
                RouteTarget::List(_)
                | RouteTarget::Get(_)
                | RouteTarget::Disruption
                | RouteTarget::History(_)
                | RouteTarget::Why(_)
                | RouteTarget::Event(_)
                | RouteTarget::Diff
                | RouteTarget::OpenApi
                | RouteTarget::Schema
                | RouteTarget::ErrorEntry
                | RouteTarget::Version
                | RouteTarget::Index
                | RouteTarget::Fleets
                | RouteTarget::Fleet,
            )
            | None => Some(&self.reads),
        }
    }

    /// Takes a token for a request; otherwise returns the problem.
    pub(super) fn take(
        &self,
        does: Option<RouteTarget>,
        principal: &RequestPrincipal,
    ) -> Result<(), ProblemDetails> {
        let Some(buckets) = self.budget(does) else { return Ok(()) };
        buckets.take(principal, self.began.elapsed()).map_err(|wait| {
            let TokenBuckets { what, per_second, .. } = buckets;
            let detail = format!(
                "cannot accept request: the limit is {per_second} {what} a second for each principal"
            );
            ProblemDetails::new(TOO_MANY, detail).after(wait)
        })
    }

    /// Takes a token for a request with the method OPTIONS.
    pub(super) fn take_options(&self, request: &Request<Body>) -> Result<(), ProblemDetails> {
        if request.method() != Method::OPTIONS {
            return Ok(());
        }
        self.take(None, &RequestPrincipal::of(request.headers(), request.extensions()))
    }

    /// Takes the tokens of a batch's other intents, even if they are not available yet.
    pub(super) fn owe(&self, principal: &RequestPrincipal, intents: usize) {
        self.writes.owe(principal, u32::try_from(intents).unwrap_or(u32::MAX), self.began.elapsed());
    }
}

/// Buckets of one budget.
#[derive(Debug)]
struct TokenBuckets {
    what: &'static str,
    per_second: u64,
    /// Time until a bucket gains one token.
    interval: Duration,
    table: Mutex<BucketTable>,
}

/// Time at which each bucket will be full, since the start of the server.
#[derive(Debug, Default)]
struct BucketTable {
    full_at: HashMap<RequestPrincipal, Duration>,
    /// Time of the bucket shared by principals without a bucket of their own.
    others: Duration,
    /// Time at which full buckets were last removed.
    swept: Duration,
}

impl TokenBuckets {
    fn new(what: &'static str, per_second: u64) -> TokenBuckets {
        let interval = Duration::from_nanos((1_000_000_000 / per_second.max(1)).max(1));
        TokenBuckets { what, per_second, interval, table: Mutex::default() }
    }

    /// Takes a token, or returns the time to wait for one.
    fn take(&self, principal: &RequestPrincipal, now: Duration) -> Result<(), Duration> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = table.bucket(principal, now);
        let then = (*full_at).max(now) + self.interval;
        match then.checked_sub(now + SPAN) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => {
                *full_at = then;
                Ok(())
            }
        }
    }

    fn owe(&self, principal: &RequestPrincipal, tokens: u32, now: Duration) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = table.bucket(principal, now);
        *full_at = (*full_at).max(now) + self.interval.saturating_mul(tokens);
    }
}

impl BucketTable {
    fn bucket(&mut self, principal: &RequestPrincipal, now: Duration) -> &mut Duration {
        if !self.full_at.contains_key(principal) && self.full_at.len() >= PRINCIPALS {
            // Once a span: a scan for each new principal would amplify a flood.
            if now >= self.swept + SPAN {
                self.swept = now;
                self.full_at.retain(|_, full_at| *full_at > now);
            }
            if self.full_at.len() >= PRINCIPALS {
                return &mut self.others;
            }
        }
        self.full_at.entry(principal.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(n: u32) -> RequestPrincipal {
        RequestPrincipal { peer: Ipv4Addr::from_bits(n).into(), actor: None }
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Returns the number of requests of a flood that are accepted at one moment.
    fn taken(buckets: &TokenBuckets, of: &RequestPrincipal, now: Duration) -> usize {
        (0..1000).take_while(|_| buckets.take(of, now).is_ok()).count()
    }

    #[test]
    fn a_bucket_holds_a_second_and_fills_by_the_rate() {
        let (buckets, ann) = (TokenBuckets::new("x", 10), principal(1));
        assert_eq!(taken(&buckets, &ann, millis(0)), 10);
        assert_eq!(buckets.take(&ann, millis(0)), Err(millis(100)));
        assert_eq!(buckets.take(&ann, millis(70)), Err(millis(30)));
        assert_eq!(taken(&buckets, &ann, millis(250)), 2);
        assert_eq!(taken(&buckets, &ann, millis(60_000)), 10);
        assert_eq!(taken(&buckets, &principal(2), millis(60_000)), 10, "another one has its own");
    }

    #[test]
    fn one_a_second_is_one_a_second() {
        let (buckets, ann) = (TokenBuckets::new("x", 1), principal(1));
        assert_eq!(taken(&buckets, &ann, millis(0)), 1);
        assert_eq!(buckets.take(&ann, millis(999)), Err(millis(1)));
        assert_eq!(taken(&buckets, &ann, millis(1000)), 1);
    }

    #[test]
    fn a_batch_is_taken_whole_and_paid_for_later() {
        let (buckets, ann) = (TokenBuckets::new("x", 10), principal(1));
        assert_eq!(buckets.take(&ann, millis(0)), Ok(()));
        buckets.owe(&ann, 99, millis(0));
        assert_eq!(buckets.take(&ann, millis(9000)), Err(millis(100)));
        assert_eq!(taken(&buckets, &ann, millis(9100)), 1);
    }

    #[test]
    fn a_maximum_of_principals_is_distinguished_and_the_others_share() {
        let buckets = TokenBuckets::new("x", 10);
        let count = || buckets.table.lock().expect("no panic").full_at.len();
        for n in 0..PRINCIPALS as u32 {
            assert!(buckets.take(&principal(n), millis(2000)).is_ok());
        }
        let (early, late) = (principal(5), principal(u32::MAX));
        assert_eq!(taken(&buckets, &late, millis(2000)), 10);
        assert_eq!(taken(&buckets, &principal(u32::MAX - 1), millis(2000)), 0, "they share one bucket");
        assert_eq!(taken(&buckets, &early, millis(2000)), 9, "who was known before is not slowed");
        assert_eq!(count(), PRINCIPALS);
        // A moment later the full buckets are removed, and new principals have their own.
        assert_eq!(taken(&buckets, &principal(u32::MAX - 1), millis(3000)), 10);
        assert!(count() <= 2, "{}", count());
    }
}
