//! Captures of packets on one interface inside a network namespace.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::Deserialize;

use crate::netns::inside_namespace;

/// Counts the packets of an interface: those with each text, those to each port of gangs, and those of VXLAN with each
/// text by port and number. It prints `ready` first and the counts at the end of its input.
const PROGRAM: &str = r#"
import collections, json, select, socket, struct, sys
interface, *marks = sys.argv[1:]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind((interface, 0))
wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
print("ready", flush=True)
plain = {mark: 0 for mark in marks}
gangs, vxlan = collections.Counter(), collections.Counter()

def udp(packet):
    if packet[12:14] != b"\x08\x00" or packet[23] != 17:
        return None, b""
    start = 14 + 4 * (packet[14] & 15)
    return struct.unpack("!H", packet[start + 2:start + 4])[0], packet[start + 8:]

while True:
    ready, _, _ = select.select([wire, sys.stdin], [], [])
    if wire in ready:
        packet = wire.recv(1 << 16)
        port, body = udp(packet)
        if port is not None and 51821 <= port <= 52844:
            gangs[port] += 1
        # The flag of a valid number, and inside a packet of the ranks' addresses.
        is_vxlan = body[:1] == b"\x08" and body[20:22] == b"\x08\x00" and body[34:36] == b"\x64\x7c"
        for mark in marks:
            if mark.encode() in packet:
                plain[mark] += 1
                if is_vxlan:
                    number = int.from_bytes(body[4:7], "big")
                    vxlan[f"{port} {number} {mark}"] += 1
    elif sys.stdin in ready:
        break
print(json.dumps({"plain": plain, "gangs": gangs, "vxlan": vxlan}), flush=True)
"#;

/// The numbers of packets of a capture.
#[derive(Debug, Deserialize)]
pub struct Captured {
    /// Those with a text in plain, by text.
    pub plain: BTreeMap<String, u64>,
    /// Those to a port of gangs, by port.
    pub gangs: BTreeMap<u16, u64>,
    /// Those of VXLAN with a text: `PORT NUMBER TEXT`.
    pub vxlan: BTreeMap<String, u64>,
}

/// A running capture.
pub struct Capture {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Capture {
    /// Starts a capture that looks for these texts.
    pub fn start(namespace: &str, interface: &str, texts: &[&str]) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, interface]).args(texts).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = inside_namespace(namespace, move || command.spawn().unwrap());
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { process, output }
    }

    pub fn end(mut self) -> Captured {
        drop(self.process.stdin.take());
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        self.process.wait().unwrap();
        serde_json::from_str(&line).unwrap()
    }
}
