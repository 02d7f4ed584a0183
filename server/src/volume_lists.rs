//! The encoding of the lists with which workers hand over volumes.

use berth_proto::{self as proto, Message};
use berth_storage::volumes::HandedOverFile;

/// Decodes the list of the files that a worker hands over for a volume; `None` for bytes that are no list.
pub(crate) fn decode_list(list: &[u8]) -> Option<Vec<HandedOverFile>> {
    let file = |file: proto::VolumeFile| HandedOverFile {
        path: file.path,
        bytes: file.bytes,
        sha256: file.sha256,
        executable: file.executable,
    };
    Some(proto::VolumeManifest::decode(list).ok()?.files.into_iter().map(file).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_is_decoded_and_other_bytes_are_not() {
        let file = proto::VolumeFile {
            path: "a/b".to_owned(),
            bytes: 60,
            sha256: vec![7; 32],
            executable: true,
            ..proto::VolumeFile::default()
        };
        let listed =
            HandedOverFile { path: "a/b".to_owned(), bytes: 60, sha256: vec![7; 32], executable: true };
        assert_eq!(
            decode_list(&proto::VolumeManifest { files: vec![file] }.encode_to_vec()),
            Some(vec![listed])
        );
        assert_eq!(decode_list(b""), Some(Vec::new()), "an empty volume has an empty list");
        assert_eq!(decode_list(b"\xff\xff"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_or_none(
            files in prop::collection::vec(("(?s).{0,20}", any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)), 0..5),
            at in any::<prop::sample::Index>(),
            damage in prop::collection::vec(any::<u8>(), 0..6),
        ) {
            let listed = files.into_iter().map(|(path, bytes, sha256)| {
                HandedOverFile { path, bytes, sha256, executable: bytes % 2 == 1 }
            });
            let listed: Vec<HandedOverFile> = listed.collect();
            let file = |file: &HandedOverFile| proto::VolumeFile {
                path: file.path.clone(),
                bytes: file.bytes,
                sha256: file.sha256.clone(),
                executable: file.executable,
                ..proto::VolumeFile::default()
            };
            let list = proto::VolumeManifest { files: listed.iter().map(file).collect() }.encode_to_vec();
            let (before, after) = list.split_at(at.index(list.len() + 1));
            // No file of a list has less than two bytes in it.
            let most = (list.len() + damage.len()) / 2;
            let damaged = decode_list(&[before, damage.as_slice(), after].concat());
            prop_assert!(damaged.is_none_or(|files| files.len() <= most));
            prop_assert_eq!(decode_list(&list), Some(listed));
        }
    }
}
