//! A TCP relay between worker and portal that can be cut without any privilege.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use std::io::{Read, Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// The maximum number of delayed reads in one direction.
const ON_THE_WAY: usize = 1_024;

#[derive(Default)]
struct State {
    cut: bool,
    open: Vec<TcpStream>,
}

pub struct Relay {
    pub address: String,
    state: Arc<Mutex<State>>,
}

/// Copies bytes in one direction until either end closes.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        // Both ends learn of the close.
        let _ = copy(&mut from, &mut to);
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// The same with a delay of each byte.
fn pass_late(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (send, receive) = mpsc::sync_channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let (mut ends, other) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let data = buffer.get(..read).unwrap_or_default().to_vec();
            if send.send((Instant::now() + delay, data)).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, data) in receive {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&data).and_then(|()| to.flush()).is_err() {
                break;
            }
        }
        // Both ends learn of the close.
        let _ = (ends.flush(), ends.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
    });
}

impl Relay {
    /// Creates a relay to an address, which may be listened on later.
    pub fn to(portal: &str) -> Self {
        Self::delaying(portal, Duration::ZERO)
    }

    /// Creates a relay with a delay of each byte.
    pub fn delaying(portal: &str, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (portal, state) = (portal.to_owned(), Arc::new(Mutex::new(State::default())));
        let shared = state.clone();
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().unwrap();
                if state.cut {
                    continue;
                }
                let Ok(on) = TcpStream::connect(&portal) else { continue };
                state.open.extend([stream.try_clone().unwrap(), on.try_clone().unwrap()]);
                let ends = [(stream.try_clone().unwrap(), on.try_clone().unwrap()), (on, stream)];
                for (from, to) in ends {
                    // The relay adds no delay of its own.
                    to.set_nodelay(true).unwrap();
                    if delay.is_zero() { pass(from, to) } else { pass_late(from, to, delay) }
                }
            }
        });
        Self { address, state }
    }

    /// Closes every connection and accepts none.
    pub fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut = true;
        for stream in state.open.drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.state.lock().unwrap().cut = false;
    }
}
