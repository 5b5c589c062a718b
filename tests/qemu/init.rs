//! First process of the Linux guest for tests of virtual machines. It needs no crate: tests compile this file with rustc, and put
//! it with the modules of the kernel into a RAM disk (`tests/src/qemu/linux.rs`).
//!
//! On the first serial port it prints `READY boot=ID` once the second port reads commands, then a line `beat N boot=ID bad=N`
//! every 100 ms. ID changes with each boot. `bad` is the number of pages that were found with another content than was written:
//! each page of a working set has its own number and that of the beat in which it was written last. Port 80 of 10.0.2.15 answers
//! every request with such a line. The guest powers itself off when the power button is pressed.
//!
//! Commands are lines on the second serial port. Each answer is a line: `error N` for an error of the system, `absent` for a
//! disk that does not exist, `unknown` for anything else that is not in this table.
//!
//! | command | answer |
//! |---|---|
//! | `ping WORD` | `pong WORD` |
//! | `state` | a line as above |
//! | `dirty N` | `ok`; N pages are written in each beat from now on |
//! | `ignore` | `ok`; the power button is ignored from now on |
//! | `write DISK FIRST COUNT SEED` | `ok`, when the pattern of the seed was written to COUNT sectors, which may be in memory only |
//! | `sync DISK` | `ok`, when everything that was written is on the disk |
//! | `verify DISK FIRST COUNT SEED` | `ok` if the sectors have that pattern, else `other` |
//! | `size DISK` | `ok` and the number of sectors |
//! | `poweroff`, `reboot`, `panic` | none |
//!
//! DISK is the serial number of a disk of virtio. In the command line of the kernel, `dirty=N` and `ignore=yes` have the effect of
//! the commands, and `pages=N` is the size of the working set.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_long, c_ulong};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Functions of the C library that the standard library does not have.
mod c {
    use super::{c_char, c_int, c_long, c_ulong};

    unsafe extern "C" {
        pub fn mount(
            source: *const c_char,
            target: *const c_char,
            kind: *const c_char,
            flags: c_ulong,
            data: *const c_char,
        ) -> c_int;
        pub fn reboot(command: c_int) -> c_int;
        pub fn sync();
        pub fn syscall(number: c_long, ...) -> c_long;
        pub fn ioctl(file: c_int, request: c_ulong, ...) -> c_int;
        pub fn tcgetattr(file: c_int, settings: *mut u8) -> c_int;
        pub fn tcsetattr(file: c_int, when: c_int, settings: *const u8) -> c_int;
        pub fn cfmakeraw(settings: *mut u8);
    }
}

const POWER_OFF: u32 = 0x4321_fedc;
const RESTART: u32 = 0x0123_4567;
const FINIT_MODULE: c_long = 313;
const SECTOR: u64 = 512;
/// Number of words in a page, of which one in each `STEP` is written and compared.
const WORDS: usize = 512;
const STEP: usize = 64;

static BOOT: OnceLock<String> = OnceLock::new();
static BEATS: AtomicU64 = AtomicU64::new(0);
static BAD: AtomicU64 = AtomicU64::new(0);
static DIRTY: AtomicU64 = AtomicU64::new(16);
static IGNORES_BUTTON: AtomicBool = AtomicBool::new(false);

fn main() {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        report(target, mount(kind, target));
    }
    load_modules();
    report("network", set_address([10, 0, 2, 15]));
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let _ = BOOT.set(boot.chars().take(8).collect());
    DIRTY.store(option("dirty").unwrap_or(16), Ordering::Relaxed);
    IGNORES_BUTTON.store(option::<String>("ignore").is_some(), Ordering::Relaxed);
    for input in files("/dev/input").into_iter().filter(|path| path.to_string_lossy().contains("event")) {
        std::thread::spawn(move || report("power button", watch_button(&input)));
    }
    match open_port("/dev/ttyS1") {
        Ok(port) => {
            std::thread::spawn(move || report("second port", answer_commands(port)));
        }
        Err(error) => report("second port", Err(error)),
    }
    print(&format!("READY boot={}", BOOT.get().map_or("", String::as_str)));
    std::thread::spawn(|| report("port 80", serve()));
    beat(option("pages").unwrap_or(2048));
}

/// Prints a line on the first serial port. A line that cannot be printed is dropped.
fn print(line: &str) {
    let _ = io::stdout().write_all(format!("{line}\n").as_bytes());
    let _ = io::stdout().flush();
}

fn report(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        print(&format!("error of {what}: {error}"));
    }
}

/// Returns an option in the kernel's command line.
fn option<T: FromStr>(name: &str) -> Option<T> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
    value.parse().ok()
}

/// Returns the files in a directory, in the order of their names.
fn files(directory: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn check(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn mount(kind: &str, target: &str) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let (kind, target) = (CString::new(kind)?, CString::new(target)?);
    // SAFETY: the texts end with a zero byte and outlive the call.
    check(unsafe { c::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) })
}

/// Loads the modules, each one after those that it needs.
fn load_modules() {
    let mut left = files("/modules");
    loop {
        let count = left.len();
        left.retain(|module| load(module).is_err());
        if left.len() == count {
            break;
        }
    }
    for module in left {
        report(&module.display().to_string(), load(&module));
    }
}

fn load(module: &Path) -> io::Result<()> {
    let file = File::open(module)?;
    // SAFETY: the call reads the file and an empty text.
    check(unsafe { c::syscall(FINIT_MODULE, file.as_raw_fd(), c"".as_ptr(), 0) } as c_int)
}

/// Sets the address of the network device, if there is one, and its state to up.
fn set_address(address: [u8; 4]) -> io::Result<()> {
    const SET_ADDRESS: c_ulong = 0x8916;
    const SET_MASK: c_ulong = 0x891c;
    const SET_FLAGS: c_ulong = 0x8914;
    if !Path::new("/sys/class/net/eth0").exists() {
        return Ok(());
    }
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // A request has the name in 16 bytes, then an address with its family, or flags.
    let set = |request: c_ulong, offset: usize, value: &[u8]| {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(b"eth0");
        bytes[16] = 2;
        bytes[offset..offset + value.len()].copy_from_slice(value);
        // SAFETY: a request has 40 bytes.
        check(unsafe { c::ioctl(socket.as_raw_fd(), request, bytes.as_mut_ptr()) })
    };
    set(SET_ADDRESS, 20, &address)?;
    set(SET_MASK, 20, &[255, 255, 255, 0])?;
    set(SET_FLAGS, 16, &[0x41])
}

/// Ends the guest, with everything written that was not yet.
fn end(command: u32) {
    // SAFETY: these calls have no pointers.
    unsafe {
        c::sync();
        c::reboot(command as c_int);
    }
}

/// Powers off once the button is pressed.
fn watch_button(input: &Path) -> io::Result<()> {
    const KEY: u16 = 1;
    const POWER: u16 = 116;
    let mut input = File::open(input)?;
    let mut event = [0; 24];
    loop {
        input.read_exact(&mut event)?;
        let number = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
        if (number(16), number(18), number(20)) != (KEY, POWER, 1) {
            continue;
        }
        if IGNORES_BUTTON.load(Ordering::Relaxed) {
            print("power button: ignored");
        } else {
            print("power button: power off");
            end(POWER_OFF);
        }
    }
}

/// Opens a serial port without echo, and without changes of what passes.
fn open_port(path: &str) -> io::Result<File> {
    let port = OpenOptions::new().read(true).write(true).open(path)?;
    // More than its 60 bytes.
    let mut settings = [0; 128];
    // SAFETY: the settings have enough bytes.
    unsafe {
        check(c::tcgetattr(port.as_raw_fd(), settings.as_mut_ptr()))?;
        c::cfmakeraw(settings.as_mut_ptr());
        check(c::tcsetattr(port.as_raw_fd(), 0, settings.as_ptr()))?;
    }
    Ok(port)
}

fn answer_commands(port: File) -> io::Result<()> {
    let mut answers = port.try_clone()?;
    let mut disks = OpenDisks::default();
    for line in BufReader::new(port).lines() {
        let line = line?;
        let words: Vec<_> = line.split_whitespace().collect();
        let answer = answer(&words, &mut disks).unwrap_or_else(|error| match error.raw_os_error() {
            Some(number) => format!("error {number}"),
            None => error.to_string(),
        });
        answers.write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

fn answer(words: &[&str], disks: &mut OpenDisks) -> io::Result<String> {
    match *words {
        ["ping", word] => return Ok(format!("pong {word}")),
        ["state"] => return Ok(state()),
        ["dirty", pages] => DIRTY.store(number(pages)?, Ordering::Relaxed),
        ["ignore"] => IGNORES_BUTTON.store(true, Ordering::Relaxed),
        ["poweroff"] => end(POWER_OFF),
        ["reboot"] => end(RESTART),
        ["panic"] => fs::write("/proc/sysrq-trigger", "c")?,
        ["sync", disk] => disks.open(disk)?.sync_all()?,
        ["size", disk] => {
            let device = device(disk)?;
            let sectors = fs::read_to_string(format!("/sys/block/{device}/size"))?;
            return Ok(format!("ok {}", sectors.trim()));
        }
        ["write", disk, first, count, seed] => {
            let disk = disks.open(disk)?;
            for sector in sectors(first, count)? {
                disk.write_all_at(&pattern(sector, number(seed)?), sector * SECTOR)?;
            }
        }
        ["verify", disk, first, count, seed] => {
            // So that they are read from the disk.
            fs::write("/proc/sys/vm/drop_caches", "1")?;
            let disk = disks.open(disk)?;
            for sector in sectors(first, count)? {
                let mut found = [0; SECTOR as usize];
                disk.read_exact_at(&mut found, sector * SECTOR)?;
                if found != pattern(sector, number(seed)?) {
                    return Ok("other".to_owned());
                }
            }
        }
        _ => return Err(io::Error::other("unknown")),
    }
    Ok("ok".to_owned())
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| io::Error::other("unknown"))
}

fn sectors(first: &str, count: &str) -> io::Result<std::ops::Range<u64>> {
    let first = number(first)?;
    Ok(first..first.saturating_add(number(count)?))
}

/// Returns the content of a sector: the seed and the number of the sector, in turn.
fn pattern(sector: u64, seed: u64) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(if at % 2 == 0 { seed } else { sector }).to_le_bytes());
    }
    bytes
}

/// Returns the name of the device with this serial number.
fn device(serial: &str) -> io::Result<String> {
    let found = files("/sys/block")
        .into_iter()
        .find(|block| fs::read_to_string(block.join("serial")).is_ok_and(|found| found.trim() == serial));
    let name = found.and_then(|block| block.file_name()?.to_str().map(str::to_owned));
    name.ok_or_else(|| io::Error::other("absent"))
}

/// Disks by their serial numbers. They stay open: the kernel would otherwise write everything to a disk that nothing uses.
#[derive(Default)]
struct OpenDisks(BTreeMap<String, File>);

impl OpenDisks {
    fn open(&mut self, serial: &str) -> io::Result<&File> {
        if !self.0.contains_key(serial) {
            let file = OpenOptions::new().read(true).write(true).open(format!("/dev/{}", device(serial)?))?;
            self.0.insert(serial.to_owned(), file);
        }
        Ok(&self.0[serial])
    }
}

fn state() -> String {
    let boot = BOOT.get().map_or("", String::as_str);
    let (beats, bad) = (BEATS.load(Ordering::Relaxed), BAD.load(Ordering::Relaxed));
    format!("beat {beats} boot={boot} bad={bad}")
}

/// Answers each request with the state.
fn serve() -> io::Result<()> {
    for connection in TcpListener::bind("0.0.0.0:80")?.incoming() {
        let connection = connection?;
        std::thread::spawn(move || {
            let _ = answer_request(connection);
        });
    }
    Ok(())
}

fn answer_request(mut connection: TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    // Request and headers end with an empty line.
    for line in BufReader::new(connection.try_clone()?.take(1 << 16)).lines() {
        if line?.is_empty() {
            break;
        }
    }
    let state = state();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", state.len());
    connection.write_all(format!("{head}{state}").as_bytes())
}

/// Writes some pages in each beat, and compares all of them in every fifth one.
fn beat(pages: usize) {
    let content = |page: usize, beat: u64| (page as u64) << 32 | beat;
    let mut memory: Vec<u64> = (0..pages * WORDS).map(|word| content(word / WORDS, 0)).collect();
    // Kept apart: a page that was lost, or is an older one, differs.
    let mut written = vec![0; pages];
    let mut next = (0..pages).cycle();
    for beat in 1.. {
        for page in next.by_ref().take(pages.min(DIRTY.load(Ordering::Relaxed) as usize)) {
            written[page] = beat;
            memory[page * WORDS..][..WORDS]
                .iter_mut()
                .step_by(STEP)
                .for_each(|word| *word = content(page, beat));
        }
        if beat % 5 == 0 {
            let is_bad = |page: usize, words: &[u64]| {
                words.iter().step_by(STEP).any(|word| *word != content(page, written[page]))
            };
            let found = memory.chunks_exact(WORDS).enumerate();
            let bad = found.filter(|(page, words)| is_bad(*page, words)).count();
            BAD.fetch_add(bad as u64, Ordering::Relaxed);
        }
        BEATS.store(beat, Ordering::Relaxed);
        print(&state());
        std::thread::sleep(Duration::from_millis(100));
    }
}
