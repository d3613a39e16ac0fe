// What ranks send each other: control messages between loaders, receivers and the coordinator (in trainer 0's
//   receiver).
//
//   endpoint.send(peer, encode(LeaseGranted{...}));
//   std::visit(overloaded{...}, decode(message));          // Error(peer_lost) where it is damaged (CRC-32C)
//
// A conversation, from opening a split to a batch (C: coordinator, R: a receiver, L: a loader):
//   a. L -> C  LoaderHello                 chunk buffers, depth, threads; from then on Alive, the heartbeat, and
//                                          LeasesAhead
//   b. R -> C  OpenSplit(json)             when a client opens a split; every replica must bring the same text
//   c. C -> L  PrepareSplit(json)          to every loader, once per fingerprint
//   d. L -> C  SplitPrepared               size and fingerprint of the dataset it sees, or why not
//   e. C -> R  SplitOpened / SplitRefused
//   f. R -> C  OpenLeaseStream             an iteration begins; then BatchBufferFree for every batch there is room for
//   g. C -> L  LeaseGranted                what the balancer decided, with the sample indices; or LeaseRevoked
//   h. L -> C  ChunkDone / ChunkUndone, and later ChunkBufferFree
//   i. L -> R  (chunk)                     runtime/protocol/chunk.h; after ChunkDone, which C may hear later all the same
//   j. R -> C  ChunkTaken                  accepted: it stands in its batch buffer
//   k. R -> C  CursorAt, CloseLeaseStream
//   l. R -> C  SplitClosed                 this receiver's last client of a split has gone; C -> L: so have all
//                                          receivers'
//   Where a program reads images from the memory of a loader's GPU (runtime/gpu/buffer_ranges.h), and OpenLeaseStream
//   says so:
//   m. L -> R  ExportOffered (+ descriptor) before the first chunk for it
//   n. R -> L  LinkAsked                   where no descriptor gets there (loader.gpu_links); L -> R   LinkOpened
//   o. R -> L  ExportUsed                  the program has it open, or linked: from then on chunks may have a buffer
//                                          range
//   p. R -> L  BufferRangesAsked           where it is linked, what the program is about to receive
//   q. R -> L  BufferRangeReturned         that has been read
//   r. C -> R  LoaderGone                  nothing can be received from it any more
//   s. R, L -> C  RankDied                 a rank of the same node
//   t. C -> L  GivenUp                     silent for too long; when it hears of that it drops its work and says
//                                          LoaderHello again, as its next incarnation
//   u. R -> C  ChunkDamaged, LoaderDamaged what came from a loader and is no use
//   v. L -> C  LoaderLeaving               it is to go (SIGTERM): the coordinator grants it nothing more, says Leave when
//                                          it holds nothing, and Goodbye to it alone when it has reported
//   w. C -> L  SizesAsked, L -> C SizesTold  what samples weigh, for the balancer; after SplitPrepared, a part at a time
//   Alive, besides: receivers to C and C to everybody, where they are processes (runtime/protocol/silence.h)
// Ending: receivers report ReceiverDone when their program has ended (or after EndServing, which goes to all of them);
// the coordinator asks loaders to Leave, collects their reports and sends everybody Goodbye.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/base/fields.h"
#include "runtime/base/memory_range.h"
#include "runtime/base/sample.h"
#include "transport/transport.h"

namespace penstock {

using Fingerprint = uint64_t;  // low half of the XXH3-128 of a split's canonical JSON

Fingerprint fingerprint_of(const std::string& canonical_json);

// `incarnation`: 0, and then what GivenUp said: until that hello the coordinator ignores whatever else the loader says.
struct LoaderHello {
  int32_t chunk_buffers = 0;
  int32_t depth = 0;
  int32_t threads = 0;
  int32_t incarnation = 0;
  bool gpus = false;  // beside its threads
};
struct Alive {};
// `like`: a split of the same description that the loader has open. Where its files are as they were, the answer is
// `same` and there is nothing more of this one.
struct PrepareSplit {
  Fingerprint fingerprint = 0;
  std::string json;
  int32_t max_chunk_samples = 1;
  Fingerprint like = 0;
};
struct SplitPrepared {
  Fingerprint fingerprint = 0;
  bool good = false;
  int64_t dataset_size = 0;
  std::string dataset_fingerprint;  // 32 hexadecimal digits
  std::vector<std::string> classes;
  FieldTable extra_fields;        // of a sample, after image and label
  bool labelled = true;           // false: the label is 0 everywhere, and no program shall see it
  int64_t sample_bytes = 0;       // of one sample in a chunk, as it travels
  bool partial = false;           // dataset.local: it can read no samples but those in `readable`
  std::vector<int64_t> readable;  // IndexRanges::bounds()
  std::string lacking;            // what else there is, for messages
  bool same = false;              // as PrepareSplit::like: the rest is empty
  int32_t error_kind = 0;         // ErrorKind, where not good
  bool may_pass = false;          // by itself, what kept it from being opened, though not in the time for that
  std::string error;
  std::string remedy;
};
// C -> L, to one of those that have the split open: what the source knows of some samples' encoded sizes without looking
// at a disk. L -> C: a code for each (sample_sizes.h); none: it knows nothing of them.
struct SizesAsked {
  Fingerprint fingerprint = 0;
  int64_t first = 0;
  int32_t samples = 0;
};
struct SizesTold {
  Fingerprint fingerprint = 0;
  int64_t first = 0;
  std::string codes;
};
// `program` and `opening` count at the receiver: programs that it fed, and how often this one opened the split's name.
struct OpenSplit {
  std::string json;
  int32_t replica = 0;
  int32_t num_replicas = 1;
  int64_t program = 0;
  int32_t opening = 0;
  int32_t split = 0;  // the receiver's number for it, which the answer repeats
};
// `fingerprint` names the split from now on: that of its description, or another where its files were listed anew while
// somebody had the older list open.
struct SplitOpened {
  Fingerprint fingerprint = 0;
  int64_t dataset_size = 0;
  std::string dataset_fingerprint;  // 32 hexadecimal digits
  std::vector<std::string> classes;
  FieldTable extra_fields;
  bool labelled = true;
  int32_t split = 0;
};
struct SplitRefused {
  int32_t split = 0;
  int32_t error_kind = 0;
  std::string error;
  std::string remedy;
};
// Where the split's order is its program's, `order` is this iteration's: the replica's own share, all of it.
struct OpenLeaseStream {
  LeaseStreamId lease_stream = 0;
  Fingerprint fingerprint = 0;
  int32_t replica = 0;
  int64_t epoch = 0;
  int64_t first_step = 0;
  std::vector<int64_t> order;
  int64_t program = 0;  // as when the split was opened
  int32_t opening = 0;
  int32_t gpu_reader = 0;  // of the receiver's clients, the one that reads images from GPUs' memory; 0: it does not
  bool again = false;      // the rest of an iteration that began before, by another lease stream
};
// The coordinator's answer to OpenLeaseStream: how batches are cut into chunks in this lease stream. `by_holder`: not into
// successive rows, but into rows that the same loaders can read (coordinator/sample_placement.h), chunk_samples at most.
struct LeaseStreamReady {
  LeaseStreamId lease_stream = 0;
  int32_t chunk_samples = 1;
  bool by_holder = false;
};
struct BatchBufferFree {
  LeaseStreamId lease_stream = 0;
  int64_t step = 0;
};
struct CursorAt {
  LeaseStreamId lease_stream = 0;
  int64_t cursor = 0;
  bool waiting = false;
};
struct CloseLeaseStream {
  LeaseStreamId lease_stream = 0;
};
struct LeaseStreamFailed {
  LeaseStreamId lease_stream = 0;
  int32_t error_kind = 0;
  std::string error;
  std::string remedy;
};
struct LeaseGranted {
  LeaseKey lease;
  Fingerprint fingerprint = 0;
  int64_t epoch = 0;
  int32_t replica = 0;
  PeerId receiver = 0;     // where the chunk goes
  int32_t first_row = 0;   // place of its first sample in the batch; of the others: LeaseStreamReady
  int32_t gpu_reader = 0;  // as OpenLeaseStream
  bool compared = false;   // with the same chunk of another loader (balancer.h, invariant 5)
  std::vector<PlannedSample> samples;
};
struct LeaseRevoked {
  LeaseKey lease;
};
struct ChunkDone {
  LeaseKey lease;
  int64_t busy_ns = 0;
  int64_t bytes = 0;
  int64_t pixels = 0;
  int64_t held_ns = -1;  // from the lease's arrival until the chunk was sent; -1: unknown
};
struct ChunkUndone {
  LeaseKey lease;
  std::string reason;
};
struct ChunkBufferFree {
  PeerId receiver = 0;
};
struct ChunkTaken {
  LeaseKey lease;
};
struct ReceiverDone {
  bool good = true;
  std::string problem;
  int32_t exit_code = 0;
  std::string report_json;
};
// `penstock serve`: how many programs live at this receiver; that serving shall end (to the coordinator), or ends
// (from it).
struct ProgramsAt {
  int32_t living = 0;
};
struct EndServing {
  std::string reason;
};
// `failed`: it could not be opened somewhere, so nothing of it is worth keeping. `split`: from receivers, as in
// OpenSplit.
struct SplitClosed {
  Fingerprint fingerprint = 0;
  bool failed = false;
  int32_t split = 0;
};
// From a loader: so many leases more than its depth are of use to it, because its reads are slow and run ahead.
struct LeasesAhead {
  int32_t leases = 0;
};
// Memory that a loader's GPU exports; `gpu` counts at the loader. `linked`: by a link (gpu/gpu_link.h), no
// descriptor.
struct ExportOffered {
  int32_t gpu = 0;
  uint64_t bytes = 0;
  bool linked = false;
};
// One of the receiver's programs has it open, or no more.
struct ExportUsed {
  int32_t gpu = 0;
  int32_t gpu_reader = 0;
  bool used = false;
};
// One of the receiver's programs, whose GPU is `identity` (Gpu::identity()), would join a link.
struct LinkAsked {
  int32_t gpu = 0;
  int32_t gpu_reader = 0;
  std::string identity;
};
// The link's Gpu::link_id(); or why there is none, or none any more.
struct LinkOpened {
  int32_t gpu = 0;
  int32_t gpu_reader = 0;
  std::string id;
  std::string problem;
};
// To be sent by the link, in this order, each at once.
struct BufferRangesAsked {
  int32_t gpu = 0;
  int32_t gpu_reader = 0;
  std::vector<MemoryRange> runs;
};
struct BufferRangeReturned {
  int32_t gpu = 0;
  uint64_t id = 0;
};
// C -> R: given up, or lost; receivers that see its loss themselves may have heard of it before.
struct LoaderGone {
  PeerId loader = 0;
  bool dead = false;
  bool left = false;  // in good order
};
// R -> C: a chunk came damaged, or unlike its lease; it is to be made again.
struct ChunkDamaged {
  PeerId loader = 0;
  LeaseKey lease;
  std::string reason;
};
// R -> C: what the loader says cannot be understood. It is given up, and may join again.
struct LoaderDamaged {
  PeerId loader = 0;
  std::string reason;
};
struct LoaderLeaving {
  std::string reason;
};
// All that it had was granted to others. `incarnation`: as which it may join again.
struct GivenUp {
  int32_t incarnation = 0;
};
// To C, from a rank of the same node that saw the rank's process end; any number of times.
struct RankDied {
  PeerId rank = 0;
  std::string reason;
};
struct Leave {
  std::string reason;
};
struct LoaderReport {
  std::string json;
};
// all_alive: nobody is missing for whom MPI_Finalize would wait: no rank was lost, has left before or is given up, and
// no two of them seem cut off from each other. Ranks wait for each other there only where the job is good as well.
struct Goodbye {
  bool good = true;
  int32_t exit_code = 0;
  std::string reason;
  bool all_alive = true;
};

using ControlMessages =
    std::variant<LoaderHello, Alive, PrepareSplit, SplitPrepared, OpenSplit, SplitOpened, SplitRefused, OpenLeaseStream,
                 LeaseStreamReady, BatchBufferFree, CursorAt, CloseLeaseStream, LeaseStreamFailed, LeaseGranted,
                 LeaseRevoked, ChunkDone, ChunkUndone, ChunkBufferFree, ChunkTaken, ReceiverDone, Leave, LoaderReport,
                 Goodbye, ProgramsAt, EndServing, SplitClosed, LeasesAhead, ExportOffered, ExportUsed,
                 BufferRangeReturned, LinkAsked, LinkOpened, BufferRangesAsked, LoaderGone, RankDied, GivenUp,
                 ChunkDamaged, LoaderDamaged, LoaderLeaving, SizesAsked, SizesTold>;

// One of them. Copied, moved and destroyed by functions of messages.cpp: for this many kinds the compiler writes
// thousands of small functions, in every file that would have them inline.
struct ControlMessage : ControlMessages {
  using ControlMessages::ControlMessages;
  ControlMessage();
  ControlMessage(const ControlMessage& other);
  ControlMessage(ControlMessage&& other) noexcept;
  ControlMessage& operator=(const ControlMessage& other);
  ControlMessage& operator=(ControlMessage&& other) noexcept;
  ~ControlMessage();
};

Message encode(const ControlMessage& message);
ControlMessage decode(std::span<const std::byte> bytes);

// For std::visit with lambdas.
template <class... Ts>
struct overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
overloaded(Ts...) -> overloaded<Ts...>;

}  // namespace penstock
