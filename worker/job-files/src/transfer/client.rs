//! The client of the portal's calls for files.

use berth_contract::MESSAGE_LIMIT;
use berth_proto::portal_client::PortalClient;
use tonic::transport::Channel;

pub type Portal = PortalClient<Channel>;

/// A client for large messages.
pub fn client(channel: Channel) -> Portal {
    PortalClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT)
}
