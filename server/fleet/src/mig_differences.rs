//! The differences between the MIG profiles of a board's driver and those of the table by which placements are
//! chosen.

use berth_mig::{Profile, board_by_name};

use crate::reports::DriverProfile;

/// The most sentences about one board.
const MAX_SENTENCES: usize = 16;
/// Drivers differ by a few MiB of their own: up to this part of a hundred is no difference.
const MEMORY_PERCENT: u64 = 10;

fn starts_text(starts: &[u32]) -> String {
    starts.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The difference of one profile of the table; `None`: the driver offers it as the table has it.
fn difference(table: &Profile, offered: &[DriverProfile]) -> Option<String> {
    let name = &table.name;
    let Some(driver) = offered.iter().find(|profile| profile.id == table.id) else {
        return Some(format!("The driver does not offer {name}."));
    };
    if driver.size != table.size {
        return Some(format!(
            "{name} has {} memory slices according to the driver, and {} in the table.",
            driver.size, table.size
        ));
    }
    let mut starts = driver.starts.clone();
    starts.sort_unstable();
    if starts != table.starts {
        return Some(format!(
            "{name} starts at {} according to the driver, and at {} in the table.",
            starts_text(&starts),
            starts_text(&table.starts)
        ));
    }
    let apart = driver.memory_mib.abs_diff(table.memory_mib);
    (apart.saturating_mul(100) > table.memory_mib.saturating_mul(MEMORY_PERCENT)).then(|| {
        format!(
            "{name} has {} MiB according to the driver, and {} MiB in the table.",
            driver.memory_mib, table.memory_mib
        )
    })
}

/// Lists the differences as sentences. A driver that offers no profile has none.
pub fn list(model: &str, offered: &[DriverProfile]) -> Vec<String> {
    if offered.is_empty() {
        return Vec::new();
    }
    let Some(board) = board_by_name(model) else {
        return vec!["No MIG table has this model, so its slices are not sold.".to_owned()];
    };
    let unknown = offered.iter().filter(|profile| board.profile(profile.id).is_none());
    let unknown = unknown.map(|profile| {
        format!("The driver offers {} (profile {}), which the table does not have.", profile.name, profile.id)
    });
    let known = board.profiles.iter().filter_map(|profile| difference(profile, offered));
    known.chain(unknown).take(MAX_SENTENCES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered() -> Vec<DriverProfile> {
        let profile = |p: &Profile| DriverProfile {
            id: p.id,
            name: p.name.clone(),
            size: p.size,
            starts: p.starts.clone(),
            memory_mib: p.memory_mib + 3,
        };
        board_by_name("H100-80GB").unwrap().profiles.iter().map(profile).collect()
    }

    #[test]
    fn only_a_difference_is_a_finding() {
        assert!(list("H100-80GB", &offered()).is_empty());
        assert!(list("H100-80GB", &[]).is_empty(), "a board without MIG mode reports none");
        assert_eq!(
            list("Z900-96GB", &offered()),
            ["No MIG table has this model, so its slices are not sold."]
        );
        let mut other = offered();
        let at = |name: &str, all: &[DriverProfile]| all.iter().position(|p| p.name == name).unwrap();
        let (media, small) = (at("1g.10gb+me", &other), at("1g.10gb", &other));
        other[small].starts = vec![4, 0, 2];
        other[media].id = 77;
        assert_eq!(
            list("H100-80GB", &other),
            [
                "1g.10gb starts at 0, 2, 4 according to the driver, and at 0, 1, 2, 3, 4, 5, 6 in the table.",
                "The driver does not offer 1g.10gb+me.",
                "The driver offers 1g.10gb+me (profile 77), which the table does not have.",
            ]
        );
        other.iter_mut().for_each(|profile| profile.memory_mib *= 2);
        assert!(list("H100-80GB", &other).iter().any(|text| text.contains("MiB according to the driver")));
    }
}
