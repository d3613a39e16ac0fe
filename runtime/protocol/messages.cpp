#include "runtime/protocol/messages.h"

#include "runtime/base/codec.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace penstock {

Fingerprint fingerprint_of(const std::string& canonical_json) {
  return hash128(canonical_json).low;
}

ControlMessage::ControlMessage() = default;
ControlMessage::ControlMessage(const ControlMessage& other) = default;
ControlMessage::ControlMessage(ControlMessage&& other) noexcept = default;
ControlMessage& ControlMessage::operator=(const ControlMessage& other) = default;
ControlMessage& ControlMessage::operator=(ControlMessage&& other) noexcept = default;
ControlMessage::~ControlMessage() = default;

Message encode(const ControlMessage& message) {
  Message bytes = codec::encode(message);
  WireWriter checksum;
  checksum.u32(crc32c(bytes.data(), bytes.size()));
  bytes.insert(bytes.end(), checksum.bytes().begin(), checksum.bytes().end());
  return bytes;
}

ControlMessage decode(std::span<const std::byte> bytes) {
  if (bytes.size() < 5) throw Error(ErrorKind::peer_lost, "a message is too short");
  const auto body = bytes.first(bytes.size() - 4);
  WireReader tail(bytes.subspan(body.size()), "message checksum");
  if (tail.u32() != crc32c(body.data(), body.size())) {
    throw Error(ErrorKind::peer_lost, "a message arrived damaged (CRC-32C differs)",
                "check the network between the nodes, or give all ranks the same version of penstock");
  }
  WireReader in(body, "control message");
  return codec::decode<ControlMessage>(in);
}

}  // namespace penstock
