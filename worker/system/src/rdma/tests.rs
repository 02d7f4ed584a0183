use std::os::unix::fs::symlink;

use super::super::pci::PciDistance;
use super::*;

/// The compute ports of a DGX H100, an HGX board with eight GPUs: the device, the bus of its port, and its board, by
/// the table "Network Modules" of NVIDIA's DGX H100 User Guide (`ibp24s0` is bus 0x18). `nvidia-smi topo` shows each
/// pair below one root port of the CPU.
const COMPUTE: [(&str, u8, u8, &str); 8] = [
    ("mlx5_0", 0x18, 0x1b, "ibp24s0"),
    ("mlx5_3", 0x40, 0x43, "ibp64s0"),
    ("mlx5_4", 0x4f, 0x52, "ibp79s0"),
    ("mlx5_5", 0x5e, 0x61, "ibp94s0"),
    ("mlx5_6", 0x9a, 0x9d, "ibp154s0"),
    ("mlx5_9", 0xc0, 0xc3, "ibp192s0"),
    ("mlx5_10", 0xce, 0xd1, "ibp206s0"),
    ("mlx5_11", 0xdc, 0xdf, "ibp220s0"),
];

/// A recorded host.
struct Recorded {
    dir: tempfile::TempDir,
}

impl Recorded {
    fn empty() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A DGX H100 with its compute ports, and an Ethernet card for storage whose second port has no cable.
    fn dgx() -> Self {
        let host = Self::empty();
        for (index, (name, bus, board, interface)) in COMPUTE.into_iter().enumerate() {
            let numa = u32::from(bus >= 0x80);
            let root = bus - 3;
            let switch = format!("pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{:02x}:00.0", root + 1);
            let nic = format!("{switch}/0000:{:02x}:00.0/0000:{bus:02x}:00.0", root + 2);
            host.add_pci(&format!("{switch}/0000:{:02x}:02.0/0000:{board:02x}:00.0", root + 2), numa);
            host.add_pci(&nic, numa);
            host.add_device(name, &nic, interface, index);
            host.add_port(name, "1", ["4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand", "0x2a"]);
        }
        for (index, (name, function, state)) in
            [("mlx5_1", 0, "4: ACTIVE"), ("mlx5_2", 1, "1: DOWN")].into_iter().enumerate()
        {
            let nic = format!("pci0000:26/0000:26:01.0/0000:29:00.{function}");
            host.add_pci(&nic, 0);
            host.add_device(name, &nic, &format!("ens{function}np0"), 8 + index);
            host.add_port(name, "1", [state, "200 Gb/sec (2X NDR)", "Ethernet", "0x0"]);
        }
        host.write("dev/infiniband/rdma_cm", "");
        host.write("dev/infiniband/umad0", "");
        host.write("dev/infiniband/issm0", "");
        host.write("sys/module/ib_core/parameters/netns_mode", "Y\n");
        host
    }

    fn tree(&self) -> RdmaTree {
        RdmaTree::below(self.dir.path())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn add_pci(&self, path: &str, numa: u32) {
        self.write(&format!("sys/devices/{path}/numa_node"), &format!("{numa}\n"));
        let list = self.dir.path().join("sys/bus/pci/devices");
        fs::create_dir_all(&list).unwrap();
        let address = path.rsplit('/').next().unwrap();
        symlink(format!("../../../devices/{path}"), list.join(address)).unwrap();
    }

    fn add_device(&self, name: &str, path: &str, interface: &str, number: usize) {
        let device = format!("sys/devices/{path}");
        self.write(&format!("{device}/net/{interface}/address"), "");
        self.write(&format!("{device}/infiniband/{name}/node_type"), "1: CA\n");
        symlink("../..", self.dir.path().join(format!("{device}/infiniband/{name}/device"))).unwrap();
        let class = self.dir.path().join("sys/class/infiniband");
        fs::create_dir_all(&class).unwrap();
        symlink(format!("../../devices/{path}/infiniband/{name}"), class.join(name)).unwrap();
        self.write(&format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"), &format!("{name}\n"));
        self.write(
            &format!("sys/class/infiniband_verbs/uverbs{number}/dev"),
            &format!("231:{}\n", 192 + number),
        );
        self.write("sys/class/infiniband_verbs/abi_version", "6\n");
        self.write(&format!("dev/infiniband/uverbs{number}"), "");
    }

    fn add_port(&self, device: &str, port: &str, texts: [&str; 4]) {
        for (name, text) in ["state", "rate", "link_layer", "lid"].into_iter().zip(texts) {
            self.write(&format!("sys/class/infiniband/{device}/ports/{port}/{name}"), &format!("{text}\n"));
        }
    }

    fn boards(&self) -> Vec<PciPlace> {
        let address = |board: u8| format!("00000000:{board:02X}:00.0");
        let place = |board: u8| PciPlace::find(&self.tree().sys, &address(board)).unwrap();
        COMPUTE.into_iter().map(|(_, _, board, _)| place(board)).collect()
    }
}

fn device_names(devices: &[RdmaDevice]) -> Vec<&str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

#[test]
fn the_devices_of_a_host_are_listed_with_their_ports() {
    let host = Recorded::dgx();
    let devices = host.tree().devices();
    let expected = [
        "mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11",
    ];
    assert_eq!(device_names(&devices), expected);
    let [first, storage, ..] = &devices[..] else { panic!("{devices:?}") };
    let port = RdmaPort {
        number: 1,
        state: "ACTIVE".to_owned(),
        rate_mbps: 400_000,
        link_layer: "InfiniBand".to_owned(),
        lid: 42,
    };
    assert_eq!(first.ports, [port]);
    assert_eq!(first.interfaces, ["ibp24s0"]);
    assert_eq!(first.uverbs.as_deref(), Some("uverbs0"));
    let place = first.place.as_ref().unwrap();
    assert_eq!((place.address(), place.numa_node), ("0000:18:00.0", Some(0)));
    assert_eq!(
        (storage.ports[0].link_layer.as_str(), storage.uverbs.as_deref()),
        ("Ethernet", Some("uverbs8"))
    );
    assert!(!devices[2].ports[0].is_active());
}

#[test]
fn each_board_is_nearest_to_its_own_device() {
    let host = Recorded::dgx();
    let (devices, boards) = (host.tree().devices(), host.boards());
    let distance =
        |device: usize, board: usize| devices[device].place.as_ref().unwrap().distance(&boards[board]);
    assert_eq!(distance(0, 0), PciDistance::Pix);
    assert_eq!(distance(0, 1), PciDistance::Node);
    assert_eq!(distance(0, 4), PciDistance::Sys);
    assert_eq!(distance(1, 0), PciDistance::Node, "the storage card");
}

#[test]
fn a_job_gets_the_active_ports_of_infiniband_and_never_the_nodes_of_the_fabric() {
    let host = Recorded::dgx();
    let tree = host.tree();
    let devices = tree.job_devices();
    assert_eq!(devices.len(), 8, "neither the storage card nor a port without a cable");
    let mut nodes: Vec<String> = (0..8).map(|number| format!("uverbs{number}")).collect();
    nodes.push("rdma_cm".to_owned());
    let dir = host.dir.path().join("dev/infiniband");
    let expected: Vec<PathBuf> = nodes.iter().map(|node| dir.join(node)).collect();
    assert_eq!(tree.nodes(&devices).unwrap(), expected);
    assert!(!tree.needs_host_network(&devices));
    let ports = "=mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1";
    assert_eq!(nccl_ports(&devices, &host.boards()), ports);
    let mut reversed = host.boards();
    reversed.reverse();
    assert!(nccl_ports(&devices, &reversed).starts_with("=mlx5_11:1,mlx5_10:1,mlx5_9:1"));
    host.write("sys/module/ib_core/parameters/netns_mode", "N\n");
    assert!(tree.needs_host_network(&devices), "a device belongs to one network namespace");
    fs::remove_file(dir.join("uverbs3")).unwrap();
    let missing = tree.nodes(&devices).unwrap_err();
    assert!(
        missing.contains("mlx5_5 has no device node") && missing.ends_with("modprobe ib_uverbs"),
        "{missing}"
    );
}

#[test]
fn ports_of_ethernet_count_without_infiniband_and_need_the_hosts_network() {
    let host = Recorded::dgx();
    for (name, ..) in COMPUTE {
        host.write(&format!("sys/class/infiniband/{name}/ports/1/state"), "2: INIT\n");
    }
    let devices = host.tree().job_devices();
    assert_eq!(device_names(&devices), ["mlx5_1"]);
    assert!(host.tree().needs_host_network(&devices));
    assert_eq!(nccl_ports(&devices, &host.boards()), "=mlx5_1:1");
}

#[test]
fn boards_with_equally_near_devices_get_different_ones() {
    let host = Recorded::empty();
    let switch = "pci0000:10/0000:10:01.0/0000:11:00.0";
    let mut boards = Vec::new();
    for number in 0..2 {
        let nic = format!("{switch}/0000:12:0{number}.0/0000:2{number}:00.0");
        host.add_pci(&nic, 0);
        host.add_device(&format!("mlx5_{number}"), &nic, &format!("ib{number}"), number);
        host.add_port(&format!("mlx5_{number}"), "1", ["4: ACTIVE", "200 Gb/sec", "InfiniBand", "0x1"]);
        host.add_pci(&format!("{switch}/0000:12:1{number}.0/0000:3{number}:00.0"), 0);
        boards.push(PciPlace::find(&host.tree().sys, &format!("00000000:3{number}:00.0")).unwrap());
    }
    assert_eq!(nccl_ports(&host.tree().job_devices(), &boards), "=mlx5_0:1,mlx5_1:1");
}

#[test]
fn the_inventory_of_an_odd_host_is_bounded() {
    assert_eq!(RdmaTree::absent().devices(), []);
    let host = Recorded::empty();
    assert_eq!(host.tree().devices(), []);
    for number in 0..70 {
        host.write(&format!("sys/class/infiniband/rxe{number}/ports/1/state"), "4: ACTIVE\n");
    }
    for port in 2..20 {
        host.write(&format!("sys/class/infiniband/rxe0/ports/{port}/state"), "no state\n");
    }
    host.write("sys/class/infiniband/a,b:1/ports/1/state", "4: ACTIVE\n");
    let devices = host.tree().devices();
    assert_eq!((devices.len(), devices[0].name.as_str()), (MAX_DEVICES, "rxe0"));
    assert_eq!(devices[0].ports.len(), MAX_PORTS);
    assert_eq!((devices[0].ports[1].state.as_str(), devices[0].ports[1].rate_mbps), ("UNKNOWN", 0));
    assert_eq!((devices[1].place.as_ref(), devices[1].uverbs.as_ref()), (None, None));
    assert!(devices.iter().all(|device| !device.name.contains(',')));
    assert!(host.tree().nodes(&devices).is_err());
}

#[test]
fn rates_and_numbers_are_read() {
    for (text, mbps) in
        [("400 Gb/sec (4X NDR)", 400_000), ("2.5 Gb/sec (1X SDR)", 2_500), ("", 0), ("fast", 0)]
    {
        assert_eq!(rate_mbps(text), mbps, "{text:?}");
    }
    assert_eq!([hex("0x2a"), hex("0xffffffffff"), hex("")], [42, 0, 0]);
}

#[test]
fn a_port_of_roce_has_its_address_of_ip_version_4() {
    let host = Recorded::dgx();
    let addresses = [
        ("IB/RoCE v1", "fe80:0000:0000:0000:0a00:27ff:fe00:0001"),
        ("RoCE v2", "fe80:0000:0000:0000:0a00:27ff:fe00:0001"),
        ("IB/RoCE v1", "0000:0000:0000:0000:0000:ffff:c000:0207"),
        ("RoCE v2", "0000:0000:0000:0000:0000:ffff:c000:0207"),
    ];
    for (index, (kind, address)) in addresses.into_iter().enumerate() {
        let dir = "sys/class/infiniband/mlx5_1/ports/1";
        host.write(&format!("{dir}/gid_attrs/types/{index}"), &format!("{kind}\n"));
        host.write(&format!("{dir}/gids/{index}"), &format!("{address}\n"));
    }
    assert_eq!(host.tree().roce_address_index("mlx5_1", 1), Some(3));
    assert_eq!(host.tree().roce_address_index("mlx5_0", 1), None);
}
