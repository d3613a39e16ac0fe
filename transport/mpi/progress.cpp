#include "transport/mpi/progress.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>

#include "runtime/base/clock.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/random_hex.h"
#include "runtime/base/wire.h"
#include "transport/mpi/mpi_call.h"
#include "transport/mpi/polling_backoff.h"
#include "transport/outlive_peers.h"

namespace penstock::mpi {
namespace {

constexpr int kControlTag = 1;
constexpr int kEnvelopeTag = 2;
constexpr int kPayloadTag = 3;
constexpr size_t kSpareStagingBuffers = 32;
constexpr Nanoseconds kSurelySeen = 5 * kMillisecond;  // longer than sleeps while there is traffic

constexpr Nanoseconds kLastWords = 2 * kSecond;

constexpr std::chrono::seconds kCollectiveTimeout{120};

}  // namespace

std::shared_ptr<Progress> Progress::start(const MpiOptions& options) {
  const std::shared_ptr<Progress> progress(new Progress(options));
  auto started = progress->started_.get_future();
  const auto timeout = std::chrono::duration<double>(options.start_timeout_s);
  if (started.wait_for(timeout) != std::future_status::ready) {
    new std::shared_ptr<Progress>(progress);  // never destroyed: the thread is still in there
    if (options.communicator) {
      throw Error(ErrorKind::peer_lost,
                  "join: not all ranks of the communicator have come within " +
                      std::to_string(static_cast<int64_t>(options.start_timeout_s)) + " s",
                  "every rank of it calls join(), with the same job; mpi.start_timeout_s sets how long to wait");
    }
    throw Error(ErrorKind::peer_lost,
                "MPI did not start within " + std::to_string(static_cast<int64_t>(options.start_timeout_s)) +
                    " s: this rank waits for the others in MPI_Init",
                "a node cannot be reached, or a rank is stopped; mpi.start_timeout_s sets how long to wait");
  }
  started.get();
  return progress;
}

Progress::Progress(const MpiOptions& options)
    : max_message_bytes_(options.max_message_bytes),
      programs_communicator_(options.communicator),
      before_finalize_(options.before_finalize) {
  thread_ = std::thread([this] { run(); });
}

void Progress::run() {
  try {
    initialise();
    started_.set_value();
  } catch (...) {
    started_.set_exception(std::current_exception());
    return;
  }
  try {
    loop();
  } catch (const std::exception& error) {
    // No MPI call can be trusted after one failed unexpectedly: tell the event loop that nobody can be reached.
    {
      MutexLock lock(mutex_);
      failed_ = true;
      failure_ = error.what();
      for (int peer = 0; peer < world_.size; ++peer) {
        if (peer != world_.rank) arrived_.push_back(PeerLost{peer, failure_});
      }
      work_.clear();  // whoever waits for one of these learns that it will not be done
      changed_.notify_all();
    }
    wakeup_.set();
  }
}

Progress::~Progress() {
  if (programs_communicator_) {
    end_thread();
    return;
  }
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// The program started MPI, and calls it while this thread does.
void Progress::take_communicator(int handle) {
  int running = 0;
  int over = 0;
  PENSTOCK_MPI_CALL(MPI_Initialized(&running));
  PENSTOCK_MPI_CALL(MPI_Finalized(&over));
  if (running == 0 || over != 0) {
    throw Error(
        ErrorKind::usage,
        std::string("join: MPI ") + (over != 0 ? "has been finalised" : "has not been started") +
            " (as the MPI sees it that penstock's component was built on)",
        "call MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...) before it, of that MPI, and MPI_Finalize behind it");
  }
  int provided = MPI_THREAD_SINGLE;
  PENSTOCK_MPI_CALL(MPI_Query_thread(&provided));
  if (provided != MPI_THREAD_MULTIPLE) {
    const char* const name = provided == MPI_THREAD_SINGLE     ? "MPI_THREAD_SINGLE"
                             : provided == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                                               : "MPI_THREAD_SERIALIZED";
    throw Error(
        ErrorKind::usage,
        std::string("join: MPI runs with ") + name +
            ", and penstock's thread calls it beside the program's: that needs MPI_THREAD_MULTIPLE",
        "start it with MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...) and check what that provides (mpi4py: the "
        "default of mpi4py.rc.thread_level)");
  }
  MPI_Comm const programs = MPI_Comm_f2c(handle);
  if (programs == MPI_COMM_NULL) {
    throw Error(ErrorKind::usage, "join: the communicator is MPI_COMM_NULL",
                "only ranks that belong to the communicator join");
  }
  int between_groups = 0;
  PENSTOCK_MPI_CALL(MPI_Comm_test_inter(programs, &between_groups));
  if (between_groups != 0) {
    throw Error(ErrorKind::usage, "join: the communicator joins two groups", "merge it: MPI_Intercomm_merge");
  }
  programs_ = programs;
  // MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else.
  PENSTOCK_MPI_CALL(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &finalize_key_, nullptr));
  PENSTOCK_MPI_CALL(MPI_Comm_set_attr(MPI_COMM_SELF, finalize_key_, this));
  PENSTOCK_MPI_CALL(MPI_Comm_dup(programs, &comm_));
}

void Progress::start_mpi() {
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS) throw Error(ErrorKind::runtime, "MPI_Init_thread failed", "run under mpirun");
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(ErrorKind::runtime, "this MPI gives no thread support (MPI_THREAD_FUNNELED is needed)",
                "use an MPI built with threads, as Debian's Open MPI is");
  }
  PENSTOCK_MPI_CALL(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  PENSTOCK_MPI_CALL(MPI_Comm_dup(MPI_COMM_WORLD, &comm_));
}

void Progress::initialise() {
  if (programs_communicator_) {
    take_communicator(*programs_communicator_);
  } else {
    start_mpi();
  }
  PENSTOCK_MPI_CALL(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  PENSTOCK_MPI_CALL(MPI_Comm_set_name(comm_, "penstock"));
  PENSTOCK_MPI_CALL(MPI_Comm_rank(comm_, &world_.rank));
  PENSTOCK_MPI_CALL(MPI_Comm_size(comm_, &world_.size));
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  PENSTOCK_MPI_CALL(MPI_Get_library_version(text, &length));
  world_.library.assign(text, static_cast<size_t>(length));
  world_.library = world_.library.substr(0, world_.library.find(", package"));

  // Ranks of one node share memory: that, and not the host's name, decides who is local to whom.
  MPI_Comm node = MPI_COMM_NULL;
  PENSTOCK_MPI_CALL(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, world_.rank, MPI_INFO_NULL, &node));
  int local_rank = 0;
  PENSTOCK_MPI_CALL(MPI_Comm_rank(node, &local_rank));
  int leader = world_.rank;
  PENSTOCK_MPI_CALL(MPI_Bcast(&leader, 1, MPI_INT, 0, node));
  PENSTOCK_MPI_CALL(MPI_Comm_free(&node));

  struct PackedRankInfo {  // of one size, for MPI_Allgather
    int local_rank;
    int leader;
    char host[256];
  };
  PackedRankInfo mine{};
  mine.local_rank = local_rank;
  mine.leader = leader;
  host_name().copy(mine.host, sizeof mine.host - 1);
  std::vector<PackedRankInfo> all(static_cast<size_t>(world_.size));
  PENSTOCK_MPI_CALL(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm_));
  for (int rank = 0; rank < world_.size; ++rank) {
    const PackedRankInfo& info = all[static_cast<size_t>(rank)];
    world_.ranks.push_back({rank, info.local_rank, info.host, info.leader});
  }

  char secret[80] = {};
  if (world_.rank == 0) {
    const std::string drawn = random_hex(6) + random_hex(32);
    std::memcpy(secret, drawn.data(), drawn.size());
  }
  PENSTOCK_MPI_CALL(MPI_Bcast(secret, sizeof secret, MPI_BYTE, 0, comm_));
  world_.job_id.assign(secret, 12);
  world_.job_token.assign(secret + 12, 64);
  ulfm_ = FaultTolerance::find();
  if (!ulfm_.there() && !programs_communicator_) outlive_peers();
}

void Progress::loop() {
  const MonotonicClock clock;
  PollingBackoff backoff;
  for (;;) {
    set_aside();
    const bool sent = start_orders();
    bool moved = receive_messages();
    moved = complete_receives() || moved;
    complete_sends();
    if (sent) backoff.sent(clock.now());
    if (moved) backoff.moved(clock.now());
    std::packaged_task<void()> work;
    {
      MutexLock lock(mutex_);
      busy_ = !sending_.empty();
      if (!busy_ && orders_.empty()) changed_.notify_all();
      if (!work_.empty()) {
        work = std::move(work_.front());
        work_.pop_front();
      } else if (ends_now_ || (stopping_ && orders_.empty() && sending_.empty())) {
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
  if (!arriving_.empty()) return true;
  const int here = world_.ranks[static_cast<size_t>(world_.rank)].node;
  return std::any_of(sending_.begin(), sending_.end(), [&](const Outgoing& out) {
    return world_.ranks[static_cast<size_t>(out.peer)].node != here || now - out.begun > kSurelySeen;
  });
}

void Progress::set_aside() {
  {
    MutexLock lock(mutex_);
    dead_.insert(abandoned_.begin(), abandoned_.end());
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

// A chunk is on its way from the peer, by its envelope. Of one whose size cannot be read nobody knows which pieces are
// its own.
void Progress::begin_receive(PeerId peer, const Message& message) {
  constexpr size_t kHead = 8 + 4;
  WireReader in(message, "chunk envelope");
  if (message.size() < kHead) return lose(peer, "it sent a chunk's envelope that is too short");
  const uint64_t bytes = in.u64();
  if (in.u32() != crc32c(message.data(), 8) || bytes > (uint64_t{4} << 30)) {
    return lose(peer, "it announced a chunk of impossible size; all ranks must run the same version of penstock");
  }
  Arriving& chunk = arriving_.emplace_back();
  chunk.peer = peer;
  chunk.bytes = bytes;
  const auto rest = in.raw(in.left());
  chunk.envelope.assign(rest.begin(), rest.end());
  chunk.staging = staging_buffer(chunk.bytes);
  for (size_t offset = 0; offset < chunk.bytes;) {
    const size_t count = std::min(chunk.bytes - offset, static_cast<size_t>(max_message_bytes_));
    chunk.requests.emplace_back(MPI_REQUEST_NULL);
    const int code = MPI_Irecv(chunk.staging->data() + offset, static_cast<int>(count), MPI_BYTE, peer, kPayloadTag,
                               comm_, &chunk.requests.back());
    if (!succeeds(peer, code, "MPI_Irecv")) return;
    offset += count;
  }
}

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
        find_who_failed(code);
        return true;
      }
      tag = wanted;
      if (found) break;
    }
    if (!found) break;
    const PeerId peer = status.MPI_SOURCE;
    int size = 0;
    PENSTOCK_MPI_CALL(MPI_Get_count(&status, MPI_BYTE, &size));
    Message message(static_cast<size_t>(size));
    moved = true;
    if (!succeeds(peer, MPI_Mrecv(message.data(), size, MPI_BYTE, &handle, &status), "MPI_Mrecv")) continue;
    if (dead_.count(peer) != 0) continue;
    if (tag == kControlTag) {
      deliver(MessageArrived{peer, std::move(message)});
    } else {
      begin_receive(peer, message);
    }
  }
  return moved;
}

void Progress::complete_sends() {
  for (auto it = sending_.begin(); it != sending_.end();) {
    if (!complete(it->peer, it->requests)) {
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
    if (!complete(it->peer, it->requests)) {
      ++it;
      continue;
    }
    moved = true;
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

void Progress::call_in_thread(std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  auto finished = task.get_future();
  {
    MutexLock lock(mutex_);
    if (failed_) throw Error(ErrorKind::runtime, failure_);
    work_.push_back(std::move(task));
    changed_.notify_all();
  }
  // What `work` touches must be its own: after the deadline it may still be running.
  if (finished.wait_for(kCollectiveTimeout) != std::future_status::ready) {
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(world_.rank) + " waited " + std::to_string(kCollectiveTimeout.count()) +
                    " s for the other ranks to start",
                "a rank is stopped, or cannot reach the others");
  }
  try {
    finished.get();
  } catch (const std::future_error&) {  // the thread failed before it came to this
    MutexLock lock(mutex_);
    throw Error(ErrorKind::runtime, failure_);
  }
}

std::vector<std::string> Progress::all_gather(const std::string& mine) {
  const auto shared = std::make_shared<std::vector<std::string>>(static_cast<size_t>(world_.size));
  call_in_thread([this, shared, mine] {
    std::vector<std::string>& all = *shared;
    const int size = static_cast<int>(mine.size());
    std::vector<int> sizes(all.size());
    PENSTOCK_MPI_CALL(MPI_Allgather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm_));
    std::vector<int> offsets(all.size());
    int total = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      offsets[i] = total;
      total += sizes[i];
    }
    std::string joined(static_cast<size_t>(total), '\0');
    PENSTOCK_MPI_CALL(
        MPI_Allgatherv(mine.data(), size, MPI_BYTE, joined.data(), sizes.data(), offsets.data(), MPI_BYTE, comm_));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = joined.substr(static_cast<size_t>(offsets[i]), static_cast<size_t>(sizes[i]));
    }
  });
  return *shared;
}

void Progress::barrier() {
  call_in_thread([this] { PENSTOCK_MPI_CALL(MPI_Barrier(comm_)); });
}

int Progress::communicator_of(bool in) {
  const auto found = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  call_in_thread([this, found, in] {
    PENSTOCK_MPI_CALL(MPI_Comm_split(comm_, in ? 0 : MPI_UNDEFINED, world_.rank, found.get()));
    if (*found == MPI_COMM_NULL) return;
    // Errors of the program's calls are the program's affair: as its own communicator has it, and not as ours.
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    PENSTOCK_MPI_CALL(MPI_Comm_get_errhandler(programs_, &handler));
    PENSTOCK_MPI_CALL(MPI_Comm_set_errhandler(*found, handler));
    PENSTOCK_MPI_CALL(MPI_Errhandler_free(&handler));
  });
  return MPI_Comm_c2f(*found);
}

// The thread of one who joined makes no call that waits, so it can always be ended.
void Progress::end_thread() {
  {
    MutexLock lock(mutex_);
    ends_now_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  // With the thread gone this is nobody else's.
  if (finalize_key_ == MPI_KEYVAL_INVALID) return;
  int key = finalize_key_;
  finalize_key_ = MPI_KEYVAL_INVALID;
  (void)MPI_Comm_delete_attr(MPI_COMM_SELF, key);
  (void)MPI_Comm_free_keyval(&key);
}

// In MPI_Finalize of a program that has not left: it would wait for ranks that wait for this one.
int Progress::on_finalize(MPI_Comm, int key, void* progress, void*) {
  auto* const self = static_cast<Progress*>(progress);
  if (self->finalize_key_ != key) return MPI_SUCCESS;  // end_thread() takes it away
  self->finalize_key_ = MPI_KEYVAL_INVALID;
  if (self->before_finalize_) self->before_finalize_();
  self->end_thread();
  return MPI_SUCCESS;
}

bool Progress::at_end() {
  if (last_barrier_ == MPI_REQUEST_NULL) return false;
  int met = 0;
  PENSTOCK_MPI_CALL(MPI_Test(&last_barrier_, &met, MPI_STATUS_IGNORE));
  if (met == 0) return false;
  PENSTOCK_MPI_CALL(MPI_Comm_free(&comm_));
  MutexLock lock(mutex_);
  all_met_ = true;
  changed_.notify_all();
  return true;
}

bool Progress::meet_at_end(Nanoseconds timeout_ns) {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + timeout_ns;
  MutexLock lock(mutex_);
  work_.emplace_back([this] { PENSTOCK_MPI_CALL(MPI_Ibarrier(comm_, &last_barrier_)); });
  changed_.notify_all();
  while (!all_met_ && !failed_ && clock.now() < deadline) changed_.wait_for(mutex_, std::chrono::milliseconds(10));
  return all_met_;
}

bool Progress::finish(bool all_alive, Nanoseconds timeout_ns) {
  if (programs_communicator_) {
    // What is said last still goes out, to whoever is there.
    const bool sent = flush(all_alive ? timeout_ns : std::min(timeout_ns, kLastWords));
    const bool met = all_alive && sent && meet_at_end(timeout_ns);
    end_thread();
    return met;
  }
  if (!all_alive) return false;
  if (!flush(timeout_ns)) return false;
  std::packaged_task<void()> task([this] {
    PENSTOCK_MPI_CALL(MPI_Barrier(comm_));
    PENSTOCK_MPI_CALL(MPI_Comm_free(&comm_));
    PENSTOCK_MPI_CALL(MPI_Finalize());
    finalised_ = true;
  });
  auto finished = task.get_future();
  {
    MutexLock lock(mutex_);
    if (failed_) return false;
    work_.push_back(std::move(task));
    changed_.notify_all();
  }
  if (finished.wait_for(std::chrono::nanoseconds(timeout_ns)) != std::future_status::ready) return false;
  try {
    finished.get();
  } catch (const std::exception&) {
    return false;  // the caller leaves without MPI_Finalize, as after a loss
  }
  thread_.join();
  return true;
}

}  // namespace penstock::mpi
