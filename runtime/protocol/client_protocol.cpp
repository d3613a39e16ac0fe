#include "runtime/protocol/client_protocol.h"

#include "runtime/protocol/codec.h"

namespace penstock {

// Found by codec.h where it meets lists of them.
inline void put(WireWriter& out, const ClientBufferRange& v) {
  out.i32(v.exported);
  out.i32(v.first);
  out.i32(v.samples);
  out.u64(v.at);
  out.u64(v.bytes);
}
inline void get(WireReader& in, ClientBufferRange& v) {
  v.exported = in.i32();
  v.first = in.i32();
  v.samples = in.i32();
  v.at = in.u64();
  v.bytes = in.u64();
}

namespace {

auto members(ClientHello& m) {
  return std::tie(m.token, m.pid);
}
auto members(ClientOpen& m) {
  return std::tie(m.json, m.dtype, m.channels_last, m.raw_images, m.gpu_images);
}
auto members(ClientOpened& m) {
  return std::tie(m.split_id, m.dataset_size, m.steps, m.samples_per_replica, m.num_samples, m.batch_size, m.replica,
                  m.num_replicas, m.dataset_fingerprint, m.classes, m.labelled, m.fields, m.channels_last,
                  m.raw_images);
}
auto members(ClientRefused& m) {
  return std::tie(m.error_kind, m.error, m.remedy);
}
auto members(ClientIterate& m) {
  return std::tie(m.split_id, m.epoch, m.first_step, m.order);
}
auto members(ClientIteration& m) {
  return std::tie(m.iteration, m.pool, m.batch_buffers, m.batch_buffer_bytes, m.with_memory);
}
auto members(ClientNext& m) {
  return std::tie(m.iteration);
}
auto members(ClientBatch& m) {
  return std::tie(m.iteration, m.pool, m.batch_buffer, m.epoch, m.step, m.samples, m.num_valid, m.buffer_ranges);
}
auto members(ClientEnd& m) {
  return std::tie(m.iteration);
}
auto members(ClientFailed& m) {
  return std::tie(m.error_kind, m.error, m.remedy, m.iteration);
}
auto members(ClientNotice& m) {
  return std::tie(m.text, m.held_iteration);
}
auto members(ClientRelease& m) {
  return std::tie(m.pool, m.batch_buffer);
}
auto members(ClientStop& m) {
  return std::tie(m.iteration);
}
auto members(ClientStats&) {
  return std::tie();
}
auto members(ClientStatsJson& m) {
  return std::tie(m.json);
}
auto members(ClientWelcome& m) {
  return std::tie(m.replica, m.num_replicas, m.local_replicas, m.host, m.overrides_json);
}
auto members(ClientEndServing&) {
  return std::tie();
}
auto members(ClientGoodbye&) {
  return std::tie();
}
auto members(ClientExport& m) {
  return std::tie(m.exported, m.bytes, m.linked);
}
auto members(ClientExportUsed& m) {
  return std::tie(m.exported, m.used);
}
auto members(ClientExportGone& m) {
  return std::tie(m.exported);
}
auto members(ClientLinkAsked& m) {
  return std::tie(m.exported, m.identity);
}
auto members(ClientLinkOpened& m) {
  return std::tie(m.exported, m.id, m.problem);
}
auto members(ClientBufferRangesAsked& m) {
  return std::tie(m.exported, m.runs);
}

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
  return codec::encode(message, [](auto& m) { return members(m); });
}

ClientMessage decode_client(std::span<const std::byte> bytes) {
  WireReader in(bytes, "client message");
  const uint8_t kind = in.u8();
  return codec::decode<ClientMessage>(static_cast<const ClientMessages*>(nullptr), kind, in,
                                      [](auto& m) { return members(m); });
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
