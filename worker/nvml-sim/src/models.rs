//! Board models of the simulation beyond the tables: boards without MIG, and boards that differ from the tables.

use std::sync::OnceLock;

use berth_mig::{Board, board_by_name};

/// A board without MIG.
fn plain(model: &str, name: &str, total_memory_mib: u64, compute_capability: &str) -> Board {
    Board {
        model: model.to_owned(),
        names: vec![name.to_owned()],
        total_memory_mib,
        memory_slices: 1,
        compute_slices: 0,
        live_toggle: false,
        gpm: false,
        compute_capability: compute_capability.to_owned(),
        profiles: Vec::new(),
    }
}

/// An H100 whose driver differs from the table: it lacks the media profile, and its smallest profile starts at even
/// slices only.
fn odd() -> Option<Board> {
    let mut board = board_by_name("H100-80GB")?.clone();
    board.model = "H100-ODD".to_owned();
    board.profiles.retain(|profile| !profile.name.ends_with("+me"));
    let smallest = board.profiles.iter_mut().find(|profile| profile.name == "1g.10gb")?;
    smallest.starts.retain(|start| start % 2 == 0);
    Some(board)
}

/// A board of the future: its name is in no table, and it has MIG.
fn future() -> Option<Board> {
    let board = board_by_name("H100-80GB")?.clone();
    let (model, names) = ("Z900-96GB".to_owned(), vec!["NVIDIA Z900 96GB".to_owned()]);
    Some(Board { model, names, total_memory_mib: 98_304, ..board })
}

fn others() -> &'static [Board] {
    static OTHERS: OnceLock<Vec<Board>> = OnceLock::new();
    OTHERS.get_or_init(|| {
        let plain = [
            plain("T4", "Tesla T4", 15_360, "7.5"),
            plain("V100", "Tesla V100-SXM2-16GB", 16_384, "7.0"),
            plain("A10", "NVIDIA A10", 23_028, "8.6"),
            plain("L4", "NVIDIA L4", 23_034, "8.9"),
            plain("L40S", "NVIDIA L40S", 46_068, "8.9"),
            plain("RTX-4090", "NVIDIA GeForce RTX 4090", 24_564, "8.9"),
        ];
        plain.into_iter().chain(odd()).chain(future()).collect()
    })
}

/// Finds a board by the names of [`board_by_name`], or a model of this module. Case does not matter.
pub fn sim_board(model: &str) -> Option<&'static Board> {
    let other = || others().iter().find(|board| board.model.eq_ignore_ascii_case(model));
    board_by_name(model).or_else(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_beyond_the_tables_are_found() {
        for model in ["T4", "l40s", "H100-ODD", "Z900-96GB"] {
            assert!(sim_board(model).is_some(), "{model}");
        }
        assert!(sim_board("A30").is_some() && sim_board("Voodoo").is_none());
        assert!(board_by_name("NVIDIA L40S").is_none() && board_by_name("NVIDIA Z900 96GB").is_none());
    }
}
