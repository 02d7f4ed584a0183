//! Facts and readings of a board as texts. Pure.

use berth_types::health::{FabricState, GpuFabric, GpuHealth};

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Returns a mode and its pending change: `on`, `on, off after a reset`.
fn mode_text(now: Option<bool>, pending: Option<bool>) -> Option<String> {
    let now = now?;
    Some(match pending {
        Some(then) if then != now => format!("{}, {} after a reset", on_off(now), on_off(then)),
        _ => on_off(now).to_owned(),
    })
}

/// Returns `3 corrected, 0 uncorrected`; `None` without a reported number.
fn count_text(corrected: Option<u64>, uncorrected: Option<u64>) -> Option<String> {
    match (corrected, uncorrected) {
        (None, None) => None,
        (corrected, uncorrected) => {
            let number = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
            Some(format!("{} corrected, {} uncorrected", number(corrected), number(uncorrected)))
        }
    }
}

/// Returns the reasons of reduced clocks. The bits are `nvmlClocksEventReason*` of NVML.
fn throttle_text(bits: u64) -> String {
    const REASONS: [(u64, &str); 9] = [
        (0x1, "idle"),
        (0x2, "application clocks"),
        (0x4, "power limit"),
        (0x8, "hardware slowdown"),
        (0x10, "sync boost"),
        (0x20, "software thermal slowdown"),
        (0x40, "hardware thermal slowdown"),
        (0x80, "power brake"),
        (0x100, "display clocks"),
    ];
    let found: Vec<&str> = REASONS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, text)| *text).collect();
    if found.is_empty() { "none".to_owned() } else { found.join(", ") }
}

/// Returns the state of the fabric: `ready, clique 1`.
fn fabric_text(fabric: &GpuFabric) -> String {
    match fabric.state {
        FabricState::NotStarted => "registration not started".to_owned(),
        FabricState::InProgress => "registration in progress".to_owned(),
        FabricState::Completed if fabric.status == 0 => format!("ready, clique {}", fabric.clique),
        FabricState::Completed => format!("registration failed with error {} of NVML", fabric.status),
    }
}

/// Returns the power with its limit: `612 W of 700 W`.
fn power_text(gpu: &GpuHealth) -> Option<String> {
    let power = gpu.power_watts?;
    Some(match gpu.facts.power_limit_watts {
        Some(limit) => format!("{power:.0} W of {limit} W"),
        None => format!("{power:.0} W"),
    })
}

/// Lists the readings and facts of a board. A missing temperature, power or utilization is said; other facts
/// that the driver does not report are left out.
pub fn pairs(gpu: &GpuHealth) -> Vec<(&'static str, String)> {
    let latest = |value: Option<String>| Some(value.unwrap_or_else(|| "no reading".to_owned()));
    let (facts, reading) = (&gpu.facts, &gpu.reading);
    let rows = count_text(facts.rows_corrected.map(u64::from), facts.rows_uncorrected.map(u64::from));
    let clocks = match (reading.sm_clock_mhz, reading.memory_clock_mhz) {
        (Some(sm), Some(memory)) => Some(format!("SM {sm:.0} MHz, memory {memory:.0} MHz")),
        (Some(sm), None) => Some(format!("SM {sm:.0} MHz")),
        _ => None,
    };
    let traffic = |received: Option<f64>, sent: Option<f64>, unit: &str| {
        Some(format!("{:.0} {unit} received, {:.0} {unit} sent", received?, sent?))
    };
    let all = [
        ("Temperature", latest(gpu.temperature_celsius.map(|degrees| format!("{degrees:.0} °C")))),
        ("Power", latest(power_text(gpu))),
        ("Utilization", latest(gpu.utilization_percent.map(|percent| format!("{percent:.0} %")))),
        ("UUID", Some(gpu.uuid.clone())),
        ("PCI address", facts.pci_bus_id.clone()),
        ("Serial number", facts.serial.clone()),
        ("VBIOS", facts.vbios.clone()),
        ("Memory", Some(format!("{} MiB", gpu.memory_mib))),
        ("Compute capability", facts.compute_capability.clone()),
        ("Power limit", facts.power_limit_watts.map(|watts| format!("{watts} W"))),
        ("Active NVLinks", (facts.nvlinks > 0).then(|| facts.nvlinks.to_string())),
        ("NVLink fabric", facts.fabric.as_ref().map(fabric_text)),
        ("MIG", mode_text(facts.mig, facts.mig_pending)),
        (
            "MIG profiles of the driver",
            (!facts.mig_differences.is_empty()).then(|| facts.mig_differences.join(" ")),
        ),
        ("ECC", mode_text(facts.ecc, facts.ecc_pending)),
        ("ECC errors since driver load", count_text(facts.ecc_corrected, facts.ecc_uncorrected)),
        ("Row remaps by error", rows),
        ("Clocks", clocks),
        ("Clock limits", reading.throttle_reasons.map(throttle_text)),
        ("PCIe", traffic(reading.pcie_received_kb_s, reading.pcie_sent_kb_s, "kB/s")),
        ("NVLink", traffic(reading.nvlink_received_kib_s, reading.nvlink_sent_kib_s, "KiB/s")),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn gpu(more: serde_json::Value) -> GpuHealth {
        let mut whole = serde_json::json!({
            "uuid": "GPU-1", "node": "node_00000000000000000000000001", "index": 0, "model": "H100-80GB",
            "memory_mib": 81559, "present": true, "mig_enabled": false, "facts": {"nvlinks": 0}, "reading": {},
        });
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn unreported_facts_are_absent() {
        let names = |gpu: &GpuHealth| pairs(gpu).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let none = gpu(serde_json::json!({}));
        assert_eq!(names(&none), ["Temperature", "Power", "Utilization", "UUID", "Memory"]);
        let differs = gpu(serde_json::json!({"facts": {"nvlinks": 0, "mig_differences": ["One.", "Two."]}}));
        assert!(pairs(&differs).contains(&("MIG profiles of the driver", "One. Two.".to_owned())));
        assert!(pairs(&none).contains(&("Power", "no reading".to_owned())));
        let fabric = |state: &str, status: u32| {
            let fabric = serde_json::json!({"state": state, "status": status, "clique": 1});
            let board = gpu(serde_json::json!({"facts": {"nvlinks": 18, "fabric": fabric}}));
            pairs(&board).into_iter().find(|(name, _)| *name == "NVLink fabric").unwrap().1
        };
        assert_eq!(fabric("completed", 0), "ready, clique 1");
        assert_eq!(fabric("completed", 9), "registration failed with error 9 of NVML");
        assert_eq!(fabric("in_progress", 0), "registration in progress");
        let facts = serde_json::json!({"nvlinks": 18, "ecc": true, "ecc_pending": false, "ecc_corrected": 0});
        let shown = pairs(&gpu(serde_json::json!({"facts": facts, "reading": {"sm_clock_mhz": 1980.0}})));
        assert!(shown.contains(&("Active NVLinks", "18".to_owned())));
        assert!(shown.contains(&("ECC", "on, off after a reset".to_owned())));
        assert!(
            shown.contains(&("ECC errors since driver load", "0 corrected, unknown uncorrected".to_owned()))
        );
        assert!(shown.contains(&("Clocks", "SM 1980 MHz".to_owned())));
    }

    #[test]
    fn readings_have_their_units() {
        let read = gpu(serde_json::json!({
            "power_watts": 612.4, "temperature_celsius": 61.0, "utilization_percent": 87.4,
            "facts": {"nvlinks": 0, "power_limit_watts": 700},
        }));
        let shown: Vec<String> = pairs(&read).into_iter().take(3).map(|(_, value)| value).collect();
        assert_eq!(shown, ["61 °C", "612 W of 700 W", "87 %"]);
    }

    #[test]
    fn clock_limits_are_named() {
        assert_eq!(throttle_text(0), "none");
        assert_eq!(throttle_text(0x44), "power limit, hardware thermal slowdown");
        assert_eq!(throttle_text(0x8000), "none");
    }
}
