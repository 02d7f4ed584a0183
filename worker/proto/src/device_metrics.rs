//! Readings of boards as metrics, under the names and labels of NVIDIA's DCGM exporter.

use berth_contract::exposition::{Exposition, Family};

use crate::Reading;

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: "gauge", help }
}

pub const SM_CLOCK: Family = gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).");
pub const MEM_CLOCK: Family = gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).");
pub const GPU_TEMP: Family = gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).");
pub const POWER_USAGE: Family = gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).");
pub const ENERGY: Family = Family {
    name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    kind: "counter",
    help: "Total energy consumption since the driver was loaded (in mJ).",
};
/// Only of boards without MIG mode: under MIG it has no meaning.
pub const GPU_UTIL: Family = gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).");
pub const FB_FREE: Family = gauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).");
pub const FB_USED: Family = gauge("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).");
pub const ENGINE_ACTIVE: Family =
    gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active (0 to 1).");

/// The metric families of boards and slices, in the order of the output.
pub const DEVICE_FAMILIES: [Family; 9] =
    [SM_CLOCK, MEM_CLOCK, GPU_TEMP, POWER_USAGE, ENERGY, GPU_UTIL, FB_FREE, FB_USED, ENGINE_ACTIVE];

/// The device of a reading, for its labels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Device<'a> {
    /// The index of the board on its host.
    pub gpu: u32,
    /// The UUID of the board.
    pub uuid: &'a str,
    /// The model name of the driver.
    pub model: &'a str,
    pub host: &'a str,
    /// The NVML id of the GPU instance and its profile, such as 1g.10gb; absent for a whole board.
    pub instance: Option<(u32, &'a str)>,
    /// The job on the device, if there is exactly one.
    pub job: Option<&'a str>,
    pub organization: Option<&'a str>,
}

/// Adds the readings of a board or a slice; absent readings add nothing.
pub fn add_device(out: &mut Exposition, device: &Device<'_>, reading: &Reading) {
    let (gpu, name) = (device.gpu.to_string(), format!("nvidia{}", device.gpu));
    let instance = device.instance.map(|(id, profile)| (id.to_string(), profile));
    let mut labels = vec![
        ("gpu", gpu.as_str()),
        ("UUID", device.uuid),
        ("device", name.as_str()),
        ("modelName", device.model),
    ];
    if let Some((id, profile)) = &instance {
        labels.extend([("GPU_I_PROFILE", *profile), ("GPU_I_ID", id.as_str())]);
    }
    labels.push(("Hostname", device.host));
    labels.extend(device.job.map(|job| ("job", job)));
    labels.extend(device.organization.map(|organization| ("organization", organization)));
    let free = reading.memory_used_mib.map(|used| (reading.memory_total_mib - used).max(0.0));
    let board = instance.is_none();
    let values = [
        (SM_CLOCK, reading.sm_clock_mhz.filter(|_| board)),
        (MEM_CLOCK, reading.memory_clock_mhz.filter(|_| board)),
        (GPU_TEMP, reading.temperature_celsius.filter(|_| board)),
        (POWER_USAGE, reading.power_watts.filter(|_| board)),
        (ENERGY, reading.energy_millijoules.filter(|_| board)),
        // Under MIG the driver reports no utilization; slices have `ENGINE_ACTIVE`.
        (GPU_UTIL, reading.utilization_percent.filter(|_| board)),
        (FB_FREE, free),
        (FB_USED, reading.memory_used_mib),
        (ENGINE_ACTIVE, reading.engine_active),
    ];
    for (family, value) in values {
        if let Some(value) = value {
            out.add(family, &labels, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading() -> Reading {
        Reading {
            utilization_percent: Some(41.0),
            memory_used_mib: Some(1_000.0),
            memory_total_mib: 9_984.0,
            power_watts: Some(350.5),
            temperature_celsius: Some(61.0),
            sm_clock_mhz: Some(1_980.0),
            memory_clock_mhz: None,
            energy_millijoules: None,
            engine_active: Some(0.41),
            ..Reading::default()
        }
    }

    #[test]
    fn a_slice_is_told_under_the_names_of_the_exporter() {
        let mut out = Exposition::default();
        let device = Device {
            gpu: 3,
            uuid: "GPU-1",
            model: "NVIDIA H100 80GB HBM3",
            host: "quay",
            instance: Some((9, "1g.10gb")),
            job: Some("job_1"),
            organization: Some("org_1"),
        };
        add_device(&mut out, &device, &reading());
        let labels = "{gpu=\"3\",UUID=\"GPU-1\",device=\"nvidia3\",modelName=\"NVIDIA H100 80GB HBM3\",\
                      GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"9\",Hostname=\"quay\",job=\"job_1\",organization=\"org_1\"}";
        let expected = [
            "# HELP DCGM_FI_DEV_FB_FREE Framebuffer memory free (in MiB).".to_owned(),
            "# TYPE DCGM_FI_DEV_FB_FREE gauge".to_owned(),
            format!("DCGM_FI_DEV_FB_FREE{labels} 8984"),
            "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).".to_owned(),
            "# TYPE DCGM_FI_DEV_FB_USED gauge".to_owned(),
            format!("DCGM_FI_DEV_FB_USED{labels} 1000"),
            "# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active (0 to 1)."
                .to_owned(),
            "# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge".to_owned(),
            format!("DCGM_FI_PROF_GR_ENGINE_ACTIVE{labels} 0.41"),
        ];
        assert_eq!(out.text().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_board_under_mig_tells_no_utilization_and_families_stay_together() {
        let mut out = Exposition::default();
        let under_mig = Reading { utilization_percent: None, engine_active: None, ..reading() };
        add_device(&mut out, &Device { gpu: 0, uuid: "GPU-a", ..Device::default() }, &under_mig);
        add_device(&mut out, &Device { gpu: 1, uuid: "GPU-b", ..Device::default() }, &under_mig);
        let text = out.text();
        assert!(
            !text.contains("GPU_UTIL") && !text.contains("ENGINE_ACTIVE") && !text.contains("job="),
            "{text}"
        );
        assert_eq!(text.matches("# TYPE DCGM_FI_DEV_POWER_USAGE gauge").count(), 1, "{text}");
        assert!(text.contains("POWER_USAGE{gpu=\"0\",UUID=\"GPU-a\""), "{text}");
    }
}
