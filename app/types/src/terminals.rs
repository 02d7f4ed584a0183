//! Shells in running jobs: what is asked for, what is recorded, and what a socket says besides bytes.

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, TerminalId, UserId};
use crate::time::Timestamp;

/// The protocol of a terminal's socket.
pub const PROTOCOL: &str = "berth.terminal.v1";
/// Before the ticket, among the protocols that a browser offers: it can set no header.
pub const TICKET_PROTOCOL: &str = "berth.ticket.";
/// Bytes that either end of a socket sends beyond what the other has taken.
pub const WINDOW_BYTES: u64 = 256 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewTerminal {
    /// Of a job on several nodes.
    #[serde(default)]
    pub rank: u32,
    /// Why, when an operator who is no member asks; the organization reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A shell as it is recorded: who, when and why, never what was typed or shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Terminal {
    pub id: TerminalId,
    pub job: JobId,
    pub attempt: u32,
    pub rank: u32,
    pub user: UserId,
    pub actor: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub opened_at: Timestamp,
    /// Since when nobody looks at it, while it waits for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// 128 + n for signal n.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// `ended`, `job_ended`, `left`, `gone`, `refused`, `revoked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// Opens a terminal's socket once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminalTicket {
    pub terminal: Terminal,
    pub ticket: String,
    pub expires_at: Timestamp,
}

/// What the person's side says, as text; bytes are what was typed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalSaid {
    Size {
        cols: u32,
        rows: u32,
    },
    /// Bytes of this socket that were shown so far.
    Taken {
        bytes: u64,
    },
    /// It is not wanted any more.
    End,
}

/// What the portal's side says, as text; bytes are what the shell wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalNews {
    /// First: the place of the next byte, counted from the shell's start.
    Open { begins: u64 },
    /// Bytes of this socket that the shell has taken so far.
    Taken { bytes: u64 },
    /// Last, except when the connection breaks.
    Closed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        cause: String,
        detail: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_json_with_a_type() {
        let said = |text: &str| serde_json::from_str::<TerminalSaid>(text).ok();
        assert_eq!(
            said(r#"{"type":"size","cols":80,"rows":24}"#),
            Some(TerminalSaid::Size { cols: 80, rows: 24 })
        );
        assert_eq!(said(r#"{"type":"end"}"#), Some(TerminalSaid::End));
        for bad in ["", "{}", r#"{"type":"size","cols":-1,"rows":2}"#, r#"{"type":"exec"}"#] {
            assert_eq!(said(bad), None, "{bad}");
        }
        let news =
            TerminalNews::Closed { exit_code: Some(7), cause: "ended".to_owned(), detail: String::new() };
        let text = serde_json::to_string(&news).unwrap();
        assert_eq!(text, r#"{"type":"closed","exit_code":7,"cause":"ended","detail":""}"#);
    }
}
