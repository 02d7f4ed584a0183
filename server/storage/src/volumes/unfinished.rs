//! Unfinished uploads of a volume: their list, and the refusal of a file for which they leave no room.

use berth_core::volumes::MAX_UPLOADS;
use berth_types::files::FileState;
use berth_types::problems::Problem;
use berth_types::volumes::UnfinishedUpload;

use super::Volumes;
use berth_store::volumes::StoredVolume;
use berth_store::volumes::blobs::StoredBlob;
use berth_store::{self as store, StoreError, Tx};

/// The maximum number of uploads that a refusal names.
const NAMED: usize = 3;

/// The sentence about a file without room in its volume. `used` has the bytes of the other files, `open_uploads`
/// the number and the bytes of the uploads to other paths.
pub(super) async fn no_room(
    tx: &mut Tx<'_>,
    volume: &StoredVolume,
    path: &str,
    used: i64,
    open_uploads: (i64, i64),
) -> Result<String, StoreError> {
    let limit = format!("The limit of the volume {} is {} bytes", volume.name, volume.max_bytes);
    let files = if used > 0 { "Delete some files, or upload less." } else { "Upload less." };
    let (count, bytes) = open_uploads;
    if count == 0 {
        return Ok(format!("{limit}, and {used} bytes are used. Nothing was changed. {files}"));
    }
    let rows = store::volumes::blobs::list_uploads(tx, volume.id, MAX_UPLOADS).await?;
    let paths: Vec<String> = rows.into_iter().map(|row| row.path).filter(|other| other != path).collect();
    let noun = if count == 1 { "upload" } else { "uploads" };
    Ok(format!(
        "{limit}: {used} bytes are used, and {bytes} bytes belong to {count} unfinished {noun} ({}). Nothing was changed. Continue such an upload, or remove it on the page of the volume or with DELETE /volumes/{}/uploads/PATH; the portal removes it 7 days after its last part. {files}",
        named(&paths),
        volume.name
    ))
}

/// The first paths, and the number of the others.
fn named(paths: &[String]) -> String {
    let first: Vec<&str> = paths.iter().take(NAMED).map(String::as_str).collect();
    match paths.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        others => format!("{} and {others} more", first.join(", ")),
    }
}

impl Volumes {
    /// The unfinished uploads with their received bytes.
    pub(super) async fn unfinished_uploads(
        &self,
        rows: Vec<StoredBlob>,
    ) -> Result<Vec<UnfinishedUpload>, Problem> {
        let ids = rows.iter().map(|row| row.id.to_string()).collect();
        let received = self.staging.list_received(ids).await?;
        let unfinished = |(row, received): (StoredBlob, u64)| {
            let bytes = u64::try_from(row.bytes).unwrap_or(0);
            // The bytes of a complete file are in the store.
            let received_bytes = if row.state == FileState::Complete { bytes } else { received };
            UnfinishedUpload { path: row.path, bytes, received_bytes }
        };
        Ok(rows.into_iter().zip(received).map(unfinished).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_few_uploads() {
        let paths = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(named(paths.get(..1).unwrap_or_default()), "a");
        assert_eq!(named(paths.get(..3).unwrap_or_default()), "a, b, c");
        assert_eq!(named(&paths), "a, b, c and 2 more");
    }
}
