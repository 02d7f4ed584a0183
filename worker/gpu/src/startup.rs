//! A start that may hang, such as NVML's: it runs in its own thread, which delivers the result at any later time.

use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use berth_system::sync::lock;

use super::error::GpuError;

/// The time between two tries after the caller has stopped waiting.
const AGAIN: Duration = Duration::from_secs(10);

/// A value that may still be starting.
pub struct Startup<T> {
    started: Mutex<Option<Arc<T>>>,
    done: Condvar,
}

impl<T> Default for Startup<T> {
    fn default() -> Self {
        Self { started: Mutex::new(None), done: Condvar::new() }
    }
}

impl<T> Startup<T> {
    /// The value, if it has started.
    pub fn get(&self) -> Option<Arc<T>> {
        lock(&self.started).clone()
    }

    /// Waits for the value, for ever if it never starts.
    pub fn wait(&self) -> Arc<T> {
        let mut started = lock(&self.started);
        loop {
            if let Some(value) = &*started {
                return value.clone();
            }
            started = self.done.wait(started).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T: Send + Sync + 'static> Startup<T> {
    /// Begins the start. After the limit the start goes on, and is tried again after an error until it works.
    ///
    /// # Errors
    /// An error within the limit.
    pub fn begin(
        limit: Duration,
        mut start: impl FnMut() -> Result<T, GpuError> + Send + 'static,
    ) -> Result<Arc<Self>, GpuError> {
        let starting = Arc::new(Self::default());
        // A channel without a buffer: a result that nobody waits for is not delivered.
        let (sender, first) = mpsc::sync_channel::<Result<(), GpuError>>(0);
        let shared = starting.clone();
        let work = move || {
            loop {
                let result = start().map(|started| {
                    *lock(&shared.started) = Some(Arc::new(started));
                    shared.done.notify_all();
                });
                if sender.send(result.clone()).is_ok() {
                    return;
                }
                match result {
                    Ok(()) => {
                        tracing::info!("NVML has started after a delay");
                        return;
                    }
                    Err(error) => tracing::warn!(%error, "NVML cannot be started; trying again"),
                }
                std::thread::sleep(AGAIN);
            }
        };
        let thread = std::thread::Builder::new().name("gpu start".to_owned()).spawn(work);
        thread.map_err(|error| GpuError::Nvml(format!("its thread cannot be started: {error}")))?;
        match first.recv_timeout(limit) {
            Ok(result) => result.map(|()| starting),
            // The start panicked or hangs; `get` returns `None` until it works.
            Err(_) => {
                tracing::error!("NVML does not start; the worker continues without boards");
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
        let started = Startup::begin(LONG, || Ok(7)).unwrap();
        assert_eq!(started.get().as_deref(), Some(&7));
        let failed = Startup::<u8>::begin(LONG, || Err(GpuError::NotSupported));
        assert_eq!(failed.err(), Some(GpuError::NotSupported));
    }

    #[test]
    fn what_hangs_is_there_when_it_has_started() {
        let (go, gate) = mpsc::channel::<()>();
        let starting = Startup::begin(Duration::from_millis(30), move || {
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
