//! The owners of listening TCP sockets, from `/proc`.

use std::collections::HashSet;

/// The local addresses that receive connections to 127.0.0.1 and to ::1, in the form of the tables of
/// `/proc/PID/net`. The unspecified address of version 6 receives both.
pub const LOOPBACKS: [(&str, &[&str]); 2] = [
    ("127.0.0.1", &["00000000", "0100007F", ANY_V6, "0000000000000000FFFF00000100007F"]),
    ("::1", &[ANY_V6, "00000000000000000000000001000000"]),
];
const ANY_V6: &str = "00000000000000000000000000000000";

/// The sockets in a table that listen on a port at one of these addresses.
fn listeners(table: &str, port: u16, addresses: &[&str]) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, number) = fields.get(1)?.rsplit_once(':')?;
        let here = u16::from_str_radix(number, 16).ok()? == port && *fields.get(3)? == LISTEN;
        (here && addresses.contains(&address)).then(|| fields.get(9)?.parse().ok()).flatten()
    };
    table.lines().skip(1).filter_map(socket).collect()
}

/// The sockets that listen on the port at these addresses, in the network of these processes.
fn sockets(processes: &[String], port: u16, addresses: &[&str]) -> Vec<u64> {
    let table = |name: &str| {
        let read = |process: &String| std::fs::read_to_string(format!("/proc/{process}/net/{name}")).ok();
        // All processes have the same network, and one may have ended meanwhile.
        processes.iter().find_map(read).map_or_else(Vec::new, |text| listeners(&text, port, addresses))
    };
    table("tcp").into_iter().chain(table("tcp6")).collect()
}

/// True if a process listens on the port at these addresses, in the network of these processes.
pub fn has_listener(processes: &[String], port: u16, addresses: &[&str]) -> bool {
    !sockets(processes, port, addresses).is_empty()
}

/// True if only these processes listen on the port at these addresses: on the host's network others listen too, and
/// two processes may have the same port at different addresses.
pub fn is_owned_by(processes: &[String], port: u16, addresses: &[&str]) -> bool {
    let named = |inode: u64| format!("socket:[{inode}]");
    let sockets: HashSet<String> = sockets(processes, port, addresses).into_iter().map(named).collect();
    let files = |process: &String| {
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()?.into_os_string().into_string().ok())
    };
    let held: HashSet<String> =
        processes.iter().flat_map(files).filter(|file| sockets.contains(file)).collect();
    !sockets.is_empty() && held.len() == sockets.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
         0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0\n   \
         1: 0100007F:1F90 0100007F:A0B1 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 20 4 30 10 -1\n   \
         2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9 1 0 100 0 0 10 0\n   \
         3: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 4713 1 0 100 0 0 10 0\n   garbage\n";

    #[test]
    fn only_who_listens_there_counts() {
        let [(_, four), (_, six)] = LOOPBACKS;
        assert_eq!(listeners(TABLE, 8_080, four), [4_711], "and nobody at another address");
        assert_eq!(listeners(TABLE, 22, four), [9]);
        assert_eq!(listeners(TABLE, 8_080, six), [0u64; 0]);
        assert_eq!(listeners(TABLE, 41_137, four), [0u64; 0]);
        assert_eq!(listeners("", 22, four), [0u64; 0]);
    }

    #[test]
    fn a_port_is_its_listeners_own() {
        let [(_, four), (_, six)] = LOOPBACKS;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let me = vec![std::process::id().to_string()];
        assert!(is_owned_by(&me, port, four) && !is_owned_by(&me, port, six));
        // The first process has the same network, but not this socket.
        assert!(!is_owned_by(&["1".to_owned()], port, four));
        assert!(has_listener(&me, port, four) && !has_listener(&me, port, six), "of any process");
        drop(listener);
        assert!(!is_owned_by(&me, port, four) && !has_listener(&me, port, four));
    }
}
