//! The board models and their MIG profiles. The figures are from NVIDIA's MIG User Guide (profile tables).

use std::sync::OnceLock;

use serde::Deserialize;

/// A GPU instance profile of one board model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Profile {
    /// The `NVML_GPU_INSTANCE_PROFILE_*` argument of the profile-info call; different from `id`.
    pub index: u32,
    /// The id in NVML's reports and in its calls for creation, placement and capacity. It differs by board.
    pub id: u32,
    /// For example `1g.10gb`.
    pub name: String,
    /// Number of compute slices.
    pub compute: u32,
    /// Number of memory slices.
    pub size: u32,
    pub memory_mib: u64,
    /// Number of multiprocessors.
    pub sm: u32,
    pub copy_engines: u32,
    pub decoders: u32,
    pub encoders: u32,
    pub jpeg: u32,
    pub ofa: u32,
    /// Greatest number of instances on one board.
    pub max: u32,
    /// The exclusive group: a board has at most one instance of each group (media engines).
    pub group: Option<String>,
    /// Memory slices at which an instance may start.
    pub starts: Vec<u32>,
    /// The compute instance profile that fills the GPU instance.
    pub ci_profile: u32,
}

/// A board model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Board {
    /// For example `H100-80GB`.
    pub model: String,
    /// The names in NVML.
    pub names: Vec<String>,
    pub total_memory_mib: u64,
    pub memory_slices: u32,
    pub compute_slices: u32,
    /// True if the MIG mode changes without a GPU reset (Hopper and later).
    pub live_toggle: bool,
    /// True if the utilization of each instance can be read (GPM; Hopper and later).
    pub gpm: bool,
    /// For example `9.0`.
    pub compute_capability: String,
    pub profiles: Vec<Profile>,
}

impl Board {
    pub fn profile(&self, id: u32) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.id == id)
    }

    pub fn profile_by_name(&self, name: &str) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.name == name)
    }

    /// The profile that takes the whole board.
    pub fn full_profile(&self) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.size == self.memory_slices && p.group.is_none())
    }
}

/// All known board models.
pub fn boards() -> &'static [Board] {
    static BOARDS: OnceLock<Vec<Board>> = OnceLock::new();
    // The table is part of the program, and a test reads it. So the empty default never occurs.
    BOARDS.get_or_init(|| serde_json::from_str(include_str!("../boards.json")).unwrap_or_default())
}

/// True if a board can be used whole: it is out of MIG mode, or its model leaves the mode without a reset.
pub fn is_usable_whole(model: &str, mig_enabled: bool) -> bool {
    !mig_enabled || board_by_name(model).is_some_and(|board| board.live_toggle)
}

/// Finds a board by its model (`H100-80GB`), by the first part of its model (`A30`), or by its name in NVML
/// (`NVIDIA H100 80GB HBM3`). Case does not matter.
pub fn board_by_name(name: &str) -> Option<&'static Board> {
    let is_name = |a: &str| a.eq_ignore_ascii_case(name);
    let is_prefix_of = |a: &str| {
        a.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name))
            && a.as_bytes().get(name.len()) == Some(&b'-')
    };
    boards()
        .iter()
        .find(|b| is_name(&b.model) || b.names.iter().any(|n| is_name(n)))
        .or_else(|| boards().iter().find(|b| is_prefix_of(&b.model)))
}

/// The most bytes of a model without a table.
const MAX_MODEL_BYTES: usize = 64;

/// The model of a board by its name in NVML: that of the table, or the name without its maker, such as `L40S` for
/// `NVIDIA L40S`, in letters, digits, points and hyphens. `None` for a name without any of them.
pub fn model_by_name(name: &str) -> Option<String> {
    if let Some(board) = board_by_name(name) {
        return Some(board.model.clone());
    }
    let plain = |name: &str| {
        let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-');
        let mut model = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
        model.truncate(MAX_MODEL_BYTES);
        model
    };
    let short = ["NVIDIA ", "Tesla "].iter().find_map(|maker| name.strip_prefix(*maker)).unwrap_or(name);
    // A short name must not be that of a table: the board is another one.
    let names = [plain(short), plain(name)];
    names.into_iter().find(|model| !model.is_empty() && board_by_name(model).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_without_a_table_has_a_model_of_its_own() {
        let model = |name: &str| model_by_name(name).unwrap_or_default();
        assert_eq!(model("NVIDIA H100 80GB HBM3"), "H100-80GB");
        assert_eq!(model("NVIDIA L40S"), "L40S");
        assert_eq!(model("Tesla V100-SXM2-16GB"), "V100-SXM2-16GB");
        assert_eq!(model("NVIDIA GeForce RTX 4090"), "GeForce-RTX-4090");
        assert_eq!(model("NVIDIA H100"), "NVIDIA-H100", "not that of the table");
        assert_eq!(model("\u{0}a/b\u{e9}"), "a-b");
        assert_eq!((model_by_name(""), model_by_name("//")), (None, None));
        assert_eq!(model(&"x".repeat(900)).len(), MAX_MODEL_BYTES);
    }

    #[test]
    fn the_table_is_consistent() {
        assert_eq!(boards().len(), 13);
        for board in boards() {
            assert!(board.full_profile().is_some(), "{}", board.model);
            for profile in &board.profiles {
                assert!(!profile.starts.is_empty());
                for start in &profile.starts {
                    assert!(start + profile.size <= board.memory_slices, "{} {}", board.model, profile.name);
                }
                let same_id = board.profiles.iter().filter(|p| p.id == profile.id).count();
                assert_eq!(same_id, 1, "{} id {}", board.model, profile.id);
            }
        }
    }

    #[test]
    fn boards_are_found_by_any_of_their_names() {
        for name in ["H100-80GB", "h100-80gb", "NVIDIA H100 80GB HBM3"] {
            assert_eq!(board_by_name(name).unwrap().model, "H100-80GB");
        }
        assert_eq!(board_by_name("A30").unwrap().model, "A30-24GB");
        assert_eq!(board_by_name("").map(|b| &b.model), None);
        assert_eq!(board_by_name("A"), None);
    }
}
