//! The calls of NVML as values: this process or a helper process answers them by the same code.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::board::{BoardInfo, DeviceNumbers, Slice};
use super::condition::{self, BoardCondition};
use super::error::GpuError;
use super::event_set::{self, EventWait};
use super::library::Library;
use super::mig;
use super::mig_mode::WaitingMode;
use super::nvlink::Links;
use super::readings::{Presence, Reading};
use super::snapshot::BoardSnapshot;

/// A call with the type of its answer.
pub trait Request: Clone + Into<NvmlRequest> + Send + 'static {
    type Answer: Serialize + DeserializeOwned + Send + 'static;
    /// True for the change of a board, which is never sent twice.
    const CHANGES: bool;

    fn answer(self, library: &Library) -> Result<Self::Answer, GpuError>;
}

/// Makes a type for each call, and the enum of all calls.
macro_rules! requests {
    ($($(#[$text:meta])* $name:ident { $($field:ident: $kind:ty),* }, $changes:literal, $answer:ty, $run:expr;)*) => {
        $(
            $(#[$text])*
            #[derive(Debug, Clone, Serialize, Deserialize)]
            pub struct $name {
                $(pub $field: $kind),*
            }

            impl Request for $name {
                type Answer = $answer;
                const CHANGES: bool = $changes;

                fn answer(self, library: &Library) -> Result<$answer, GpuError> {
                    let run: fn(Self, &Library) -> Result<$answer, GpuError> = $run;
                    run(self, library)
                }
            }

            impl From<$name> for NvmlRequest {
                fn from(request: $name) -> Self {
                    Self::$name(request)
                }
            }
        )*

        /// Any call.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub enum NvmlRequest {
            $($name($name)),*
        }

        impl NvmlRequest {
            /// The answer for another process.
            pub fn answer(self, library: &Library) -> Result<Value, GpuError> {
                match self {
                    $(Self::$name(request) => encode(&request.answer(library)?)),*
                }
            }
        }
    };
}

fn encode(answer: &impl Serialize) -> Result<Value, GpuError> {
    serde_json::to_value(answer).map_err(|e| GpuError::Nvml(format!("an answer cannot be passed on: {e}")))
}

/// The answer from another process.
pub fn decode<T: DeserializeOwned>(answer: Value) -> Result<T, GpuError> {
    serde_json::from_value(answer).map_err(|e| GpuError::Nvml(format!("an answer has a wrong form: {e}")))
}

requests! {
    ReadDriverVersion {}, false, String, |_, library| Ok(library.nvml.sys_driver_version()?);

    /// The version of the driver and the number of boards.
    CountBoards {}, false, (Option<String>, u32), |_, library| {
        Ok((library.nvml.sys_driver_version().ok(), library.nvml.device_count()?))
    };

    FindUuid { index: u32 }, false, String, |request, library| library.uuid_at(request.index);

    ReadBoard { index: u32, gpu_uuid: String }, false, BoardInfo, |request, library| {
        library.board(request.index, &request.gpu_uuid)
    };

    ReadLinks { gpu_uuid: String }, false, Links, |request, library| library.links(&request.gpu_uuid);

    ListSlices { gpu_uuid: String }, false, Vec<Slice>, |request, library| library.slices(&request.gpu_uuid);

    SetMig { gpu_uuid: String, on: bool, waiting: WaitingMode }, true, (), |request, library| {
        library.set_mig(&request.gpu_uuid, request.on, request.waiting)
    };

    CreateSlice { gpu_uuid: String, profile_id: u32, start: u32 }, true, Slice, |request, library| {
        library.create_slice(&request.gpu_uuid, request.profile_id, request.start)
    };

    DestroySlice { gpu_uuid: String, profile_id: u32, start: u32, own: Option<u32> }, true, (), |request, library| {
        library.destroy_slice(&request.gpu_uuid, request.profile_id, request.start, request.own)
    };

    FindDeviceNumbers { gpu_uuid: String, start: Option<u32> }, false, DeviceNumbers, |request, library| {
        library.device_numbers(&request.gpu_uuid, request.start)
    };

    ListProfiles { gpu_uuid: String }, false, Vec<(u32, u64)>, |request, library| {
        mig::profiles(library.nvml.lib(), &library.device(&request.gpu_uuid)?)
    };

    ListProfileNames { gpu_uuid: String }, false, Vec<(u32, String)>, |request, library| {
        mig::profile_names(library.nvml.lib(), &library.device(&request.gpu_uuid)?)
    };

    ReadSnapshot { board: BoardInfo }, false, BoardSnapshot, |request, library| library.snapshot(&request.board);

    /// The processes on a board or on a MIG device.
    ListHolders { device_uuid: String }, false, Vec<u32>, |request, library| library.holders(&request.device_uuid);

    /// The processes on a board and on its slices.
    ListAllHolders { gpu_uuid: String }, false, Vec<u32>, |request, library| library.all_holders(&request.gpu_uuid);

    FindPresence { gpu_uuid: String, mig_uuid: Option<String> }, false, Presence, |request, library| {
        Ok(library.presence(&request.gpu_uuid, request.mig_uuid.as_deref()))
    };

    ReadDevice { gpu_uuid: String, mig_uuid: Option<String> }, false, Reading, |request, library| {
        library.read(&request.gpu_uuid, request.mig_uuid.as_deref())
    };

    ReadCondition { gpu_uuid: String }, false, BoardCondition, |request, library| {
        condition::read(library, &request.gpu_uuid)
    };

    CheckBoard { gpu_uuid: String }, false, Vec<String>, |request, library| library.check(&request.gpu_uuid);

    ReadUsedMib { gpu_uuid: String }, false, u64, |request, library| {
        Ok(library.device(&request.gpu_uuid)?.memory_info()?.used >> 20)
    };

    ReadPersistence { gpu_uuid: String }, false, bool, |request, library| {
        Ok(library.device(&request.gpu_uuid)?.is_in_persistent_mode()?)
    };

    OpenEvents {}, false, (), |_, library| event_set::open_events(library);

    RegisterEvents { gpu_uuid: String }, false, (), |request, library| {
        event_set::register_events(library, &request.gpu_uuid)
    };

    WaitForEvent {}, false, EventWait, |_, library| event_set::next_event(library);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_the_way_to_another_process() {
        let request = CreateSlice { gpu_uuid: "GPU-1".to_owned(), profile_id: 19, start: u32::MAX };
        let text = serde_json::to_string(&NvmlRequest::from(request)).unwrap();
        let back: NvmlRequest = serde_json::from_str(&text).unwrap();
        assert!(
            matches!(back, NvmlRequest::CreateSlice(back) if back.start == u32::MAX && back.gpu_uuid == "GPU-1")
        );
        let reading = Reading {
            utilization_percent: None,
            memory_used_mib: Some(0.5),
            memory_total_mib: 81_559.0,
            power_watts: None,
            temperature_celsius: None,
            sm_clock_mhz: None,
            memory_clock_mhz: None,
            energy_millijoules: Some(9_007_199_254_740_991.0),
            engine_active: None,
            throttle_reasons: Some(u64::MAX),
            pcie_received_kb_s: None,
            pcie_sent_kb_s: None,
            nvlink_received_kib_s: None,
            nvlink_sent_kib_s: None,
        };
        assert_eq!(decode::<Reading>(encode(&reading).unwrap()), Ok(reading));
        assert_eq!(decode::<()>(encode(&()).unwrap()), Ok(()));
        let errors = [GpuError::Lost, GpuError::NotFound("GPU-1".to_owned()), GpuError::Nvml("x".to_owned())];
        for error in errors {
            assert_eq!(decode::<GpuError>(encode(&error).unwrap()), Ok(error));
        }
        assert!(matches!(decode::<u32>(Value::Null), Err(GpuError::Nvml(_))));
    }
}
