// The kernel as a reader: open, a look at the file, read, close, each without a thread of ours waiting.
//
// One thread owns the ring: it submits, it reaps, it calls `done`; others leave jobs in a queue and ring an eventfd.
//
//   job -> opening -> reading (again, while short) -> closing
//            |           |
//            +-----------+--> not good: closing
//
// A job's buffer may be written by the kernel until the read's completion came; so an operation is forgotten only then,
// whatever was cancelled, and the thread outlives stop() rather than free it early.
#include "runtime/datasets/read_engine.h"

#ifdef PENSTOCK_HAVE_URING

#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <unordered_map>
#include <utility>

#include "runtime/base/cpu_set.h"
#include "runtime/base/memory.h"
#include "runtime/base/signals_blocked.h"
#include "runtime/base/thread_annotations.h"

namespace penstock {
namespace {

// A submission that slept for longer had a step in it that the kernel does at once, however long it takes.
constexpr Nanoseconds kHeldUp = 300 * kMicrosecond;
constexpr uint64_t kLargestRead = uint64_t{1} << 30;  // io_uring counts in 32 bits

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (made_) ::io_uring_queue_exit(&ring_);
  }
  int make(unsigned entries) {
    const int result = ::io_uring_queue_init(entries, &ring_, 0);
    made_ = result == 0;
    return result;
  }
  io_uring* get() noexcept { return &ring_; }

 private:
  io_uring ring_{};
  bool made_ = false;
};

struct Operation {
  enum class Stage { opening, reading, closing };
  std::shared_ptr<ReadJob> job;
  Stage stage = Stage::opening;
  int fd = -1;        // the one to read from
  bool mine = false;  // ... opened here
  uint64_t size = 0;  // that the data must have in the end
  uint64_t done = 0;
  uint64_t slept = 0;  // how often the thread had slept when the step was submitted
  Nanoseconds begun = 0;
};

struct Shared {
  ReadEngineOptions options;
  Ring ring;
  UniqueFd bell;
  Mutex mutex;
  CondVar changed;
  std::vector<std::shared_ptr<ReadJob>> incoming PENSTOCK_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<ReadJob>> unwanted PENSTOCK_GUARDED_BY(mutex);
  bool stopping PENSTOCK_GUARDED_BY(mutex) = false;
  bool ended PENSTOCK_GUARDED_BY(mutex) = false;
  int under_way PENSTOCK_GUARDED_BY(mutex) = 0;

  void wake() {
    const uint64_t one = 1;
    (void)!::write(bell.get(), &one, sizeof one);
  }
};

// What the ring's thread does, from its start to its end.
class Reader {
 public:
  explicit Reader(Shared& shared) : shared_(shared), ring_(shared.ring.get()) {}

  void run() {
    listen();
    submit();
    keep_to_cores();
    for (;;) {
      const bool stopping = take_orders();
      if (stopping && operations_.empty() && !listening_) return;
      submit();
      io_uring_cqe* cqe = nullptr;
      if (::io_uring_peek_cqe(ring_, &cqe) != 0 && ::io_uring_sq_ready(ring_) == 0) {
        (void)::io_uring_wait_cqe(ring_, &cqe);
        ++slept_;
      }
      while (::io_uring_peek_cqe(ring_, &cqe) == 0 && cqe != nullptr) {
        auto* const operation = static_cast<Operation*>(::io_uring_cqe_get_data(cqe));
        const int result = cqe->res;
        const bool bell = cqe->user_data == kBell;
        const bool ours = cqe->user_data > kBell;
        ::io_uring_cqe_seen(ring_, cqe);
        if (bell) {
          listening_ = false;
        } else if (ours) {
          advance(*operation, result);
        }
      }
      MutexLock lock(shared_.mutex);
      shared_.under_way = static_cast<int>(operations_.size());
    }
  }

 private:
  static constexpr uint64_t kNobody = 0;  // of cancellations: their own results mean nothing
  static constexpr uint64_t kBell = 1;    // operations are addresses, and larger

  io_uring_sqe* entry() {
    io_uring_sqe* sqe = ::io_uring_get_sqe(ring_);
    while (sqe == nullptr) {  // the queue is full of what has not been submitted
      submit();
      sqe = ::io_uring_get_sqe(ring_);
    }
    return sqe;
  }

  // Opening is begun by whoever submits, and where the name is known but the server has to be asked (NFS, FUSE) it
  // waits for it there, one file after the other. Such steps are given to the kernel's own threads from then on; for
  // others that would be a detour.
  void submit() {
    if (::io_uring_sq_ready(ring_) == 0) return;
    const Nanoseconds begun = clock_.now();
    const int64_t switches = voluntary_switches();
    if (::io_uring_submit(ring_) < 0) {
      // The kernel is short of memory for a moment; what was not taken stays in the queue.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++slept_;
    } else if (clock_.now() - begun > kHeldUp && voluntary_switches() != switches) {
      ++slept_;
      if (opens_ > 0 && !detour_opens_) {
        detour_opens_ = true;
      } else if (opens_ == 0 || detour_opens_) {
        detour_reads_ = true;
      }
    }
    opens_ = 0;
  }

  // The kernel's own threads would use every core of the machine, whatever this process was given.
  void keep_to_cores() {
    const CpuSet cores = CpuSet::allowed();
    if (cores.count() > 0) (void)::io_uring_register_iowq_aff(ring_, cores.bytes(), cores.get());
  }

  void listen() {
    io_uring_sqe* const sqe = entry();
    ::io_uring_prep_read(sqe, shared_.bell.get(), &rung_, sizeof rung_, 0);
    ::io_uring_sqe_set_data64(sqe, kBell);
    listening_ = true;
  }

  // True: the engine stops.
  bool take_orders() {
    std::vector<std::shared_ptr<ReadJob>> incoming;
    std::vector<std::shared_ptr<ReadJob>> unwanted;
    bool stopping = false;
    {
      MutexLock lock(shared_.mutex);
      stopping = shared_.stopping;
      incoming.swap(shared_.incoming);
      unwanted.swap(shared_.unwanted);
    }
    if (!listening_ && !stopping) listen();
    if (!stopping) {
      for (const std::shared_ptr<ReadJob>& job : incoming) begin(job);
    }
    for (const std::shared_ptr<ReadJob>& job : unwanted) {
      if (const auto found = operations_.find(job.get()); found != operations_.end()) cancel(*found->second);
    }
    if (stopping && !stopped_) {
      stopped_ = true;
      for (const auto& [job, operation] : operations_) {
        operation->job->cancelled = true;
        cancel(*operation);
      }
    }
    return stopping;
  }

  void cancel(Operation& operation) {
    if (operation.stage == Operation::Stage::closing) return;
    io_uring_sqe* const sqe = entry();
    ::io_uring_prep_cancel(sqe, &operation, 0);
    ::io_uring_sqe_set_data64(sqe, kNobody);
  }

  // Null where memory has run out.
  Operation* add(const std::shared_ptr<ReadJob>& job) {
    try {
      auto made = std::make_unique<Operation>();
      made->job = job;
      return operations_.emplace(job.get(), std::move(made)).first->second.get();
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }

  void begin(const std::shared_ptr<ReadJob>& job) {
    Operation* const added = add(job);
    if (added == nullptr) return shared_.options.done(job);
    Operation& operation = *added;
    const ReadJob& wanted = *operation.job;
    if (wanted.cancelled || wanted.bytes > kLargestRead) return finish(operation);
    if (wanted.reader && wanted.reader->descriptor() >= 0) {
      operation.fd = wanted.reader->descriptor();
      operation.size = wanted.bytes;
      return read(operation);
    }
    io_uring_sqe* const sqe = entry();
    // O_NONBLOCK: opening a pipe would wait for a writer.
    ::io_uring_prep_openat(sqe, AT_FDCWD, wanted.path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
    if (detour_opens_) ::io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
    ++opens_;
    step(operation, sqe, Operation::Stage::opening);
  }

  void step(Operation& operation, io_uring_sqe* sqe, Operation::Stage stage) {
    ::io_uring_sqe_set_data(sqe, &operation);
    operation.stage = stage;
    operation.slept = slept_;
    operation.begun = clock_.now();
  }

  void read(Operation& operation) {
    ReadJob& job = *operation.job;
    // One byte more than a whole file has: it may have grown since the kernel last asked its server.
    const uint64_t room = operation.size + (job.whole ? 1 : 0);
    try {
      if (job.data.size() != room) job.data.resize(room);
    } catch (const std::bad_alloc&) {
      return finish(operation);  // whoever wants the bytes asks for the memory himself, and says what he lacked
    }
    io_uring_sqe* const sqe = entry();
    ::io_uring_prep_read(sqe, operation.fd, job.data.data() + operation.done,
                         static_cast<unsigned>(room - operation.done), job.offset + operation.done);
    if (detour_reads_) ::io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
    step(operation, sqe, Operation::Stage::reading);
  }

  void advance(Operation& operation, int result) {
    // What was there when it was asked for did not wait for a disk.
    const bool closing = operation.stage == Operation::Stage::closing;
    if (!closing && operation.slept != slept_) operation.job->waited_ns += clock_.now() - operation.begun;
    switch (operation.stage) {
      case Operation::Stage::opening: return opened(operation, result);
      case Operation::Stage::reading: return was_read(operation, result);
      case Operation::Stage::closing: operations_.erase(operation.job.get()); return;
    }
  }

  void opened(Operation& operation, int result) {
    if (result < 0) return finish(operation);
    operation.fd = result;
    operation.mine = true;
    ReadJob& job = *operation.job;
    // What the kernel knows since the file was opened, so this does not wait for a server.
    struct statx status {};
    const bool known = ::statx(result, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE, &status) == 0;
    if (!known || !S_ISREG(status.stx_mode) || job.cancelled) return finish(operation);
    // Reads of a descriptor that never blocks are given up where they would have to wait.
    if (::fcntl(result, F_SETFL, 0) != 0) return finish(operation);
    operation.size = job.whole ? status.stx_size : job.bytes;
    if (operation.size > job.bytes) return finish(operation);
    read(operation);
  }

  void was_read(Operation& operation, int result) {
    ReadJob& job = *operation.job;
    if (result == -EINTR || result == -EAGAIN) {
      if (job.cancelled) return finish(operation);
      return read(operation);
    }
    if (result < 0) return finish(operation);
    operation.done += static_cast<uint64_t>(result);
    const bool more = operation.done < operation.size && result > 0;
    if (more && !job.cancelled) return read(operation);
    if (operation.done == operation.size) {
      job.data.resize(operation.size);
      job.good = true;
    }
    finish(operation);
  }

  // The job's end; a descriptor of ours is closed behind its back.
  void finish(Operation& operation) {
    if (operation.stage != Operation::Stage::closing) {
      if (!operation.job->good) operation.job->data = {};
      shared_.options.done(operation.job);
    }
    if (operation.mine) {
      operation.mine = false;
      io_uring_sqe* const sqe = entry();
      ::io_uring_prep_close(sqe, operation.fd);
      step(operation, sqe, Operation::Stage::closing);
      return;
    }
    operations_.erase(operation.job.get());
  }

  Shared& shared_;
  io_uring* ring_;
  MonotonicClock clock_;
  std::unordered_map<const ReadJob*, std::unique_ptr<Operation>> operations_;
  uint64_t slept_ = 0;
  uint64_t rung_ = 0;
  int opens_ = 0;  // not submitted yet
  bool detour_opens_ = false;
  bool detour_reads_ = false;
  bool listening_ = false;
  bool stopped_ = false;
};

class UringEngine final : public ReadEngine {
 public:
  explicit UringEngine(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    const SignalsBlocked blocked;
    thread_ = std::thread([mine = shared_] {
      begin_read_thread(mine->options.cpus);
      Reader(*mine).run();
      MutexLock lock(mine->mutex);
      mine->ended = true;
      mine->changed.notify_all();
    });
  }
  ~UringEngine() override { (void)stop(0); }

  const char* name() const noexcept override { return "io_uring"; }

  void start(std::shared_ptr<ReadJob> job) override {
    {
      MutexLock lock(shared_->mutex);
      if (shared_->stopping) return;
      shared_->incoming.push_back(std::move(job));
      if (shared_->incoming.size() > 1) return;  // rung already
    }
    shared_->wake();
  }

  void cancel(const std::shared_ptr<ReadJob>& job) override {
    job->cancelled = true;
    {
      MutexLock lock(shared_->mutex);
      if (shared_->stopping) return;
      shared_->unwanted.push_back(job);
    }
    shared_->wake();
  }

  int stop(Nanoseconds wait_limit) override {
    if (!thread_.joinable()) return 0;
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + wait_limit;
    int left = 0;
    {
      MutexLock lock(shared_->mutex);
      shared_->stopping = true;
      shared_->incoming.clear();
      shared_->wake();
      while (!shared_->ended) {
        const Nanoseconds more = deadline - clock.now();
        if (more <= 0) break;
        (void)shared_->changed.wait_for(shared_->mutex, std::chrono::microseconds(more / 1000 + 1));
      }
      if (!shared_->ended) {
        left = std::max(1, shared_->under_way);
        thread_.detach();
      }
    }
    if (thread_.joinable()) thread_.join();
    return left;
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<ReadEngine> make_uring_engine(const ReadEngineOptions& options, std::string& why_not) {
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  // Each read and its cancellation, and the bell.
  const unsigned entries = std::bit_ceil(static_cast<unsigned>(std::clamp(2 * options.reads + 2, 8, 4096)));
  if (const int result = shared->ring.make(entries); result != 0) {
    why_not = std::string("io_uring_setup: ") + std::strerror(-result);
    return nullptr;
  }
  io_uring* const ring = shared->ring.get();
  const std::unique_ptr<io_uring_probe, decltype(&::io_uring_free_probe)> probe(::io_uring_get_probe_ring(ring),
                                                                                ::io_uring_free_probe);
  for (const int wanted : {IORING_OP_OPENAT, IORING_OP_READ, IORING_OP_CLOSE, IORING_OP_ASYNC_CANCEL}) {
    if (probe && ::io_uring_opcode_supported(probe.get(), wanted) != 0) continue;
    why_not = "io_uring: this kernel cannot open and read files by it";
    return nullptr;
  }
  // Network disks are waited for by threads of the kernel, and by default there are four a core.
  unsigned workers[2] = {static_cast<unsigned>(options.reads), 0};
  (void)::io_uring_register_iowq_max_workers(ring, workers);
  shared->bell = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!shared->bell) {
    why_not = system_error_text("eventfd");
    return nullptr;
  }
  try {
    return std::make_shared<UringEngine>(std::move(shared));
  } catch (const std::exception& error) {  // a limit of the container on threads, memory
    why_not = std::string("io_uring: its thread cannot be started: ") + error.what();
    return nullptr;
  }
}

}  // namespace penstock

#else

namespace penstock {

std::shared_ptr<ReadEngine> make_uring_engine(const ReadEngineOptions&, std::string& why_not) {
  why_not = "io_uring: this build has no liburing";
  return nullptr;
}

}  // namespace penstock

#endif
