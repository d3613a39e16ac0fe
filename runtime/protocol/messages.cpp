#include "runtime/protocol/messages.h"

#include <tuple>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/protocol/codec.h"

namespace penstock {
namespace {

// Every message is the list of its members: written, read and kept in step in one place.
auto members(LoaderHello& m) {
  return std::tie(m.chunk_buffers, m.depth, m.threads, m.incarnation, m.gpus);
}
auto members(Alive&) {
  return std::tie();
}
auto members(PrepareSplit& m) {
  return std::tie(m.fingerprint, m.json, m.max_chunk_samples, m.like);
}
auto members(SplitPrepared& m) {
  return std::tie(m.fingerprint, m.good, m.dataset_size, m.dataset_fingerprint, m.classes, m.extra_fields, m.labelled,
                  m.sample_bytes, m.partial, m.readable, m.lacking, m.same, m.error_kind, m.error, m.remedy);
}
auto members(SizesAsked& m) {
  return std::tie(m.fingerprint, m.first, m.samples);
}
auto members(SizesTold& m) {
  return std::tie(m.fingerprint, m.first, m.codes);
}
auto members(OpenSplit& m) {
  return std::tie(m.json, m.replica, m.num_replicas, m.program, m.opening, m.split);
}
auto members(SplitOpened& m) {
  return std::tie(m.fingerprint, m.dataset_size, m.dataset_fingerprint, m.classes, m.extra_fields, m.labelled, m.split);
}
auto members(SplitRefused& m) {
  return std::tie(m.split, m.error_kind, m.error, m.remedy);
}
auto members(OpenLeaseStream& m) {
  return std::tie(m.lease_stream, m.fingerprint, m.replica, m.epoch, m.first_step, m.order, m.program, m.opening,
                  m.gpu_reader, m.again);
}
auto members(LeaseStreamReady& m) {
  return std::tie(m.lease_stream, m.chunk_samples, m.by_holder);
}
auto members(BatchBufferFree& m) {
  return std::tie(m.lease_stream, m.step);
}
auto members(CursorAt& m) {
  return std::tie(m.lease_stream, m.cursor, m.waiting);
}
auto members(CloseLeaseStream& m) {
  return std::tie(m.lease_stream);
}
auto members(LeaseStreamFailed& m) {
  return std::tie(m.lease_stream, m.error_kind, m.error, m.remedy);
}
auto members(LeaseGranted& m) {
  return std::tie(m.lease, m.fingerprint, m.epoch, m.replica, m.receiver, m.first_row, m.gpu_reader, m.compared,
                  m.samples);
}
auto members(LeaseRevoked& m) {
  return std::tie(m.lease);
}
auto members(ChunkDone& m) {
  return std::tie(m.lease, m.busy_ns, m.bytes, m.pixels, m.held_ns);
}
auto members(ChunkUndone& m) {
  return std::tie(m.lease, m.reason);
}
auto members(ChunkBufferFree& m) {
  return std::tie(m.receiver);
}
auto members(ChunkTaken& m) {
  return std::tie(m.lease);
}
auto members(ReceiverDone& m) {
  return std::tie(m.good, m.problem, m.exit_code, m.report_json);
}
auto members(ProgramsAt& m) {
  return std::tie(m.living);
}
auto members(EndServing& m) {
  return std::tie(m.reason);
}
auto members(SplitClosed& m) {
  return std::tie(m.fingerprint, m.failed, m.split);
}
auto members(LeasesAhead& m) {
  return std::tie(m.leases);
}
auto members(ExportOffered& m) {
  return std::tie(m.gpu, m.bytes, m.linked);
}
auto members(ExportUsed& m) {
  return std::tie(m.gpu, m.gpu_reader, m.used);
}
auto members(BufferRangeReturned& m) {
  return std::tie(m.gpu, m.id);
}
auto members(LinkAsked& m) {
  return std::tie(m.gpu, m.gpu_reader, m.identity);
}
auto members(LinkOpened& m) {
  return std::tie(m.gpu, m.gpu_reader, m.id, m.problem);
}
auto members(BufferRangesAsked& m) {
  return std::tie(m.gpu, m.gpu_reader, m.runs);
}
auto members(LoaderGone& m) {
  return std::tie(m.loader, m.dead, m.left);
}
auto members(RankDied& m) {
  return std::tie(m.rank, m.reason);
}
auto members(ChunkDamaged& m) {
  return std::tie(m.loader, m.lease, m.reason);
}
auto members(LoaderDamaged& m) {
  return std::tie(m.loader, m.reason);
}
auto members(LoaderLeaving& m) {
  return std::tie(m.reason);
}
auto members(GivenUp& m) {
  return std::tie(m.incarnation);
}
auto members(Leave& m) {
  return std::tie(m.reason);
}
auto members(LoaderReport& m) {
  return std::tie(m.json);
}
auto members(Goodbye& m) {
  return std::tie(m.good, m.exit_code, m.reason, m.all_alive);
}

}  // namespace

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
  Message bytes = codec::encode(message, [](auto& m) { return members(m); });
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
  const uint8_t kind = in.u8();
  return codec::decode<ControlMessage>(static_cast<const ControlMessages*>(nullptr), kind, in,
                                       [](auto& m) { return members(m); });
}

}  // namespace penstock
