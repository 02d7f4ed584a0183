//! The tokens of the replicas of services. A gateway shows its token to the worker of a replica, and the worker has
//! only the hash of the token.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_types::ids::JobId;
use sha2::{Digest, Sha256};

use crate::envelope::Keys;

/// The purpose of the key of all tokens.
const LABEL: &str = "berth replica token 1";

/// The token of a rank of an attempt. It must reach no log.
pub fn replica_token(keys: &Keys, job: JobId, attempt: u32, rank: u32) -> String {
    URL_SAFE_NO_PAD.encode(keys.sign(LABEL, &format!("{job}|{attempt}|{rank}")))
}

/// The hash of a token for the worker.
pub fn replica_token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use uuid::Uuid;

    use super::*;

    #[test]
    fn each_rank_of_each_attempt_has_its_own_token() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(&dir.path().join("secrets.key"), &[]).unwrap();
        let job = |n: u128| JobId::from_uuid(Uuid::from_u128(n));
        let token = |n: u128, attempt: u32, rank: u32| replica_token(&keys, job(n), attempt, rank);
        let all: HashSet<String> =
            [token(1, 1, 0), token(2, 1, 0), token(1, 2, 0), token(1, 1, 1), token(1, 11, 0)].into();
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|token| token.len() == 43));
        let same = Keys::open(&dir.path().join("secrets.key"), &[]).unwrap();
        assert_eq!(replica_token(&same, job(1), 1, 0), token(1, 1, 0));
        assert_ne!(replica_token_hash(&token(1, 1, 0)), replica_token_hash(&token(2, 1, 0)));
    }
}
