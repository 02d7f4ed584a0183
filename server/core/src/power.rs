//! What boards may draw: of a rack against its budget. Must not place anything.

/// Watts that a board of a model may draw, by its maker's data sheet; `None` for a model that is not known.
pub fn tdp_watts(model: &str) -> Option<i64> {
    const KNOWN: [(&str, i64); 9] = [
        ("A30", 165),
        ("A100-40GB", 400),
        ("A100-80GB", 400),
        ("H100-NVL", 400),
        ("H100", 700),
        ("H200-NVL", 600),
        ("H200", 700),
        ("B200", 1_000),
        ("B300", 1_400),
    ];
    KNOWN.iter().find(|(name, _)| model.starts_with(name)).map(|(_, watts)| *watts)
}

/// What boards of a rack draw and may draw.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    pub boards: u32,
    /// By their latest readings.
    pub drawn_watts: f64,
    /// Boards without a reading.
    pub unread: u32,
    pub limit_watts: i64,
    /// Boards of which nobody knows what they may draw.
    pub unknown: u32,
}

impl Load {
    /// Adds a board.
    pub fn add(&mut self, model: &str, drawn_watts: Option<f64>) {
        self.boards += 1;
        match drawn_watts.filter(|w| w.is_finite() && *w >= 0.0) {
            Some(watts) => self.drawn_watts += watts,
            None => self.unread += 1,
        }
        match tdp_watts(model) {
            Some(watts) => self.limit_watts += watts,
            None => self.unknown += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_is_the_sum_of_its_boards() {
        let mut load = Load::default();
        load.add("H100-80GB", Some(312.5));
        load.add("H100-NVL-94GB", None);
        load.add("abacus", Some(f64::NAN));
        assert_eq!((load.boards, load.unread, load.unknown), (3, 2, 1));
        assert_eq!((load.drawn_watts, load.limit_watts), (312.5, 1_100));
    }

    #[test]
    fn every_model_that_is_cut_into_slices_is_looked_up_by_its_longest_name() {
        assert_eq!(tdp_watts("A100-80GB"), Some(400));
        assert_eq!(tdp_watts("H200-NVL-141GB"), Some(600));
        assert_eq!(tdp_watts("H200-141GB"), Some(700));
        assert_eq!(tdp_watts(""), None);
    }
}
