//! Table of the RDMA ports of a node.

use berth_types::rdma::{BoardDistance, RdmaPort};
use leptos::prelude::*;

use crate::ui::table_of;

/// The distances, the nearest first.
const DISTANCES: [&str; 5] = ["PIX", "PXB", "PHB", "NODE", "SYS"];

/// Returns a rate: `400 Gb/s`, `2.5 Gb/s`.
fn rate_text(mbps: u64) -> String {
    match (mbps / 1_000, mbps % 1_000 / 100) {
        (0, 0) => "unknown".to_owned(),
        (whole, 0) => format!("{whole} Gb/s"),
        (whole, tenths) => format!("{whole}.{tenths} Gb/s"),
    }
}

/// Returns the nearest boards with their distance: `GPU 0, GPU 1 (PIX)`.
fn nearest_text(distances: &[BoardDistance]) -> String {
    let at = |name: &str| -> Vec<String> {
        let boards = distances.iter().filter(|board| board.distance == name);
        boards.map(|board| format!("GPU {}", board.gpu_index)).collect()
    };
    let nearest = DISTANCES.into_iter().map(|name| (name, at(name))).find(|(_, boards)| !boards.is_empty());
    nearest.map_or_else(|| "unknown".to_owned(), |(name, boards)| format!("{} ({name})", boards.join(", ")))
}

fn row(port: &RdmaPort) -> AnyView {
    let name = format!("{} port {}", port.device, port.port);
    let interfaces = port.interfaces.join(", ");
    let numa = port.numa_node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
    let (state, link, rate) = (port.state.clone(), port.link_layer.clone(), rate_text(port.rate_mbps));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}<span class="table__sub">{interfaces}</span></th>
            <td role="cell" data-label="State">{state}</td>
            <td role="cell" data-label="Link layer">{link}</td>
            <td role="cell" class="num" data-label="Rate">{rate}</td>
            <td role="cell" class="num" data-label="NUMA node">{numa}</td>
            <td role="cell" data-label="Nearest GPUs">{nearest_text(&port.distances)}</td>
        </tr>
    }
    .into_any()
}

/// Returns the section of the RDMA ports; nothing for a node without ports.
pub fn rdma_section(ports: &[RdmaPort]) -> Option<AnyView> {
    if ports.is_empty() {
        return None;
    }
    let heads = [
        ("Port", ""),
        ("State", ""),
        ("Link layer", ""),
        ("Rate", "num"),
        ("NUMA node", "num"),
        ("Nearest GPUs", ""),
    ];
    let table = table_of("RDMA ports", &heads, ports.iter().map(row).collect());
    let section = view! {
        <section class="section">
            <div class="section__head">
                <h2>"RDMA ports"</h2>
                <div class="section__aside">"As reported when the worker connected"</div>
            </div>
            {table}
        </section>
    };
    Some(section.into_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_their_unit() {
        let texts = [400_000, 2_500, 100, 0].map(rate_text);
        assert_eq!(texts, ["400 Gb/s", "2.5 Gb/s", "0.1 Gb/s", "unknown"]);
    }

    #[test]
    fn the_nearest_boards_are_named() {
        let distance =
            |(gpu_index, distance): (u32, &str)| BoardDistance { gpu_index, distance: distance.to_owned() };
        let far = [(0, "NODE"), (1, "PIX"), (2, "PIX"), (3, "SYS")].map(distance);
        assert_eq!(nearest_text(&far), "GPU 1, GPU 2 (PIX)");
        assert_eq!(nearest_text(&[]), "unknown");
    }
}
