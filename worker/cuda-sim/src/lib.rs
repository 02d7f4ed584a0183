//! `libcuda.so.1` of simulated GPUs: the calls of CUDA's driver API for the memory of one device.
//!
//! The memory of a device is a file, so what one process leaves there another can read, as on a board. It has the size
//! of a board. A fill with a word is kept as a range, so a whole board takes little space and time.
//!
//! `BERTH_NVML_SIM_DIR` is the directory of the simulated boards (`boards.json` of `berth-nvml-sim`), and
//! `CUDA_VISIBLE_DEVICES` names the devices by UUID. A file `cuda-faults.json` there says what goes wrong: see `faults`.
//! It knows nothing of Berth.

#![expect(unsafe_code, reason = "the C interface of CUDA is made of raw pointers")]

mod boards;
mod calls;
mod device_file;
mod fault;
mod faults;
mod memory;
