//! The messages between the daemon and its helper process for NVML: a length of four bytes, and so many bytes of JSON.

use std::io::{self, ErrorKind, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::GpuError;
use super::requests::NvmlRequest;

/// The most bytes of a message. The longest is the list of the processes on a board.
const MAX_BYTES: usize = 1 << 20;

/// A request of the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct RequestMessage {
    pub id: u64,
    /// Requests with the same executor are answered one after the other.
    pub executor: String,
    pub request: NvmlRequest,
}

/// The answer to a request, in any order. The first message of the process has the result of the start of NVML.
#[derive(Debug, Serialize, Deserialize)]
pub struct AnswerMessage {
    pub id: u64,
    pub result: Result<Value, GpuError>,
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a message is too long")
}

pub fn write_message(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() > MAX_BYTES {
        return Err(too_long());
    }
    let length = u32::try_from(text.len()).map_err(|_| too_long())?;
    out.write_all(&[&length.to_le_bytes(), text.as_slice()].concat())
}

pub fn read_message<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_le_bytes(length)).map_err(|_| too_long())?;
    if length > MAX_BYTES {
        return Err(too_long());
    }
    let mut text = vec![0; length];
    input.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_and_bounded() {
        let mut bytes = Vec::new();
        for text in ["one", ""] {
            write_message(&mut bytes, &text).unwrap();
        }
        let mut rest = bytes.as_slice();
        assert_eq!(read_message::<String>(&mut rest).unwrap(), "one");
        assert_eq!(read_message::<String>(&mut rest).unwrap(), "");
        assert_eq!(read_message::<String>(&mut rest).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        for cut in 1..9 {
            assert!(read_message::<String>(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        let long = "a".repeat(MAX_BYTES);
        assert_eq!(write_message(&mut Vec::new(), &long).unwrap_err().kind(), ErrorKind::InvalidData);
        let announced = u32::MAX.to_le_bytes();
        assert_eq!(
            read_message::<String>(&mut announced.as_slice()).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        assert!(read_message::<u8>(&mut bytes.as_slice()).is_err(), "another type");
    }
}
