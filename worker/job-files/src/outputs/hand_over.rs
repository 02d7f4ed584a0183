//! The steps of a hand-over.

use tonic::transport::Channel;

use super::task::OutputTask;
use super::{artifacts, checkpoint, volumes};
use crate::transfer::client;

/// Hands over the outputs that are ready now. After an error the next call resumes.
pub async fn hand_over(task: OutputTask, channel: Channel) -> Result<(), String> {
    let mut portal = client(channel);
    if let Some(dir) = task.plan.checkpoint_dir.clone() {
        checkpoint::hand_over(&task, &dir, &mut portal).await?;
    }
    if task.over && !task.plan.artifacts.is_empty() {
        artifacts::hand_over(&task, &mut portal).await?;
    }
    if task.over {
        volumes::hand_over(&task, &mut portal).await?;
    }
    Ok(())
}
