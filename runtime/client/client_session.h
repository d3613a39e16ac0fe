// A client's side of the conversation with its receiver (client_protocol.h): one split, its iterations, their batches.
//
//   ClientSession session(std::move(socket), options);        // a connected socket, as receiver_connection.h finds one
//   const ClientOpened& opened = session.open(client_open);
//   const uint64_t iteration = session.begin(epoch, step, {});
//   while (auto lent = session.next(iteration)) { …; session.release(lent->info); }
//   session.stop(iteration);
//
// Several questions may be under way, as a wait lets go of the lock: whoever receives an answer that is not its own
//   keeps it for the other (iteration_answers.h for next batches, question_queue.h for all else).
// Waiting: every wait has a limit (wait_deadline.h), hears what the receiver notices meanwhile, and lets go of the lock
//   for `while_waiting`, which may throw. Interrupting a wait for a batch loses none, one in begin() leaves no
//   iteration behind, and one in open() ends the session.
// Thread-safety: everything from any thread, once open() has returned. release() and stop() never wait for the
//   receiver: what they say goes through an outbox (outbox.h), which a waiting thread empties every few milliseconds.
// Memory of loaders' GPUs, as the receiver shows it: exports_ has what batches may have images in, until its loader is
//   gone, offers_ what the program has not heard of. Neither says that anybody reads there: use() does.
// Ownership: the socket, and the pools' memory together with whoever holds a batch of it; the descriptors of GPUs'
//   memory with whoever holds that, or a batch with images there.
// Fork: the child must not use it, and is told so; release() and stop() say nothing there: the socket is the parent's.
// Failure: what the receiver refuses or fails is thrown as that Error; Error(peer_lost) when the receiver hangs up, or
//   is silent for as long as the options say; Error(usage) when the program holds all batches and asks for another. release()
//   and stop() never throw. After a next() that got none in time the next one waits for the same batch; all other silence
//   ends the session.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/memory.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/client/gpu_images.h"
#include "runtime/client/iteration_answers.h"
#include "runtime/client/outbox.h"
#include "runtime/client/question_queue.h"
#include "runtime/client/returned_batches.h"
#include "runtime/client/wait_deadline.h"
#include "runtime/protocol/client_protocol.h"
#include "transport/unix_socket.h"

namespace penstock {

// In an order that a program gives for one iteration: what fits into a message.
inline constexpr int64_t kLargestOrder = 8'000'000;

// The pool's memory, mapped once and shared by all its batches: it lives as long as any of them does.
struct PoolMapping {
  SharedMemory memory;
  size_t batch_buffer_bytes = 0;
};

// Images of a batch in memory that a loader's GPU exports.
struct LentBufferRange {
  std::shared_ptr<const ExportedGpuMemory> memory;
  ClientBufferRange place;
};

struct LentBatch {
  ClientBatch info;
  std::shared_ptr<PoolMapping> pool;
  std::vector<LentBufferRange> buffer_ranges;
};

class ClientSession {
 public:
  struct Options {
    std::string split;                     // in messages, as the following
    int hold = 0;                          // trainer.hold
    std::string server;                    // whose messages say more: "`penstock run`"; empty: there are none
    Nanoseconds timeout_ns = 0;            // Job::longest_wait_ns(), for a batch
    Nanoseconds answer_timeout_ns = 0;     // for all other answers; that to open() may begin with a start of workers
    std::function<std::string()> problem;  // what ended a receiver in this process; may say nothing
    std::function<void(const std::string&)> on_warning;  // both may throw, and are called without the lock
    std::function<void()> while_waiting;
  };
  ClientSession(PacketSocket socket, Options options);
  // Nobody has a batch of it any more, and the receiver hears that.
  ~ClientSession() { try_send(ClientGoodbye{}); }
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  // Once. Interrupted by while_waiting, it closes the socket.
  const ClientOpened& open(const ClientOpen& message);
  const ClientOpened& opened() const noexcept { return opened_; }

  uint64_t begin(int64_t epoch, int64_t step, std::vector<int64_t> order);  // the number that names the iteration
  std::optional<LentBatch> next(uint64_t iteration);                        // nothing at the end
  void release(const ClientBatch& batch) noexcept;
  void stop(uint64_t iteration) noexcept;
  // From any thread: whoever waits in next(), or will, has an Error(usage) within a tenth of a second. All else goes
  // on.
  void end_waits() noexcept { waits_ended_.store(true, std::memory_order_relaxed); }
  std::string stats();

  // Where the split was opened with gpu_images: memory that loaders' GPUs export, each once, as it comes; that the
  // program has it open, and that it reads none any more.
  std::vector<std::shared_ptr<const ExportedGpuMemory>> take_offers();
  void use(const ExportedGpuMemory& memory);
  void use_none();
  void ask_for_link(const ExportedGpuMemory& memory, const std::string& identity);
  void ask_for_images(const ExportedGpuMemory& memory, std::vector<MemoryRange> runs);

  // To the program: on_warning now, and take_warnings() at any time.
  void warn(const std::string& text);
  std::vector<std::string> take_warnings();

 private:
  void check_owner() const;
  void send(const ClientMessage& message) PENSTOCK_REQUIRES(mutex_);
  void try_send(const ClientMessage& message) noexcept;
  void empty_outbox() PENSTOCK_REQUIRES(mutex_);
  void drop_stopped() PENSTOCK_REQUIRES(mutex_);

  template <class T>
  T expect(const std::string& what, UniqueFd* fd = nullptr) PENSTOCK_REQUIRES(mutex_);
  ReceiverAnswer answer_to(uint64_t question, const std::string& what, Nanoseconds limit_ns) PENSTOCK_REQUIRES(mutex_);
  void answered(ReceiverAnswer answer) PENSTOCK_REQUIRES(mutex_);
  void undo(ReceiverAnswer left) PENSTOCK_REQUIRES(mutex_);
  void add_pool(const ClientIteration& iteration, UniqueFd fd) PENSTOCK_REQUIRES(mutex_);
  // `iteration`: whose next batch is waited for; 0: nobody's. Nothing where a callback was called meanwhile, without the
  // lock.
  std::optional<ReceiverAnswer> receive_once(const std::string& what, uint64_t iteration, WaitDeadline& wait_deadline)
      PENSTOCK_REQUIRES(mutex_);
  ClientMessage answer_of(uint64_t iteration) PENSTOCK_REQUIRES(mutex_);
  void keep_for_later(uint64_t iteration, ClientMessage answer) PENSTOCK_REQUIRES(mutex_);

  bool received_export(const ClientMessage& message, UniqueFd& fd) PENSTOCK_REQUIRES(mutex_);
  LentBatch lent(const ClientBatch& info) PENSTOCK_REQUIRES(mutex_);
  void received(const ClientNotice& notice) PENSTOCK_REQUIRES(mutex_);
  void report_warnings() PENSTOCK_REQUIRES(mutex_);
  template <class Call>
  void without_lock(const Call& call) PENSTOCK_REQUIRES(mutex_);

  [[noreturn]] void hung_up(const std::string& what) PENSTOCK_REQUIRES(mutex_);
  [[noreturn]] void too_late(const std::string& what, uint64_t iteration, Nanoseconds limit_ns)
      PENSTOCK_REQUIRES(mutex_);
  [[noreturn]] void holds_too_much() const;

  const Options options_;
  const int owner_;  // process id
  const MonotonicClock clock_;
  ClientOpened opened_;

  Mutex mutex_;
  PacketSocket socket_ PENSTOCK_GUARDED_BY(mutex_);
  std::string failure_ PENSTOCK_GUARDED_BY(mutex_);  // what ended the conversation
  std::map<int32_t, std::shared_ptr<PoolMapping>> pools_ PENSTOCK_GUARDED_BY(mutex_);
  std::map<int32_t, std::shared_ptr<const ExportedGpuMemory>> exports_ PENSTOCK_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const ExportedGpuMemory>> offers_ PENSTOCK_GUARDED_BY(mutex_);  // for take_offers()
  IterationAnswers answers_ PENSTOCK_GUARDED_BY(mutex_);
  QuestionQueue questions_ PENSTOCK_GUARDED_BY(mutex_);
  Outbox outbox_;

  std::vector<std::string> warnings_ PENSTOCK_GUARDED_BY(mutex_);  // for take_warnings()
  std::vector<std::string> unsaid_ PENSTOCK_GUARDED_BY(mutex_);    // that on_warning has not heard

  ReturnedBatches returned_;
  std::atomic<bool> waits_ended_ = false;  // publishes nothing
};

}  // namespace penstock
