//! Types of terminals: tickets, records and the text messages of a terminal's socket.

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, TerminalId, UserId};
use crate::time::Timestamp;

/// The subprotocol of a terminal's WebSocket.
pub const PROTOCOL: &str = "berth.terminal.v1";
/// The prefix of the ticket among the offered subprotocols, because a browser cannot set a header.
pub const TICKET_PROTOCOL: &str = "berth.ticket.";
/// The maximum number of bytes that one end sends beyond the acknowledged bytes of the other end.
pub const WINDOW_BYTES: u64 = 256 << 10;

/// The body of a new terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewTerminal {
    /// The number of the rank for the shell, 0 to 63, for a job on several nodes.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(max = 63)))]
    pub rank: u32,
    /// The reason of an operator without membership: 1 to 500 printable characters, not only white space; the
    /// organization reads it. Unused for members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub reason: Option<String>,
}

/// The record of a terminal: user, times and reason, without its input and output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Terminal {
    /// The id of the terminal.
    pub id: TerminalId,
    /// The job of the terminal.
    pub job: JobId,
    /// The number of the attempt.
    pub attempt: u32,
    /// The number of the rank, from 0.
    pub rank: u32,
    /// The user who opened the terminal.
    pub user: UserId,
    /// The name of the user at that time.
    pub actor: String,
    /// The reason of an operator without membership; absent for members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The time of the opening.
    pub opened_at: Timestamp,
    /// The start of the wait for a new connection; absent while a client is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_at: Option<Timestamp>,
    /// The end of the shell; absent for an open terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// The exit code of the shell; 128 + n after signal n.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The cause of the end: `ended`, `job_ended`, `left`, `gone`, `refused` or `revoked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// A single-use right to the socket of a terminal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminalTicket {
    /// The terminal of the ticket.
    pub terminal: Terminal,
    /// The secret of the ticket.
    pub ticket: String,
    /// The expiry of the ticket.
    pub expires_at: Timestamp,
}

/// A text message of the client. A binary message of the client has typed bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalSaid {
    /// The size of the screen in characters.
    Size {
        /// The number of columns, 1 to 1000.
        cols: u32,
        /// The number of rows, 1 to 1000.
        rows: u32,
    },
    /// An acknowledgement of output.
    Taken {
        /// The number of bytes of this socket that the client has shown.
        bytes: u64,
    },
    /// A request to end the shell.
    End,
}

/// A text message of the portal. A binary message of the portal has bytes of the shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalNews {
    /// The first message.
    Open {
        /// The offset of the next byte, in bytes from the shell's start.
        begins: u64,
    },
    /// An acknowledgement of input.
    Taken {
        /// The number of bytes of this socket that the shell has received.
        bytes: u64,
    },
    /// The last message, absent after a broken connection.
    Closed {
        /// The exit code of the shell; 128 + n after signal n; absent without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// The cause of the end, as in the record of the terminal; `away` while the node does not answer.
        cause: String,
        /// A sentence about the end.
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
