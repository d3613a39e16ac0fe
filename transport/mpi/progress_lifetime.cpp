// How the thread comes into MPI and leaves it again, and what all ranks do together in between: collectives.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/random_hex.h"
#include "transport/mpi/mpi_call.h"
#include "transport/mpi/progress.h"
#include "transport/outlive_peers.h"

namespace penstock::mpi {
namespace {

constexpr Nanoseconds kLastWords = 2 * kSecond;

constexpr std::chrono::milliseconds kLookWhetherAsked{50};

// False: not within the limit, or this rank is asked to end.
template <class Result>
bool wait_for(const std::future<Result>& future, std::chrono::duration<double> limit, const AskedToEnd& asked_to_end) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (future.wait_for(kLookWhetherAsked) != std::future_status::ready) {
    if (is_asked(asked_to_end) || std::chrono::steady_clock::now() >= deadline) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<Progress> Progress::start(const MpiOptions& options) {
  const std::shared_ptr<Progress> progress(new Progress(options));
  auto started = progress->started_.get_future();
  if (!wait_for(started, std::chrono::duration<double>(options.start_timeout_s), options.asked_to_end)) {
    progress->leave_behind();
    end_if_asked(options.asked_to_end);
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
      start_timeout_s_(options.start_timeout_s),
      programs_communicator_(options.communicator),
      before_finalize_(options.before_finalize),
      asked_to_end_(options.asked_to_end) {
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
  if (!wait_for(finished, std::chrono::duration<double>(start_timeout_s_), asked_to_end_)) {
    leave_behind();
    end_if_asked(asked_to_end_);
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(world_.rank) + " waited " +
                    std::to_string(static_cast<int64_t>(start_timeout_s_)) + " s for the other ranks to start",
                "a rank is stopped, or cannot reach the others; mpi.start_timeout_s sets how long to wait");
  }
  take_result(finished);
}

// Waits for what the thread was given to do, and throws what that threw.
void Progress::take_result(std::future<void>& finished) {
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

// The thread is in a collective call that other ranks do not come to, and nothing calls it back: it stays with all it uses,
// and nobody waits for it. It ends if they come after all.
void Progress::leave_behind() {
  new std::shared_ptr<Progress>(shared_from_this());  // never destroyed
  MutexLock lock(mutex_);
  left_behind_ = true;
  ends_now_ = true;
}

// Once the ranks have met, the thread of one who joined makes no call that waits, so it can always be ended.
void Progress::end_thread() {
  {
    MutexLock lock(mutex_);
    ends_now_ = true;
    changed_.notify_all();
    if (left_behind_) return;
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
  {
    MutexLock lock(self->mutex_);
    if (self->left_behind_) return MPI_SUCCESS;  // whoever was to be told may be gone
  }
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
  const std::optional<std::string> unfinished = finalise(timeout_ns);
  if (unfinished) {
    why_unfinished_ = *unfinished;
    return false;  // the caller leaves without MPI_Finalize, as after a loss
  }
  thread_.join();
  return true;
}

// Why MPI_Finalize did not end; nothing: it did.
std::optional<std::string> Progress::finalise(Nanoseconds timeout_ns) {
  const std::string within = " within " + std::to_string(timeout_ns / kSecond) + " s";
  if (!flush(timeout_ns)) {
    MutexLock lock(mutex_);
    return failed_ ? failure_ : "what this rank sent last was not received" + within;
  }
  std::packaged_task<void()> task([this] {
    PENSTOCK_MPI_CALL(MPI_Barrier(comm_));
    {
      MutexLock lock(mutex_);
      all_met_ = true;
    }
    PENSTOCK_MPI_CALL(MPI_Comm_free(&comm_));
    PENSTOCK_MPI_CALL(MPI_Finalize());
    finalised_ = true;
  });
  auto finished = task.get_future();
  {
    MutexLock lock(mutex_);
    if (failed_) return failure_;
    work_.push_back(std::move(task));
    changed_.notify_all();
  }
  if (finished.wait_for(std::chrono::nanoseconds(timeout_ns)) != std::future_status::ready) {
    MutexLock lock(mutex_);
    return (all_met_ ? "MPI_Finalize did not end" : "not all ranks came to the last barrier") + within;
  }
  try {
    take_result(finished);
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace penstock::mpi
