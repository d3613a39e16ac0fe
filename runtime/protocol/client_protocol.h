// What a client (the training program) and its receiver send each other over their Unix-domain socket.
//
//   client                              receiver
//   ClientHello(token)          ->      ClientWelcome | ClientRefused (only of sockets that were connected by name)
//   ClientOpen(split, finish)   ->      ClientOpened | ClientRefused
//   ClientIterate(epoch, step, order where it is the program's)
//                               ->      ClientIteration (+ the pool's memfd, the first time)
//   ClientNext                  ->      ClientBatch | ClientEnd | ClientFailed, whenever it is ready
//                                       (ClientNotice may come before: "you hold all batches")
//   ClientRelease(pool, batch buffer) ->
//                                       ClientExport (+ fd), ClientExportGone: memory of a loader's GPU, only where the
//                                       split was opened with gpu_images
//   ClientExportUsed(exported)  ->      batches may have images there from then on
//   ClientLinkAsked(exported)   ->      ClientLinkOpened, now or later: where that memory is linked, before it is used
//   ClientBufferRangesAsked(exported)
//                               ->      and before each batch's images are received from there
//   ClientStop(iteration)       ->
//   ClientStats                 ->      ClientStatsJson
//   ClientGoodbye               ->      a hang-up: the client has no batch any more, nor one that lies unread
//   ClientEndServing            ->      a hang-up, once every rank of `penstock serve` has left its work
//
// Answers to ClientNext name their iteration, so a client may leave one unanswered (its program was interrupted) and ask
// something else meanwhile.
//
// A batch counts as consumed when the receiver answers ClientNext with it.
//
// A batch buffer, memory of one batch at the receiver, has one writer at a time:
//
//     free --reserve--> filling --all chunks accepted--> ready --next()--> held --release--> free
//           (receiver)  receiver writes                  nobody writes     client reads and writes
//
// Memory of a batch buffer (BatchBufferLayout): int64 index[B], uint8 valid[B], uint8 substituted[B], then each field's
//   [B, ...] array, which for a bytes or text field are B rooms of its longest value (base/field_value.h); every part
//   begins at a multiple of 64 bytes. B is the split's batch size; the last batch of an epoch may use less.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/fields.h"
#include "runtime/base/memory_range.h"
#include "runtime/pixels/finish.h"
#include "transport/transport.h"

namespace penstock {

struct ClientHello {
  std::string token;
  int32_t pid = 0;
};
// The receiver's identity, so that a program that found it by name can tell whether it is the right one.
struct ClientWelcome {
  int32_t replica = 0;
  int32_t num_replicas = 1;
  int32_t local_replicas = 1;  // trainers on this node
  std::string host;
  std::string overrides_json;  // `penstock serve`: its command line's, a list; the program's own come after them
};
struct ClientOpen {
  std::string json;             // the resolved split, canonical
  int32_t dtype = -1;           // DType wanted; -1: the pipeline's
  int32_t channels_last = -1;   // 0, 1; -1: the split's
  bool raw_images = false;      // as they arrive, uint8 and planar: the client makes of them what dtype and layout say
  bool gpu_images = false;      // and in memory that loaders' GPUs export, where they are there
  int64_t longest_wait_ns = 0;  // Job::longest_wait_ns() of the program, whose job may say another; 0: for ever
};
// How images are finished for it, whose pipeline and split say `finish` and `channels_last`.
FinishSpec wanted_finish(FinishSpec finish, bool channels_last, const ClientOpen& asked);
struct ClientOpened {
  int32_t split_id = 0;
  int64_t dataset_size = 0;
  int64_t steps = 0;                // batches per epoch and replica
  int64_t samples_per_replica = 0;  // padding included
  int64_t num_samples = 0;          // valid ones of this replica
  int64_t batch_size = 0;
  int32_t replica = 0;
  int32_t num_replicas = 1;
  std::string dataset_fingerprint;  // 32 hexadecimal digits
  std::vector<std::string> classes;
  bool labelled = true;  // false: field "label" is 0 everywhere, and the program does not see it
  FieldTable fields;     // as delivered: dtype after finishing or raw; shape [3, h, w] also where channels_last
  bool channels_last = false;
  bool raw_images = false;  // as asked for; not where batches are mixed in floats, which is done behind finishing
};
struct ClientRefused {
  int32_t error_kind = 0;
  std::string error;
  std::string remedy;
};
struct ClientIterate {
  int32_t split_id = 0;
  int64_t epoch = 0;
  int64_t first_step = 0;
  std::vector<int64_t> order;  // of this iteration, where it is the program's: this replica's share, all of it
};
struct ClientIteration {
  uint64_t iteration = 0;
  int32_t pool = 0;
  int32_t batch_buffers = 0;
  uint64_t batch_buffer_bytes = 0;
  bool with_memory = false;  // the pool's memfd comes with this message
};
struct ClientNext {
  uint64_t iteration = 0;
};
// Samples of a batch whose images are in memory that a loader's GPU exports, and not in the batch buffer.
struct ClientBufferRange {
  int32_t exported = 0;
  int32_t first = 0;  // of the batch's samples
  int32_t samples = 0;
  uint64_t at = 0;  // in the exported memory
  uint64_t bytes = 0;

  friend bool operator==(const ClientBufferRange&, const ClientBufferRange&) = default;
};
struct ClientBatch {
  uint64_t iteration = 0;
  int32_t pool = 0;
  int32_t batch_buffer = 0;
  int64_t epoch = 0;
  int64_t step = 0;
  int64_t samples = 0;
  int64_t num_valid = 0;
  std::vector<ClientBufferRange> buffer_ranges;
};
struct ClientEnd {
  uint64_t iteration = 0;
};
struct ClientFailed {
  int32_t error_kind = 0;
  std::string error;
  std::string remedy;
  uint64_t iteration = 0;  // whose ClientNext this answers; 0: the answer to anything else
};
// `held_iteration`: the program has all batches that this iteration can give, and its question waits for one of
// them; else 0.
struct ClientNotice {
  std::string text;
  uint64_t held_iteration = 0;
};
struct ClientRelease {
  int32_t pool = 0;
  int32_t batch_buffer = 0;
};
struct ClientStop {
  uint64_t iteration = 0;
};
struct ClientStats {};
struct ClientStatsJson {
  std::string json;
};
struct ClientEndServing {};
struct ClientGoodbye {};
// `exported` counts at the receiver. Gone: with its loader; what batches still have there stays readable, where it is
// not linked.
struct ClientExport {
  int32_t exported = 0;
  uint64_t bytes = 0;
  bool linked = false;
};
struct ClientExportUsed {
  int32_t exported = 0;
  bool used = false;
};
struct ClientExportGone {
  int32_t exported = 0;
};
// As LinkAsked, LinkOpened and BufferRangesAsked (protocol/messages.h).
struct ClientLinkAsked {
  int32_t exported = 0;
  std::string identity;
};
struct ClientLinkOpened {
  int32_t exported = 0;
  std::string id;
  std::string problem;
};
struct ClientBufferRangesAsked {
  int32_t exported = 0;
  std::vector<MemoryRange> runs;
};

using ClientMessages =
    std::variant<ClientHello, ClientOpen, ClientOpened, ClientRefused, ClientIterate, ClientIteration, ClientNext,
                 ClientBatch, ClientEnd, ClientFailed, ClientNotice, ClientRelease, ClientStop, ClientStats,
                 ClientStatsJson, ClientWelcome, ClientEndServing, ClientExport, ClientExportUsed, ClientExportGone,
                 ClientLinkAsked, ClientLinkOpened, ClientBufferRangesAsked, ClientGoodbye>;

// One of them, compiled once like ControlMessage (messages.h).
struct ClientMessage : ClientMessages {
  using ClientMessages::ClientMessages;
  ClientMessage();
  ClientMessage(const ClientMessage& other);
  ClientMessage(ClientMessage&& other) noexcept;
  ClientMessage& operator=(const ClientMessage& other);
  ClientMessage& operator=(ClientMessage&& other) noexcept;
  ~ClientMessage();
};

Message encode_client(const ClientMessage& message);
ClientMessage decode_client(std::span<const std::byte> bytes);

struct BatchBufferLayout {
  size_t indices = 0;
  size_t valid = 0;
  size_t substituted = 0;
  std::vector<size_t> fields;
  size_t total_bytes = 0;  // a multiple of the page size, so that batch buffers do not share pages
};
BatchBufferLayout batch_buffer_layout(const FieldTable& fields, int64_t batch_size);

}  // namespace penstock
