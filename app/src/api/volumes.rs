//! Volumes of an organization with their files and uploads.

use std::future::Future;

use berth_types::Page;
use berth_types::ids::OrgId;
use berth_types::volumes::{NewUpload, NewVolume, Upload, Volume, VolumeEntry};
#[cfg(feature = "hydrate")]
use web_sys::Blob;

use super::escape::escaped;
use super::{Answer, get, list_all, send};

fn base(org: OrgId, name: &str) -> String {
    format!("/orgs/{org}/volumes/{}", escaped(name))
}

/// Percent-encodes the segments of a path.
pub fn encoded_path(path: &str) -> String {
    path.split('/').map(escaped).collect::<Vec<String>>().join("/")
}

/// Percent-encodes a value of a query.
pub fn encoded_value(text: &str) -> String {
    escaped(text)
}

/// Lists the volumes of an organization by name.
pub fn list(org: OrgId) -> impl Future<Output = Answer<Page<Volume>>> + Send + 'static + use<> {
    list_all(format!("/orgs/{org}/volumes"))
}

/// Gets a volume.
pub fn get_one(org: OrgId, name: &str) -> impl Future<Output = Answer<Volume>> + Send + 'static + use<> {
    get(base(org, name))
}

/// Creates a volume. Repeated requests with the same key create one volume.
pub fn create(
    org: OrgId,
    input: &NewVolume,
    key: Option<String>,
) -> impl Future<Output = Answer<Volume>> + Send + 'static {
    send("POST", format!("/orgs/{org}/volumes"), input, key)
}

/// Deletes a volume with all files.
pub fn delete(org: OrgId, name: &str) -> impl Future<Output = Answer<()>> + Send + 'static + use<> {
    send("DELETE", base(org, name), &(), None)
}

/// Lists a page of a directory, `""` for the root.
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

/// Returns the address of a file for a download.
pub fn file_href(org: OrgId, name: &str, path: &str) -> String {
    format!("/api/v1{}/files/{}", base(org, name), encoded_path(path))
}

/// Deletes a file of a volume.
pub fn remove_file(
    org: OrgId,
    name: &str,
    path: &str,
) -> impl Future<Output = Answer<()>> + Send + 'static + use<> {
    send("DELETE", format!("{}/files/{}", base(org, name), encoded_path(path)), &(), None)
}

/// Starts an upload, or continues the upload of the same file.
pub fn start_upload(
    org: OrgId,
    name: &str,
    path: &str,
    input: &NewUpload,
) -> impl Future<Output = Answer<Upload>> + Send + 'static {
    send("PUT", format!("{}/uploads/{}", base(org, name), encoded_path(path)), input, None)
}

/// Abandons an upload.
pub fn drop_upload(
    org: OrgId,
    name: &str,
    path: &str,
) -> impl Future<Output = Answer<()>> + Send + 'static + use<> {
    send("DELETE", format!("{}/uploads/{}", base(org, name), encoded_path(path)), &(), None)
}

/// Uploads a part of a file; `offset` is its first byte.
#[cfg(feature = "hydrate")]
pub async fn send_part(org: OrgId, name: &str, path: &str, offset: u64, part: Blob) -> Answer<Upload> {
    let address = format!("/api/v1{}/uploads/{}", base(org, name), encoded_path(path));
    super::parse_response(super::transport::send_part(&address, offset, part).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_its_slashes() {
        assert_eq!(encoded_path("sets/a b?.bin"), "sets/a%20b%3F.bin");
    }
}
