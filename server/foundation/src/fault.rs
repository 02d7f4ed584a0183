//! Fault points for tests: a test kills the portal at a point and checks that nothing is lost or done twice.
//!
//! A build with debug assertions kills itself at the point in `BERTH_FAULT` (`NAME`, or `NAME:N` for the Nth
//! time). A release build has no points. Only tests may use them.

/// All points. A test uses each of them and fails for a point that is never reached.
pub const POINTS: &[&str] = &[
    "reservation.confirm.begun",
    "reservation.confirm.booked",
    "reservation.confirm.recording",
    "reservation.confirm.recorded",
    "reservation.extend.booked",
    "reservation.extend.recording",
    "reservation.extend.recorded",
    "reservation.cancel.begun",
    "reservation.cancel.recording",
    "reservation.cancel.recorded",
    "reservation.tick.due",
    "reservation.start.recording",
    "reservation.end.recording",
    "reservation.no_show.recording",
    "reservation.tick.recorded",
    "invoice.bill.numbered",
    "invoice.bill.recorded",
    "invoice.pay.recording",
    "invoice.pay.recorded",
    "job.end.recording",
    "job.end.recorded",
    "payment.event.stored",
    "payment.event.applying",
    "payment.event.applied",
    "retention.remove.due",
    "retention.remove.recordings",
    "retention.remove.recording",
    "retention.remove.recorded",
    "service.replica.recorded",
    "service.promise.recording",
    "service.promise.recorded",
];

/// Kills the process if a test chose this point.
#[cfg(debug_assertions)]
pub fn point(name: &'static str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static CHOSEN: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static REACHED: AtomicU32 = AtomicU32::new(0);
    let chosen = CHOSEN.get_or_init(|| {
        let text = std::env::var("BERTH_FAULT").ok()?;
        let (chosen, nth) = text.rsplit_once(':').unwrap_or((text.as_str(), "1"));
        Some((chosen.to_owned(), nth.parse().ok()?))
    });
    let Some((chosen, nth)) = chosen else { return };
    if chosen == name && REACHED.fetch_add(1, Ordering::SeqCst) + 1 == *nth {
        // For the case that the signal fails.
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        std::process::abort();
    }
}

/// Does nothing in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn point(_name: &'static str) {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::POINTS;

    fn collect_points(dir: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect_points(&path, names);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let call = concat!("fault::", "point(\"");
            let text = std::fs::read_to_string(&path).unwrap();
            for rest in text.split(call).skip(1) {
                names.insert(rest.split('"').next().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn the_list_has_all_fault_points_of_the_code() {
        let mut named = BTreeSet::new();
        for part in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap() {
            let sources = part.unwrap().path().join("src");
            if sources.is_dir() {
                collect_points(&sources, &mut named);
            }
        }
        collect_points(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src"), &mut named);
        let listed: BTreeSet<String> = POINTS.iter().map(|p| (*p).to_owned()).collect();
        assert_eq!(named, listed);
        assert_eq!(listed.len(), POINTS.len(), "none is listed twice");
    }
}
