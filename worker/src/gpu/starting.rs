//! A start that may hang, as NVML's own may: it has a thread to itself, which is left behind when it takes
//! too long and hands over what it started whenever that is there.
//!
//! Knows nothing of what is started.

use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use super::GpuError;
use super::library::lock;

/// After a start that failed when nobody waited for it any more.
const AGAIN: Duration = Duration::from_secs(10);

/// What is being started.
pub struct Starting<T> {
    found: Mutex<Option<Arc<T>>>,
    there: Condvar,
}

impl<T> Default for Starting<T> {
    fn default() -> Self {
        Self { found: Mutex::new(None), there: Condvar::new() }
    }
}

impl<T> Starting<T> {
    /// It, if it has started.
    pub fn get(&self) -> Option<Arc<T>> {
        lock(&self.found).clone()
    }

    /// Waits until it has started, for ever if it never does.
    pub fn wait(&self) -> Arc<T> {
        let mut found = lock(&self.found);
        loop {
            if let Some(started) = &*found {
                return started.clone();
            }
            found = self.there.wait(found).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T: Send + Sync + 'static> Starting<T> {
    /// Starts it. An error that comes in time is the caller's; after that it is tried again until it works.
    pub fn begin(
        limit: Duration,
        mut start: impl FnMut() -> Result<T, GpuError> + Send + 'static,
    ) -> Result<Arc<Self>, GpuError> {
        let starting = Arc::new(Self::default());
        // Without room in it: what is not heard at once was not heard.
        let (tell, told) = mpsc::sync_channel::<Result<(), GpuError>>(0);
        let keeper = starting.clone();
        let work = move || {
            loop {
                let result = start().map(|started| {
                    *lock(&keeper.found) = Some(Arc::new(started));
                    keeper.there.notify_all();
                });
                if tell.send(result.clone()).is_ok() {
                    return;
                }
                match result {
                    Ok(()) => {
                        tracing::info!("NVML has started after all");
                        return;
                    }
                    Err(error) => tracing::warn!(%error, "NVML cannot be started; it is tried again"),
                }
                std::thread::sleep(AGAIN);
            }
        };
        let thread = std::thread::Builder::new().name("gpu start".to_owned()).spawn(work);
        thread.map_err(|error| GpuError::Nvml(format!("no thread for it: {error}")))?;
        match told.recv_timeout(limit) {
            Ok(result) => result.map(|()| starting),
            // It panicked, or hangs; whoever asks for it is told that there is none yet.
            Err(_) => {
                tracing::error!("NVML does not start; it is waited for beside everything else");
                Ok(starting)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn what_starts_or_fails_in_time_is_known_at_once() {
        let started = Starting::begin(LONG, || Ok(7)).unwrap();
        assert_eq!(started.get().as_deref(), Some(&7));
        let failed = Starting::<u8>::begin(LONG, || Err(GpuError::NotSupported));
        assert_eq!(failed.err(), Some(GpuError::NotSupported));
    }

    #[test]
    fn what_hangs_is_there_when_it_has_started() {
        let (go, gate) = mpsc::channel::<()>();
        let starting = Starting::begin(Duration::from_millis(30), move || {
            gate.recv().map(|()| 8).map_err(|_| GpuError::NotSupported)
        });
        let starting = starting.unwrap();
        assert_eq!(starting.get(), None);
        let waits = starting.clone();
        let waiting = std::thread::spawn(move || *waits.wait());
        go.send(()).unwrap();
        assert_eq!(waiting.join().unwrap(), 8);
        assert_eq!(starting.get().as_deref(), Some(&8));
    }
}
