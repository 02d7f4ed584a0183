//! The variables of a job.

use berth_proto::Spec;

use super::directory::Attempt;
use crate::devices::AttemptDevice;
use crate::inputs::volumes;
use crate::isolation::sandbox::{self, is_deferred};
use crate::isolation::secret_files;

/// The job's variables. The sandbox programs start with them too, so deferred variables are left out there. In an
/// image podman passes all of them on, with the secret ones.
pub(super) fn environment(
    attempt: &Attempt,
    spec: &Spec,
    home: &str,
    isolated: bool,
) -> Vec<(String, String)> {
    let devices: Vec<&str> = attempt.record.devices.iter().map(AttemptDevice::visible_name).collect();
    let base = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("LANG", "C.UTF-8"),
        ("PYTHONUNBUFFERED", "1"),
        ("USER", sandbox::USER),
        ("LOGNAME", sandbox::USER),
    ];
    // Without a sandbox the user is that of the worker.
    let known = |(_, value): &(&str, &str)| isolated || *value != sandbox::USER;
    // An image has its own path and language.
    let of_host = |(name, _): &(&str, &str)| spec.image.is_empty() || *name == "PYTHONUNBUFFERED";
    let base = base.into_iter().filter(of_host).filter(known);
    let mut env: Vec<(String, String)> = base.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    env.extend(volumes::variables(&attempt.dir.join("work"), spec, isolated));
    env.retain(|(name, _)| !spec.env.contains_key(name));
    let early = spec.env.iter().filter(|(name, _)| !spec.image.is_empty() || !is_deferred(name));
    env.extend(early.map(|(k, v)| (k.clone(), v.clone())));
    if !spec.image.is_empty() {
        env.extend(secret_files::variables(spec));
    }
    // These describe facts, so a job cannot change them.
    let fixed = [
        ("HOME", home.to_owned()),
        ("CUDA_VISIBLE_DEVICES", devices.join(",")),
        ("NVIDIA_VISIBLE_DEVICES", devices.join(",")),
        // A hint for the driver's sharing service, if one runs; it is no limit by itself.
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", thread_percentage(&attempt.record.devices)),
        ("BERTH_JOB_ID", attempt.record.job.clone()),
        ("BERTH_ATTEMPT", attempt.record.number.to_string()),
        (secret_files::DIR_VARIABLE, secret_files::path_in_job(attempt.record.secrets.as_deref(), isolated)),
    ];
    env.retain(|(k, _)| fixed.iter().all(|(f, _)| f != k));
    env.extend(fixed.map(|(k, v)| (k.to_owned(), v)).into_iter().filter(|(_, v)| !v.is_empty()));
    env
}

/// The share of a board in percent; empty without a share.
fn thread_percentage(devices: &[AttemptDevice]) -> String {
    let share = devices.iter().find_map(|d| d.share_milli);
    share.map_or_else(String::new, |milli| (milli / 10).clamp(1, 100).to_string())
}
