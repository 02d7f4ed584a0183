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
}
