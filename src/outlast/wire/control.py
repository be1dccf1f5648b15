"""The language of the control plane: one codec for everything that the coordinator hears and says."""

from outlast.protocol.messages import FROM_COORDINATOR, FROM_PEERS, Message
from outlast.wire.codec import Codec

CONTROL: Codec[Message] = Codec((*FROM_PEERS, *FROM_COORDINATOR))
