#include "runtime/protocol/client_protocol.h"

#include "runtime/base/codec.h"

namespace penstock {
namespace {

size_t align(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

ClientMessage::ClientMessage() = default;
ClientMessage::ClientMessage(const ClientMessage& other) = default;
ClientMessage::ClientMessage(ClientMessage&& other) noexcept = default;
ClientMessage& ClientMessage::operator=(const ClientMessage& other) = default;
ClientMessage& ClientMessage::operator=(ClientMessage&& other) noexcept = default;
ClientMessage::~ClientMessage() = default;

Message encode_client(const ClientMessage& message) {
  return codec::encode(message);
}

ClientMessage decode_client(std::span<const std::byte> bytes) {
  WireReader in(bytes, "client message");
  return codec::decode<ClientMessage>(in);
}

BatchBufferLayout batch_buffer_layout(const FieldTable& fields, int64_t batch_size) {
  const auto count = static_cast<size_t>(batch_size);
  BatchBufferLayout layout;
  size_t at = align(count * sizeof(int64_t), 64);
  layout.valid = at;
  at = align(at + count, 64);
  layout.substituted = at;
  at = align(at + count, 64);
  for (const FieldSpec& field : fields) {
    layout.fields.push_back(at);
    at = align(at + count * field.bytes_per_sample(), 64);
  }
  layout.total_bytes = align(at, 4096);
  return layout;
}

FinishSpec wanted_finish(FinishSpec finish, bool channels_last, const ClientOpen& asked) {
  if (asked.dtype >= 0) finish.dtype = static_cast<DType>(asked.dtype);
  const bool last = asked.channels_last >= 0 ? asked.channels_last != 0 : channels_last;
  finish.memory_format = last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
  return finish;
}

}  // namespace penstock
