//! The cache as metrics of its host.

use berth_contract::exposition::{Exposition, Family};

use super::file_cache::CacheTotals;

const FILES: Family =
    Family { name: "berth_worker_cache_files", kind: "gauge", help: "Files in the cache of this host." };
const BYTES: Family = Family {
    name: "berth_worker_cache_bytes",
    kind: "gauge",
    help: "Bytes of the files in the cache of this host.",
};
const HITS: Family = Family {
    name: "berth_worker_cache_hits_total",
    kind: "counter",
    help: "Files of volumes that attempts got from the cache of this host.",
};
const HIT_BYTES: Family = Family {
    name: "berth_worker_cache_hit_bytes_total",
    kind: "counter",
    help: "Bytes of files of volumes that attempts got from the cache of this host.",
};
const MISSES: Family = Family {
    name: "berth_worker_cache_misses_total",
    kind: "counter",
    help: "Files of volumes that were absent from the cache of this host.",
};
const EVICTIONS: Family = Family {
    name: "berth_worker_cache_evictions_total",
    kind: "counter",
    help: "Files that the cache of this host removed for others or for free space.",
};

/// Adds the counts of the cache.
pub fn add_cache(out: &mut Exposition, totals: CacheTotals) {
    let CacheTotals { files, bytes, hits, hit_bytes, misses, evictions } = totals;
    for (family, value) in [
        (FILES, files),
        (BYTES, bytes),
        (HITS, hits),
        (HIT_BYTES, hit_bytes),
        (MISSES, misses),
        (EVICTIONS, evictions),
    ] {
        out.add(family, &[], value as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_own_row() {
        let totals = CacheTotals { files: 1, bytes: 2, hits: 3, hit_bytes: 4, misses: 5, evictions: 6 };
        let mut out = Exposition::default();
        add_cache(&mut out, totals);
        let text = out.text();
        for (name, value) in
            [("files", 1), ("bytes", 2), ("hits_total", 3), ("hit_bytes_total", 4), ("misses_total", 5)]
        {
            assert!(text.contains(&format!("\nberth_worker_cache_{name} {value}\n")), "{name}: {text}");
        }
        assert!(text.ends_with("berth_worker_cache_evictions_total 6\n"), "{text}");
    }
}
