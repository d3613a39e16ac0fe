#include "transport/mpi/progress.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <new>

#include "runtime/base/clock.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/wire.h"
#include "transport/mpi/mpi_call.h"
#include "transport/mpi/polling_backoff.h"

namespace penstock::mpi {
namespace {

constexpr int kControlTag = 1;
constexpr int kEnvelopeTag = 2;
constexpr int kPayloadTag = 3;
constexpr size_t kSpareStagingBuffers = 32;
// An envelope begins with these, and their CRC: bytes of the chunk's payload, pieces that were sent before it.
constexpr size_t kSizes = 8 + 8;
constexpr uint64_t kMostChunkBytes = uint64_t{4} << 30;
constexpr Nanoseconds kSurelySeen = 5 * kMillisecond;  // longer than sleeps while there is traffic

}  // namespace

void Progress::loop() {
  const MonotonicClock clock;
  PollingBackoff backoff;
  for (;;) {
    set_aside();
    const bool sent = start_orders();
    bool moved = receive_messages();
    moved = complete_messages() || moved;
    moved = drop_stray_pieces() || moved;
    moved = complete_receives() || moved;
    complete_sends();
    if (sent) backoff.sent(clock.now());
    if (moved) backoff.moved(clock.now());
    std::packaged_task<void()> work;
    {
      MutexLock lock(mutex_);
      busy_ = any_send_to_wait_for();
      if (!busy_ && orders_.empty()) changed_.notify_all();
      if (!work_.empty()) {
        work = std::move(work_.front());
        work_.pop_front();
      } else if (ends_now_ || (stopping_ && orders_.empty() && !busy_)) {
        return;
      } else if (!moved && orders_.empty()) {
        const Nanoseconds now = clock.now();
        const Nanoseconds sleep = backoff.next(must_drive(now), now);
        order_wakes_ = backoff.order_wakes();
        changed_.wait_for(mutex_, std::chrono::microseconds(sleep / kMicrosecond));
        order_wakes_ = false;
      }
    }
    if (work.valid()) work();
    if (finalised_ || at_end()) return;
  }
}

// Whether requests are under way that only MPI calls move on. To a rank of this node a send needs none, where the other
// side copies all of it at once; one that is not over when that side has surely looked is being sent in pieces, as in
// containers whose processes may not read each other's memory.
bool Progress::must_drive(Nanoseconds now) const {
  const auto arrives = [this](const auto& one) { return silent_.count(one.peer) == 0; };
  if (std::any_of(arriving_.begin(), arriving_.end(), arrives)) return true;
  if (std::any_of(reading_.begin(), reading_.end(), arrives)) return true;
  const int here = world_.ranks[static_cast<size_t>(world_.rank)].node;
  return std::any_of(sending_.begin(), sending_.end(), [&](const Outgoing& out) {
    if (silent_.count(out.peer) != 0) return false;
    return world_.ranks[static_cast<size_t>(out.peer)].node != here || now - out.begun > kSurelySeen;
  });
}

bool Progress::any_send_to_wait_for() const {
  return std::any_of(sending_.begin(), sending_.end(),
                     [this](const Outgoing& out) { return silent_.count(out.peer) == 0; });
}

void Progress::set_aside() {
  {
    MutexLock lock(mutex_);
    dead_.insert(abandoned_.begin(), abandoned_.end());
    silent_.merge(given_up_);
    given_up_.clear();
  }
  if (set_aside_ == dead_.size()) return;
  set_aside_ = dead_.size();
  for (auto it = sending_.begin(); it != sending_.end();) {
    const auto out = it++;
    if (dead_.count(out->peer) != 0) sends_set_aside_.splice(sends_set_aside_.end(), sending_, out);
  }
  for (auto it = arriving_.begin(); it != arriving_.end();) {
    const auto chunk = it++;
    if (dead_.count(chunk->peer) != 0) arrivals_set_aside_.splice(arrivals_set_aside_.end(), arriving_, chunk);
  }
}

// False: the call failed, and the peer that it concerned is lost.
bool Progress::succeeds(PeerId peer, int code, const char* call) {
  if (code == MPI_SUCCESS) return true;
  lose(peer, ulfm_.process_failed(code) ? "its process ended" : std::string(call) + " failed: " + error_text(code));
  return false;
}

// Whether all of them are over, and well.
bool Progress::complete(PeerId peer, std::vector<MPI_Request>& requests) {
  if (statuses_.size() < requests.size()) statuses_.resize(requests.size());
  int done = 0;
  int code = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    const auto end = statuses_.begin() + std::ssize(requests);
    const auto failed = std::find_if(statuses_.begin(), end, [](const MPI_Status& status) {
      return status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING;
    });
    if (failed != end) code = failed->MPI_ERROR;
  }
  return succeeds(peer, code, "MPI_Testall") && done != 0;
}

void Progress::lose(PeerId peer, const std::string& why) {
  if (dead_.insert(peer).second) deliver(PeerLost{peer, why, true});
}

// A look at messages of anybody failed. MPI may know who ended; otherwise each peer is asked for alone.
void Progress::find_who_failed(int code) {
  bool anybody = false;
  if (ulfm_.process_failed(code)) {
    const std::vector<int> failed = ulfm_.acknowledge(comm_);
    anybody = failed.size() > acknowledged_;  // else this is another failure, and would come again and again
    acknowledged_ = failed.size();
    for (const int rank : failed) lose(rank, "its process ended");
  }
  for (PeerId peer = 0; peer < world_.size && !anybody; ++peer) {
    if (peer == world_.rank || dead_.count(peer) != 0) continue;
    int found = 0;
    anybody = !succeeds(peer, MPI_Iprobe(peer, kControlTag, comm_, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
  }
  if (!anybody) check(code, "MPI_Improbe(");
}

void Progress::begin_send(const Order& order, Outgoing& out) {
  WireWriter head;
  if (order.chunk) {
    head.u64(order.bytes);
    head.u64(pieces_sent_[order.peer]);
    head.u32(crc32c(head.bytes().data(), head.bytes().size()));
  }
  out.message.reserve(head.bytes().size() + order.message.size());
  out.message.assign(head.bytes().begin(), head.bytes().end());
  out.message.insert(out.message.end(), order.message.begin(), order.message.end());
  const auto send = [&](const std::byte* bytes, size_t count, int tag) {
    out.requests.emplace_back(MPI_REQUEST_NULL);
    const int code = MPI_Isend(bytes, static_cast<int>(count), MPI_BYTE, order.peer, tag, comm_, &out.requests.back());
    return succeeds(order.peer, code, "MPI_Isend");
  };
  if (!send(out.message.data(), out.message.size(), order.chunk ? kEnvelopeTag : kControlTag)) return;
  for (size_t offset = 0; order.chunk && offset < order.bytes;) {
    const size_t count = std::min(order.bytes - offset, static_cast<size_t>(max_message_bytes_));
    if (!send(order.payload + offset, count, kPayloadTag)) return;
    ++pieces_sent_[order.peer];
    offset += count;
  }
}

bool Progress::start_orders() {
  std::deque<Order> orders;
  {
    MutexLock lock(mutex_);
    orders.swap(orders_);
    if (!orders.empty()) busy_ = true;
  }
  for (const Order& order : orders) {
    if (dead_.count(order.peer) != 0) {
      if (order.chunk) deliver(ChunkBufferReturned{order.peer, order.chunk_buffer});
      continue;
    }
    Outgoing& out = sending_.emplace_back();
    out.chunk = order.chunk;
    out.peer = order.peer;
    out.chunk_buffer = order.chunk_buffer;
    out.begun = MonotonicClock().now();
    begin_send(order, out);
  }
  return !orders.empty();
}

std::unique_ptr<std::vector<std::byte>> Progress::staging_buffer(size_t bytes) {
  std::unique_ptr<std::vector<std::byte>> staging;
  {
    MutexLock lock(mutex_);
    if (!spare_.empty()) {
      staging = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (!staging) staging = std::make_unique<std::vector<std::byte>>();
  if (staging->size() < bytes) staging->resize(bytes);
  return staging;
}

// Begins to receive the first piece that waits, to be dropped. False: none does, or the peer is lost. std::bad_alloc: it still
// waits, because it is only taken when there is memory for it.
bool Progress::drop_piece(PeerId peer) {
  int found = 0;
  MPI_Status status;
  const int code = MPI_Iprobe(peer, kPayloadTag, comm_, &found, &status);
  if (!succeeds(peer, code, "MPI_Iprobe") || found == 0) return false;
  int size = 0;
  PENSTOCK_MPI_CALL(MPI_Get_count(&status, MPI_BYTE, &size));
  uint64_t& taken = pieces_taken_[peer];
  std::list<Arriving> piece(1);
  piece.front().peer = peer;
  piece.front().dropped = true;
  piece.front().staging = staging_buffer(static_cast<size_t>(size));
  piece.front().requests.emplace_back(MPI_REQUEST_NULL);
  arriving_.splice(arriving_.end(), piece);
  Arriving& dropped = arriving_.back();
  ++taken;
  // No other thread receives on this communicator, so this is the piece that was found.
  const int begun =
      MPI_Irecv(dropped.staging->data(), size, MPI_BYTE, peer, kPayloadTag, comm_, dropped.requests.data());
  return succeeds(peer, begun, "MPI_Irecv");
}

// Begins to receive the pieces that the peer sent before an envelope, and that no receive was begun for. They are here,
// because MPI matches what one rank sends in the order of sending. False: they are not, or the peer is lost.
bool Progress::drop_pieces(PeerId peer, uint64_t before) {
  const uint64_t& taken = pieces_taken_[peer];
  while (taken < before) {
    if (!drop_piece(peer)) return false;
  }
  return taken == before;
}

// Where no envelope follows that would tell of them, the pieces of a lost chunk are dropped as they come: until they are
// received, their sender has something under way, and waits for it when the job ends. One at a time, to need little memory.
bool Progress::drop_stray_pieces() {
  const auto waits = [this](PeerId peer, int tag) {
    int found = 0;
    return succeeds(peer, MPI_Iprobe(peer, tag, comm_, &found, MPI_STATUS_IGNORE), "MPI_Iprobe") && found != 0;
  };
  bool moved = false;
  for (const PeerId peer : unclear_) {
    const auto is_dropped = [peer](const Arriving& piece) { return piece.dropped && piece.peer == peer; };
    const auto is_envelope = [peer](const Reading& one) { return one.tag == kEnvelopeTag && one.peer == peer; };
    if (dead_.count(peer) != 0 || std::any_of(arriving_.begin(), arriving_.end(), is_dropped)) continue;
    // In this order: what was sent after an envelope is not here before it. An envelope that is here is read first.
    if (std::any_of(reading_.begin(), reading_.end(), is_envelope)) continue;
    if (!waits(peer, kPayloadTag) || waits(peer, kEnvelopeTag)) continue;
    try {
      moved = drop_piece(peer) || moved;
    } catch (const std::bad_alloc&) {  // tried again at the next turn
    }
  }
  return moved;
}

// A chunk is on its way from the peer, by its envelope. Of one that cannot be read nobody knows which pieces are its own:
// the next envelope tells, and what comes without one is no chunk's.
void Progress::begin_receive(PeerId peer, const Message& message) {
  const auto damaged = [&](const std::string& what) {
    unclear_.insert(peer);
    if (dead_.count(peer) == 0) deliver(PeerDamaged{peer, "rank " + std::to_string(peer) + " " + what});
  };
  WireReader in(message, "chunk envelope");
  if (message.size() < kSizes + sizeof(uint32_t)) return damaged("sent a chunk's envelope that is too short");
  const uint64_t bytes = in.u64();
  const uint64_t before = in.u64();
  if (in.u32() != crc32c(message.data(), kSizes) || bytes > kMostChunkBytes) {
    return damaged("announced a chunk of impossible size; all ranks must run the same version of penstock");
  }
  std::unique_ptr<std::vector<std::byte>> staging;
  try {
    if (!drop_pieces(peer, before)) return damaged("sent pieces of other chunks than it announced");
    staging = staging_buffer(bytes);
  } catch (const std::bad_alloc&) {  // one peer's word must not cost all others
    return damaged("announced a chunk of " + std::to_string(bytes) + " bytes, for which there is no memory here");
  }
  unclear_.erase(peer);
  Arriving& chunk = arriving_.emplace_back();
  chunk.peer = peer;
  chunk.bytes = bytes;
  const auto rest = in.raw(in.left());
  chunk.envelope.assign(rest.begin(), rest.end());
  chunk.staging = std::move(staging);
  for (size_t offset = 0; offset < chunk.bytes;) {
    const size_t count = std::min(chunk.bytes - offset, static_cast<size_t>(max_message_bytes_));
    chunk.requests.emplace_back(MPI_REQUEST_NULL);
    const int code = MPI_Irecv(chunk.staging->data() + offset, static_cast<int>(count), MPI_BYTE, peer, kPayloadTag,
                               comm_, &chunk.requests.back());
    if (!succeeds(peer, code, "MPI_Irecv")) return;
    ++pieces_taken_[peer];
    offset += count;
  }
}

// Begins to. A large message needs its sender to go on, which may be stopped or dead: nobody else is to wait for that.
bool Progress::receive_messages() {
  bool moved = false;
  for (int taken = 0; taken < 64; ++taken) {
    int found = 0;
    int tag = kControlTag;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    for (const int wanted : {kControlTag, kEnvelopeTag}) {
      const int code = MPI_Improbe(MPI_ANY_SOURCE, wanted, comm_, &found, &handle, &status);
      if (code != MPI_SUCCESS) {
        (void)complete_messages();  // the last words of who failed come before its loss, behind which nobody hears it
        find_who_failed(code);
        return true;
      }
      tag = wanted;
      if (found) break;
    }
    if (!found) break;
    int size = 0;
    PENSTOCK_MPI_CALL(MPI_Get_count(&status, MPI_BYTE, &size));
    moved = true;
    Reading& reading = reading_.emplace_back();
    reading.peer = status.MPI_SOURCE;
    reading.tag = tag;
    reading.message.resize(static_cast<size_t>(size));
    reading.requests.emplace_back(MPI_REQUEST_NULL);
    const int begun = MPI_Imrecv(reading.message.data(), size, MPI_BYTE, &handle, reading.requests.data());
    (void)succeeds(reading.peer, begun, "MPI_Imrecv");
  }
  return moved;
}

// Hands on the messages that are whole, but none before an earlier one of the same peer. What a dead peer says is dropped,
// and set aside where it is not whole at once: one that MPI lost may live, and go on saying that it does.
bool Progress::complete_messages() {
  bool moved = false;
  std::set<PeerId> late;
  for (auto it = reading_.begin(); it != reading_.end();) {
    const auto reading = it++;
    const PeerId peer = reading->peer;
    const bool dead = dead_.count(peer) != 0;
    if (late.count(peer) == 0 && complete(peer, reading->requests)) {
      moved = true;
      silent_.erase(peer);
      const int tag = reading->tag;
      Message message = std::move(reading->message);
      reading_.erase(reading);
      if (dead) continue;
      if (tag == kControlTag) {
        deliver(MessageArrived{peer, std::move(message)});
      } else {
        begin_receive(peer, message);
      }
    } else if (dead_.count(peer) != 0) {
      messages_set_aside_.splice(messages_set_aside_.end(), reading_, reading);
    } else {
      late.insert(peer);
    }
  }
  return moved;
}

void Progress::complete_sends() {
  for (auto it = sending_.begin(); it != sending_.end();) {
    if (dead_.count(it->peer) != 0 || !complete(it->peer, it->requests)) {
      ++it;
      continue;
    }
    if (it->chunk) deliver(ChunkBufferReturned{it->peer, it->chunk_buffer});
    it = sending_.erase(it);
  }
}

bool Progress::complete_receives() {
  bool moved = false;
  for (auto it = arriving_.begin(); it != arriving_.end();) {
    // Where a peer was lost just now, some receives of its chunk may never have been posted.
    if (dead_.count(it->peer) != 0 || !complete(it->peer, it->requests)) {
      ++it;
      continue;
    }
    moved = true;
    silent_.erase(it->peer);
    if (it->dropped) {
      it = arriving_.erase(it);
      continue;
    }
    ChunkArrived chunk{it->peer, std::move(it->envelope), {it->staging->data(), it->bytes}, 0};
    {
      MutexLock lock(mutex_);
      chunk.token = next_token_++;
      staged_[chunk.token] = std::move(it->staging);
    }
    deliver(std::move(chunk));
    it = arriving_.erase(it);
  }
  return moved;
}

void Progress::deliver(Incoming incoming) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = arrived_.empty();
    arrived_.push_back(std::move(incoming));
  }
  if (first) wakeup_.set();  // else it is set: only poll() clears it, when nothing is left
}

void Progress::send(PeerId peer, Message message) {
  MutexLock lock(mutex_);
  if (failed_) return;
  orders_.push_back({peer, std::move(message), false, {}, nullptr, 0});
  if (order_wakes_) changed_.notify_all();
}

void Progress::send_chunk(PeerId peer, Message envelope, ChunkBufferRef chunk_buffer, const std::byte* payload,
                          size_t bytes) {
  MutexLock lock(mutex_);
  if (failed_) return;  // the chunk buffer is quarantined: MPI may still read it
  orders_.push_back({peer, std::move(envelope), true, chunk_buffer, payload, bytes});
  if (order_wakes_) changed_.notify_all();
}

void Progress::abandon(PeerId peer) {
  MutexLock lock(mutex_);
  abandoned_.insert(peer);
  changed_.notify_all();
}

void Progress::give_up(PeerId peer) {
  MutexLock lock(mutex_);
  given_up_.insert(peer);
  changed_.notify_all();
}

void Progress::release(uint64_t token) {
  MutexLock lock(mutex_);
  const auto it = staged_.find(token);
  if (it == staged_.end()) return;
  if (spare_.size() < kSpareStagingBuffers) spare_.push_back(std::move(it->second));
  staged_.erase(it);
}

bool Progress::poll(Incoming& incoming) {
  MutexLock lock(mutex_);
  if (arrived_.empty()) {
    wakeup_.clear();
    return false;
  }
  incoming = std::move(arrived_.front());
  arrived_.pop_front();
  return true;
}

bool Progress::flush(Nanoseconds timeout_ns) {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + timeout_ns;
  MutexLock lock(mutex_);
  while (!orders_.empty() || busy_) {
    const Nanoseconds left = deadline - clock.now();
    if (left <= 0 || failed_) return false;
    changed_.wait_for(mutex_, std::chrono::microseconds(std::min<Nanoseconds>(left / 1000 + 1, 10000)));
  }
  return true;
}

}  // namespace penstock::mpi
