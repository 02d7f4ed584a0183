//! A device, as the clearing needs it.

/// A device before a start.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    pub gpu_uuid: &'a str,
    /// The name for `CUDA_VISIBLE_DEVICES`.
    pub visible_name: &'a str,
    /// The first memory slice and the number of slices of a MIG instance. `None`: the whole board.
    pub slices: Option<(u32, u32)>,
    /// True for a share: neighbours of the same organization may use the board.
    pub shared: bool,
}

impl Device<'_> {
    /// The name of the part of the host that is cleared at one time.
    pub(crate) fn place(&self) -> String {
        self.slices
            .map_or_else(|| self.gpu_uuid.to_owned(), |(start, _)| format!("{}/{start}", self.gpu_uuid))
    }
}
