//! The dialer of a replica beside a program that changes its place: the real dialer and a real process in an attempt.

use std::time::Duration;

use berth_exec::{AttemptDialer, entries};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::left_out::left_out;
use crate::stage::{Running, Script, Stage};

const LONG: Duration = Duration::from_secs(30);

/// A program with two ports that answers each connection with a byte: 4 at 127.0.0.1, 6 at ::1, and o at its other port.
/// With the file `go` it moves the first port from 127.0.0.1 to ::1. Its ports are below those of outgoing connections, so
/// that no other program gets a released one.
const PROGRAM: &str = r#"exec python3 -u - <<'END'
import os, random, select, socket
def serve():
    while True:
        try:
            return socket.create_server(('127.0.0.1', random.randrange(20_000, 32_000)))
        except OSError:
            pass
first, other = serve(), serve()
port = first.getsockname()[1]
print('up', port, other.getsockname()[1], 'ports')
while True:
    for one in select.select([first, other], [], [], 0.05)[0]:
        stream = one.accept()[0]
        stream.sendall(b'o' if one is other else b'6' if one.family == socket.AF_INET6 else b'4')
        stream.close()
    if first.family == socket.AF_INET and os.path.exists('go'):
        first.close()
        try:
            first = socket.create_server(('::1', port), family=socket.AF_INET6)
            print('moved')
        except OSError as error:
            print('%s: not moved' % error)
            break
END"#;

/// A running program with its ports and its dialer.
struct Dialed {
    running: Running,
    dialer: AttemptDialer,
    port: u16,
    other: u16,
}

impl Dialed {
    fn start(stage: &Stage, name: &str, network: bool) -> Self {
        let running = stage.start(name, &Script { text: PROGRAM, network, ..Script::default() });
        running.until("ports");
        let log = running.log();
        let ports: Vec<u16> = log.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let dialer = AttemptDialer::with_program(env!("CARGO_BIN_EXE_berth-worker").into(), &running.dir);
        Self { running, dialer, port: ports[0], other: ports[1] }
    }

    /// The byte that answers a connection.
    async fn ask(&self, port: u16) -> Result<char, String> {
        let mut stream = self.dialer.dial(port).await?;
        Ok(timeout(LONG, stream.read_u8()).await.unwrap().unwrap().into())
    }

    /// Lets the program move to ::1. False, and said, where it has no such address.
    fn moves(&self) -> bool {
        std::fs::write(self.running.dir.join("work/go"), "").unwrap();
        self.running.until("moved");
        let moved = !self.running.log().contains("not moved");
        if !moved {
            left_out("a program cannot listen at ::1 on this machine");
        }
        moved
    }

    /// Ends what a test began outside of this process.
    fn close(self) {
        drop(self.dialer);
        entries::end_all(&self.running.dir).unwrap();
        self.running.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_moves_in_its_own_network_loses_one_connection() {
    let Some(stage) = Stage::sandboxed() else { return };
    let dialed = Dialed::start(&stage, "own", false);
    let (port, other) = (dialed.port, dialed.other);
    assert_eq!(dialed.ask(port).await, Ok('4'));
    assert_eq!(dialed.ask(other).await, Ok('o'));
    assert_eq!(dialed.ask(port).await, Ok('4'));
    if dialed.moves() {
        let refused = format!("No process of the job listens on port {port} yet.");
        assert_eq!(dialed.ask(port).await, Err(refused), "the kept place");
        assert_eq!(dialed.ask(port).await, Ok('6'));
        assert_eq!(dialed.ask(other).await, Ok('o'), "the kept place is that of another port");
        assert_eq!(dialed.ask(port).await, Ok('6'));
    }
    dialed.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_in_the_network_of_the_host_is_searched_each_time() {
    let stage = Stage::open();
    let dialed = Dialed::start(&stage, "shared", true);
    let port = dialed.port;
    for _ in 0..2 {
        assert_eq!(dialed.ask(port).await, Ok('4'));
    }
    if dialed.moves() {
        // A stranger has the former place.
        let stranger = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        for _ in 0..2 {
            assert_eq!(dialed.ask(port).await, Ok('6'));
        }
        drop(stranger);
    }
    dialed.close();
}
