//! A way from a worker to the portal that can be cut: what a broken network does, without any privilege.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct State {
    cut: bool,
    open: Vec<TcpStream>,
}

pub struct Relay {
    pub address: String,
    state: Arc<Mutex<State>>,
}

/// Bytes in one direction, until either end closes.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        // However it ends, both ends learn it.
        let _ = copy(&mut from, &mut to);
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}

impl Relay {
    /// To an address, which may be listened on later.
    pub fn to(portal: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (portal, state) = (portal.to_owned(), Arc::new(Mutex::new(State::default())));
        let shared = state.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().unwrap();
                if state.cut {
                    continue;
                }
                let Ok(on) = TcpStream::connect(&portal) else { continue };
                state.open.extend([stream.try_clone().unwrap(), on.try_clone().unwrap()]);
                pass(stream.try_clone().unwrap(), on.try_clone().unwrap());
                pass(on, stream);
            }
        });
        Self { address, state }
    }

    /// Ends every connection, and lets none through.
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
