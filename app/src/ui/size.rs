//! Sizes in binary units. Pure.

/// Returns a size in binary units: `1.5 MiB`.
pub fn size_text(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "bytes";
    for larger in units {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1_024;
        unit = larger;
    }
    match unit {
        "bytes" => format!("{bytes} bytes"),
        unit => format!("{}.{} {unit}", tenths / 10, tenths % 10),
    }
}
