//! Volumes of an organization, what is in them, and files on their way into them.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::volumes::{NewUpload, NewVolume, Upload, Volume, VolumeEntry};

use super::escape::escaped;
use super::{Answer, get, list_all, send};

fn base(org: OrgId, name: &str) -> String {
    format!("/orgs/{org}/volumes/{}", escaped(name))
}

/// A path in an address: its parts are escaped, the lines between them are not.
pub fn path_text(path: &str) -> String {
    path.split('/').map(escaped).collect::<Vec<String>>().join("/")
}

/// A text as one value of a query.
pub fn query_text(text: &str) -> String {
    escaped(text)
}

/// The volumes of an organization by name.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Volume>>> + Send + 'static + use<> {
    list_all(format!("/orgs/{org}/volumes"))
}

/// One volume.
pub fn one(org: OrgId, name: &str) -> impl Future<Output = Answer<Volume>> + Send + 'static + use<> {
    get(base(org, name))
}

/// Makes a volume; the same key makes it once.
pub fn create(
    org: OrgId,
    input: &NewVolume,
    key: Option<String>,
) -> impl Future<Output = Answer<Volume>> + Send + 'static {
    send("POST", format!("/orgs/{org}/volumes"), input, key)
}

/// Deletes a volume with everything in it.
pub fn delete(org: OrgId, name: &str) -> impl Future<Output = Answer<()>> + Send + 'static + use<> {
    send("DELETE", base(org, name), &(), None)
}

/// What is in one directory, `""` for the root.
pub fn files(
    org: OrgId,
    name: &str,
    dir: &str,
    cursor: Option<&str>,
) -> impl Future<Output = Answer<Page<VolumeEntry>>> + Send + 'static + use<> {
    let dir = if dir.is_empty() { String::new() } else { format!("&dir={}", escaped(dir)) };
    let cursor = cursor.map(|cursor| format!("&cursor={}", escaped(cursor))).unwrap_or_default();
    get(format!("{}/files?limit=100{dir}{cursor}", base(org, name)))
}

/// Where a browser fetches a file.
pub fn file_href(org: OrgId, name: &str, path: &str) -> String {
    format!("/api/v1{}/files/{}", base(org, name), path_text(path))
}

/// Takes a file out of a volume.
pub fn remove_file(
    org: OrgId,
    name: &str,
    path: &str,
) -> impl Future<Output = Answer<()>> + Send + 'static + use<> {
    send("DELETE", format!("{}/files/{}", base(org, name), path_text(path)), &(), None)
}

/// Begins an upload, or goes on with the same one.
pub fn begin(
    org: OrgId,
    name: &str,
    path: &str,
    input: &NewUpload,
) -> impl Future<Output = Answer<Upload>> + Send + 'static {
    send("PUT", format!("{}/uploads/{}", base(org, name), path_text(path)), input, None)
}

/// Sends the bytes of a file from one place to another.
#[cfg(feature = "hydrate")]
pub async fn add(org: OrgId, name: &str, path: &str, offset: u64, piece: web_sys::Blob) -> Answer<Upload> {
    let at = format!("/api/v1{}/uploads/{}", base(org, name), path_text(path));
    super::read(super::transport::send_piece(&at, offset, piece).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_a_path() {
        assert_eq!(path_text("sets/a b?.bin"), "sets/a%20b%3F.bin");
    }
}
