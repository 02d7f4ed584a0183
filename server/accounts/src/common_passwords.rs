//! Breached passwords. `end2end/tools/common_passwords.py` makes their list, and describes its source.

use berth_foundation::credentials::digest;

const PREFIX_BYTES: usize = 5;
/// The first bytes of the SHA-256 of each password in lower case, in ascending order.
static PREFIXES: &[u8] = include_bytes!("common_passwords.bin");

fn prefixes() -> &'static [[u8; PREFIX_BYTES]] {
    PREFIXES.as_chunks::<PREFIX_BYTES>().0
}

/// True for the 100,000 commonest breached passwords of the permitted length, in upper or lower case. Of other
/// passwords one in ten million counts too.
pub fn is_common(password: &str) -> bool {
    let hash = digest(&password.to_lowercase());
    hash.first_chunk::<PREFIX_BYTES>().is_some_and(|prefix| prefixes().binary_search(prefix).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_100_000_passwords_in_order() {
        assert_eq!(PREFIXES.len(), 100_000 * PREFIX_BYTES);
        assert!(prefixes().is_sorted());
    }

    #[test]
    fn breached_passwords_are_found_in_any_case() {
        for breached in ["mychemicalromance", "NuncaTeOlvidare", "AMIGASPORSIEMPRE", "steauabucuresti"] {
            assert!(is_common(breached), "{breached}");
        }
        for other in ["", "lantern quay seven drizzle", "mychemicalromance ", "steauabucurestj"] {
            assert!(!is_common(other), "{other}");
        }
    }
}
