//! TCP proxy in front of one broker. It understands as much of Kafka's protocol as its faults need: the
//! frames, and the kind of request that a response belongs to.
//!
//! Clients are directed to the proxy by `advertised.listeners`; brokers reach each other directly. Responses
//! keep their order on a connection, as the protocol requires.
//!
//! Source: Kafka protocol guide, request header v1 (`size`, `api_key`, `api_version`, `correlation_id`) and
//! response header (`size`, `correlation_id`).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::sim::RandomSource;

/// API key of a fetch request.
const FETCH: i16 = 1;
/// Maximum number of bytes that a slow network passes on in one write.
const PIECE: usize = 16 << 10;
/// Maximum size of a frame in bytes; brokers accept no larger ones.
const LARGEST: usize = 128 << 20;

/// Faults that the proxy applies to responses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ProxyFaults {
    /// Delay of fetch responses that contain records.
    pub slow_fetches: Duration,
    /// Maximum random delay of a response; each response and each connection has its own. Clients use one
    /// connection per partition, so responses of different partitions change their order.
    pub disorder: Duration,
    /// Whether all responses are withheld.
    pub stalls: bool,
    /// Whether connections are cut and new ones refused.
    pub cuts: bool,
    /// Maximum number of response bytes per second over all connections; zero means no limit.
    pub bytes_per_second: u64,
}

/// Proxy in front of one broker; stops when it is dropped.
#[derive(Debug)]
pub struct BrokerProxy {
    shared: Arc<ProxyShared>,
    port: u16,
}

#[derive(Debug)]
struct ProxyShared {
    faults: Mutex<ProxyFaults>,
    /// Instant at which a slow network will have passed on everything accepted so far.
    is_free: Mutex<Instant>,
    changed: Condvar,
    connections: Mutex<Vec<TcpStream>>,
    ends: AtomicBool,
}

impl BrokerProxy {
    /// Creates a proxy on a free port; [`ProxyListener::lead_to`] sets its broker.
    pub fn listen() -> (BrokerProxy, ProxyListener) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(ProxyShared {
            faults: Mutex::default(),
            is_free: Mutex::new(Instant::now()),
            changed: Condvar::new(),
            connections: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        (BrokerProxy { shared: Arc::clone(&shared), port }, ProxyListener { listener, shared })
    }

    /// Port where clients reach the broker.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the faults for all further responses, including delayed ones.
    pub fn set(&self, faults: ProxyFaults) {
        *self.shared.faults() = faults;
        *lock(&self.shared.is_free) = Instant::now();
        self.shared.changed.notify_all();
        if faults.cuts {
            self.shared.cut();
        }
    }
}

impl Drop for BrokerProxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        self.set(ProxyFaults::default());
        self.shared.cut();
        // A connection wakes the accepting thread, which then ends.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Port of a proxy without a broker.
#[derive(Debug)]
pub struct ProxyListener {
    listener: TcpListener,
    shared: Arc<ProxyShared>,
}

impl ProxyListener {
    /// Accepts connections to the broker at this address from now on.
    pub fn lead_to(self, broker: SocketAddr) {
        thread::spawn(move || {
            for client in self.listener.incoming() {
                if self.shared.ends.load(Ordering::Acquire) {
                    return;
                }
                let Ok(client) = client else { continue };
                if self.shared.faults().cuts {
                    continue;
                }
                // If the broker is unreachable, the client's connection ends.
                if let Ok(broker) = TcpStream::connect(broker) {
                    self.shared.join(&client, &broker);
                }
            }
        });
    }
}

impl ProxyShared {
    fn faults(&self) -> MutexGuard<'_, ProxyFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Passes on the data of both sides until one of them ends.
    fn join(self: &Arc<Self>, client: &TcpStream, broker: &TcpStream) {
        let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend([clone(client), clone(broker)]);
        let kinds = Arc::new(Mutex::new(BTreeMap::new()));
        let (from, to, asked) = (clone(client), clone(broker), Arc::clone(&kinds));
        thread::spawn(move || {
            let look = |frame: &[u8]| {
                if let [a, b, _, _, c, d, e, f, ..] = frame[..] {
                    let correlation = i32::from_be_bytes([c, d, e, f]);
                    lock(&asked).insert(correlation, i16::from_be_bytes([a, b]));
                }
            };
            pass(&from, &to, look, |_| {});
        });
        let (from, to, shared) = (clone(broker), clone(client), Arc::clone(self));
        // The client's port is a sufficient seed: timing differs between test executions anyway.
        let mut random = RandomSource::new(client.peer_addr().map_or(0, |peer| peer.port().into()));
        thread::spawn(move || {
            let look = |frame: &[u8]| {
                let correlation = frame.first_chunk().map_or(0, |bytes| i32::from_be_bytes(*bytes));
                let kind = lock(&kinds).remove(&correlation);
                let part = random.below(1000) as f64 / 1000.0;
                shared.hold_up(kind == Some(FETCH) && holds_records(frame), part);
            };
            pass(&from, &to, look, |bytes| shared.slow_down(bytes));
        });
    }

    /// Waits until a response may be passed on. `part` is the response's fraction of the disorder, from 0 to
    /// 1.
    fn hold_up(&self, is_fetch: bool, part: f64) {
        let came = Instant::now();
        let mut faults = self.faults();
        loop {
            let mut late = faults.disorder.mul_f64(part);
            if is_fetch {
                late = late.max(faults.slow_fetches);
            }
            let late = late.saturating_sub(came.elapsed());
            if self.ends.load(Ordering::Acquire) || faults.cuts || (!faults.stalls && late.is_zero()) {
                return;
            }
            let wait = if faults.stalls { Duration::from_secs(1) } else { late };
            (faults, _) = self.changed.wait_timeout(faults, wait).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a slow network has capacity for `bytes`.
    fn slow_down(&self, bytes: usize) {
        let mut faults = self.faults();
        loop {
            let limit = faults.bytes_per_second;
            if limit == 0 {
                return;
            }
            let until = {
                let mut is_free = lock(&self.is_free);
                *is_free =
                    (*is_free).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / limit as f64);
                *is_free
            };
            while faults.bytes_per_second == limit {
                let wait = until.saturating_duration_since(Instant::now());
                if wait.is_zero() || faults.cuts || self.ends.load(Ordering::Acquire) {
                    return;
                }
                (faults, _) = self.changed.wait_timeout(faults, wait).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Whether a fetch response is larger than an empty one.
fn holds_records(frame: &[u8]) -> bool {
    frame.len() > 120
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on frames one by one; ends both connections when one ends. The first closure is called with the
/// bytes after each size, and `pace` before each write with its number of bytes.
fn pass(mut from: &TcpStream, mut to: &TcpStream, mut look: impl FnMut(&[u8]), mut pace: impl FnMut(usize)) {
    let mut size = [0; 4];
    'frames: while from.read_exact(&mut size).is_ok() {
        let bytes = u32::from_be_bytes(size) as usize;
        if bytes > LARGEST {
            break;
        }
        let mut frame = size.to_vec();
        frame.resize(4 + bytes, 0);
        if from.read_exact(&mut frame[4..]).is_err() {
            break;
        }
        look(&frame[4..]);
        for piece in frame.chunks(PIECE) {
            pace(piece.len());
            if to.write_all(piece).is_err() {
                break 'frames;
            }
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fake broker that answers each frame with a frame of `bytes` bytes.
    fn broker(bytes: u32) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut request = [0; 12];
                    while client.read_exact(&mut request).is_ok() {
                        let answer = [&bytes.to_be_bytes()[..], &vec![7; bytes as usize]].concat();
                        if client.write_all(&answer).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    #[test]
    fn a_slow_network_forwards_every_byte_and_none_immediately() {
        const BYTES: u32 = 100_000;
        let (proxy, listener) = BrokerProxy::listen();
        listener.lead_to(broker(BYTES));
        // One write takes hours.
        proxy.set(ProxyFaults { bytes_per_second: 1, ..ProxyFaults::default() });
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).expect("the proxy listens");
        client.write_all(&[0, 0, 0, 8, 0, 1, 0, 4, 0, 0, 0, 1]).expect("it reads");
        client.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
        client.read_exact(&mut [0]).expect_err("nothing comes");
        client.set_read_timeout(None).expect("a socket");
        // Waiting data continues under another limit, and without one.
        for bytes_per_second in [1_000_000, 0] {
            proxy.set(ProxyFaults { bytes_per_second, ..ProxyFaults::default() });
            let mut answer = vec![0; 4 + BYTES as usize];
            client.read_exact(&mut answer).expect("it answers");
            assert!(answer[..4] == BYTES.to_be_bytes() && answer[4..].iter().all(|byte| *byte == 7));
            client.write_all(&[0, 0, 0, 8, 0, 1, 0, 4, 0, 0, 0, 1]).expect("it reads");
        }
    }
}
