//! Archives of a damaged or hostile sender: nothing outside of the directory changes.

use berth_job_files::transfer::archive::unpack;
use berth_job_files::transfer::tree::open_root;
use proptest::prelude::*;

const BLOCK: usize = 512;

/// An entry of an archive, in a form that no packed directory has.
#[derive(Debug, Clone)]
struct Part {
    name: String,
    kind: u8,
    link: String,
    content: Vec<u8>,
    /// The length in the header.
    bytes: u64,
    /// A pax record before the entry.
    record: Option<(String, String)>,
}

fn name() -> impl Strategy<Value = String> {
    let parts = vec!["a", "b", "..", ".", "", "out", "in", "\u{e9}"];
    prop_oneof![
        4 => prop::collection::vec(prop::sample::select(parts), 1..4).prop_map(|parts| parts.join("/")),
        1 => "(?s).{0,20}",
        1 => Just("d/".repeat(60) + "e"),
    ]
}

fn record() -> impl Strategy<Value = (String, String)> {
    let size = prop_oneof!["[0-9]{0,20}", "-?[0-9]{1,3}"];
    prop_oneof![
        name().prop_map(|name| ("path".to_owned(), name)),
        size.prop_map(|size| ("size".to_owned(), size)),
        "7[0-7]{2}".prop_map(|mode| ("comment".to_owned(), format!("berth-mode:{mode}"))),
        ("(?s).{0,8}", "(?s).{0,20}"),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    let kind = prop::sample::select(b"000555222x1g\0".to_vec());
    let bytes = prop_oneof![
        4 => Just(None::<u64>),
        1 => (0u64..2_000).prop_map(Some),
        1 => any::<u64>().prop_map(Some),
    ];
    let content = prop::collection::vec(any::<u8>(), 0..700);
    (name(), kind, name(), content, bytes, prop::option::of(record())).prop_map(
        |(name, kind, link, content, bytes, record)| {
            let bytes = bytes.unwrap_or(content.len() as u64);
            Part { name, kind, link, content, bytes, record }
        },
    )
}

/// A ustar header with a right sum. Long texts are cut.
fn header(name: &str, kind: u8, bytes: u64, link: &str) -> Vec<u8> {
    let mut header = vec![0; BLOCK];
    let mut put = |at: usize, most: usize, text: &[u8]| {
        let length = text.len().min(most);
        header[at..at + length].copy_from_slice(&text[..length]);
    };
    put(0, 100, name.as_bytes());
    put(100, 8, b"0000755");
    // Eleven octal digits.
    put(124, 12, format!("{:011o}", bytes & ((1 << 33) - 1)).as_bytes());
    put(136, 12, b"00000000000");
    put(148, 8, b"        ");
    put(156, 1, &[kind]);
    put(157, 100, link.as_bytes());
    put(257, 8, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    header[154] = 0;
    header
}

/// The content, filled up to whole blocks.
fn blocks(content: &[u8]) -> Vec<u8> {
    let mut blocks = content.to_vec();
    blocks.resize(content.len().next_multiple_of(BLOCK), 0);
    blocks
}

fn archive(parts: &[Part]) -> Vec<u8> {
    let mut archive: Vec<u8> = Vec::new();
    for part in parts {
        if let Some((key, value)) = &part.record {
            // The length counts itself. All have three digits.
            let rest = format!(" {key}={value}\n");
            let record = format!("{:03}{rest}", rest.len() + 3);
            archive.extend(header("pax", b'x', record.len() as u64, ""));
            archive.extend(blocks(record.as_bytes()));
        }
        archive.extend(header(&part.name, part.kind, part.bytes, &part.link));
        archive.extend(blocks(&part.content));
    }
    archive.extend([0; 2 * BLOCK]);
    archive
}

proptest! {
    #[test]
    fn no_archive_leads_out_of_its_directory(
        parts in prop::collection::vec(part(), 0..6),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut bytes = archive(&parts);
        if let Some((at, byte)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("in");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("out"), "kept").unwrap();
        // The entries before a fault stay, so both results are right.
        let _ = unpack(bytes.as_slice(), &open_root(&root).unwrap());
        let mut names: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        prop_assert_eq!(names, ["in", "out"]);
        prop_assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "kept");
    }

    #[test]
    fn a_plain_archive_is_unpacked(names in prop::collection::btree_set("[a-z]{1,8}", 1..4), content in "(?s).{0,600}") {
        let long = |name: &str| format!("{}{name}", "d/".repeat(60));
        let parts: Vec<Part> = names
            .iter()
            .map(|name| Part {
                name: "short".to_owned(),
                kind: b'0',
                link: String::new(),
                content: content.clone().into_bytes(),
                bytes: content.len() as u64,
                record: Some(("path".to_owned(), long(name))),
            })
            .collect();
        let dir = tempfile::tempdir().unwrap();
        unpack(archive(&parts).as_slice(), &open_root(dir.path()).unwrap()).unwrap();
        for name in &names {
            prop_assert_eq!(std::fs::read_to_string(dir.path().join(long(name))).unwrap(), content.as_str());
        }
    }
}
