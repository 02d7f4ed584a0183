//! The variables of a job.

use berth_isolation::sandbox::{self, is_deferred};
use berth_isolation::secret_files;
use berth_job_files::inputs::volumes;
use berth_proto::Spec;
use berth_shim::model::{JobFailure, start_failure};

use super::directory::Attempt;
use super::rdma::RdmaAccess;
use crate::devices::AttemptDevice;

/// The variable with the port of a replica.
const PORT_VARIABLE: &str = "PORT";

/// The job's variables. The sandbox programs start with them too, so deferred variables are left out there. In an
/// image podman passes all of them on, with the secret ones. A device without a name is an error.
pub(super) fn environment(
    attempt: &Attempt,
    spec: &Spec,
    home: &str,
    isolated: bool,
    rdma: Option<&RdmaAccess>,
) -> Result<Vec<(String, String)>, JobFailure> {
    let devices: Option<Vec<&str>> = attempt.record.devices.iter().map(AttemptDevice::visible_name).collect();
    let unnamed = || start_failure("device.unavailable", "The instance has no MIG device of its own");
    let devices = devices.ok_or_else(unnamed)?;
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
    env.extend(rdma.into_iter().flat_map(RdmaAccess::variables));
    env.retain(|(name, _)| !spec.env.contains_key(name));
    let early = spec.env.iter().filter(|(name, _)| !spec.image.is_empty() || !is_deferred(name));
    env.extend(early.map(|(k, v)| (k.clone(), v.clone())));
    if !spec.image.is_empty() {
        env.extend(secret_files::variables(spec));
    }
    if let Some(replica) = &attempt.record.replica {
        env.retain(|(name, _)| name != PORT_VARIABLE);
        env.push((PORT_VARIABLE.to_owned(), replica.port.to_string()));
    }
    // These describe facts, so a job cannot change them.
    let fixed = [
        ("HOME", home.to_owned()),
        ("CUDA_VISIBLE_DEVICES", devices.join(",")),
        ("NVIDIA_VISIBLE_DEVICES", devices.join(",")),
        ("BERTH_JOB_ID", attempt.record.job.clone()),
        ("BERTH_ATTEMPT", attempt.record.number.to_string()),
        (secret_files::DIR_VARIABLE, secret_files::path_in_job(attempt.record.secrets.as_deref(), isolated)),
    ];
    env.retain(|(k, _)| fixed.iter().all(|(f, _)| f != k));
    env.extend(fixed.map(|(k, v)| (k.to_owned(), v)).into_iter().filter(|(_, v)| !v.is_empty()));
    Ok(env)
}
