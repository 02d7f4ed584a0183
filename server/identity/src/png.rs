//! A check of PNG images without decoding them.

/// The first bytes of each PNG image.
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Bytes of the first chunk, which has the size of the image.
const HEADER_BYTES: u32 = 13;
/// Bytes of the checksum after each chunk.
const CHECKSUM_BYTES: usize = 4;

/// The size of an image in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PngSize {
    pub width_px: u32,
    pub height_px: u32,
}

/// Reads a big-endian number at the front of `bytes`; returns it with the rest.
fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*number), rest))
}

/// Reads the size of a PNG image. `None` for bytes that are not exactly one image from its signature to its last
/// chunk, so that no other format hides in front of it or behind it.
pub fn parse_size(bytes: &[u8]) -> Option<PngSize> {
    let mut rest = bytes.strip_prefix(SIGNATURE)?;
    let mut size = None;
    loop {
        let (length, after_length) = split_u32(rest)?;
        let (kind, after_kind) = after_length.split_first_chunk::<4>()?;
        let (content, after_content) = after_kind.split_at_checked(usize::try_from(length).ok()?)?;
        let (_checksum, next) = after_content.split_at_checked(CHECKSUM_BYTES)?;
        match (kind, size) {
            (b"IHDR", None) if length == HEADER_BYTES => {
                let (width_px, content) = split_u32(content)?;
                let (height_px, _) = split_u32(content)?;
                size = Some(PngSize { width_px, height_px });
            }
            (b"IHDR", _) | (_, None) => return None,
            (b"IEND", Some(_)) => return size.filter(|_| next.is_empty()),
            _ => {}
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(kind: &[u8], content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [length.as_slice(), kind, content, &[0; CHECKSUM_BYTES]].concat()
    }

    fn header(width: u32, height: u32) -> Vec<u8> {
        chunk(b"IHDR", &[&width.to_be_bytes()[..], &height.to_be_bytes()[..], &[8, 0, 0, 0, 0]].concat())
    }

    fn image(chunks: &[Vec<u8>]) -> Vec<u8> {
        [SIGNATURE, &chunks.concat()].concat()
    }

    #[test]
    fn an_image_has_the_size_of_its_header() {
        let parts = [header(120, 32), chunk(b"IDAT", b"data"), chunk(b"IEND", b"")];
        assert_eq!(parse_size(&image(&parts)), Some(PngSize { width_px: 120, height_px: 32 }));
    }

    #[test]
    fn other_bytes_are_no_image() {
        let (data, end) = (chunk(b"IDAT", b"data"), chunk(b"IEND", b""));
        let whole = image(&[header(1, 1), data.clone(), end.clone()]);
        let trailing = [whole.as_slice(), b"<svg/>"].concat();
        for bytes in [
            b"".to_vec(),
            b"<svg xmlns='http://www.w3.org/2000/svg'/>".to_vec(),
            SIGNATURE.to_vec(),
            image(&[data.clone(), end.clone()]),
            image(&[header(1, 1), header(1, 1), end.clone()]),
            image(&[header(1, 1), data]),
            image(&[chunk(b"IHDR", b"short"), end]),
            trailing,
        ] {
            assert_eq!(parse_size(&bytes), None, "{bytes:?}");
        }
        for length in 0..whole.len() {
            assert_eq!(parse_size(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(parse_size(&[SIGNATURE, &[0xff; 8]].concat()), None, "a chunk longer than the image");
    }
}
