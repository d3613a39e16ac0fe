#include "runtime/client/client_session.h"

#include <unistd.h>

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/client/attach.h"
#include "runtime/client/data_loader.h"

namespace penstock {
namespace {

// A wait takes short turns, so that batches dropped in other threads meanwhile go back.
constexpr Nanoseconds kListen = 5 * kMillisecond;

[[noreturn]] void fail(int32_t kind, const std::string& error, const std::string& remedy) {
  throw Error(static_cast<ErrorKind>(kind), error, remedy);
}
[[noreturn]] void unexpected() {
  throw Error(ErrorKind::peer_lost, "the receiver answered something else than was asked",
              "link the program against the same version of penstock as `penstock run`");
}

Error lost_with_its_loader() {
  return {ErrorKind::peer_lost, "images of this batch were on the GPU of a loader that is lost",
          "resume behind the last batch that came, or say loader.gpu_links: off"};
}

}  // namespace

ClientSession::ClientSession(PacketSocket socket, Options options)
    : options_(std::move(options)), owner_(::getpid()), socket_(std::move(socket)) {}

// ---- questions ---------------------------------------------------------------------------------------------------
const ClientOpened& ClientSession::open(const ClientOpen& message) {
  MutexLock lock(mutex_);
  send(message);
  try {
    opened_ = expect<ClientOpened>("the opening");
  } catch (const Error&) {
    throw;
  } catch (...) {  // interrupted by while_waiting
    socket_.close();
    throw;
  }
  return opened_;
}

uint64_t ClientSession::begin(int64_t epoch, int64_t step, std::vector<int64_t> order) {
  check_owner();
  if (std::ssize(order) > kLargestOrder) {
    throw Error(ErrorKind::usage,
                "the order of an iteration over split '" + options_.split + "' has " + std::to_string(order.size()) +
                    " indices; at most " + std::to_string(kLargestOrder) + " are supported",
                "write it to a file and name that as sampler.indices");
  }
  MutexLock lock(mutex_);
  send(ClientIterate{opened_.split_id, epoch, step, std::move(order)});
  UniqueFd fd;
  const auto answer = expect<ClientIteration>("the beginning of an epoch", &fd);
  add_pool(answer, std::move(fd));
  returned_.begin(answer.iteration, answer.pool);
  return answer.iteration;
}

void ClientSession::add_pool(const ClientIteration& iteration, UniqueFd fd) {
  if (pools_.contains(iteration.pool)) return;
  const auto pool = std::make_shared<PoolMapping>();
  pool->batch_buffer_bytes = iteration.batch_buffer_bytes;
  pool->memory =
      SharedMemory::open(std::move(fd), iteration.batch_buffer_bytes * static_cast<size_t>(iteration.batch_buffers),
                         SharedMemory::Access::read_write);
  pools_.emplace(iteration.pool, pool);
}

std::optional<LentBatch> ClientSession::next(uint64_t iteration) {
  check_owner();
  MutexLock lock(mutex_);
  const ClientMessage answer = answer_of(iteration);
  if (std::holds_alternative<ClientEnd>(answer)) return std::nullopt;
  if (const auto* failed = std::get_if<ClientFailed>(&answer)) fail(failed->error_kind, failed->error, failed->remedy);
  const auto* info = std::get_if<ClientBatch>(&answer);
  if (info == nullptr) unexpected();
  return lent(*info);
}

LentBatch ClientSession::lent(const ClientBatch& info) {
  const auto pool = pools_.find(info.pool);
  const bool fits =
      pool != pools_.end() && info.batch_buffer >= 0 && pool->second->batch_buffer_bytes > 0 &&
      static_cast<size_t>(info.batch_buffer) < pool->second->memory.size() / pool->second->batch_buffer_bytes &&
      info.samples >= 0 && info.samples <= opened_.batch_size && info.num_valid >= 0 && info.num_valid <= info.samples;
  if (!fits) unexpected();
  LentBatch batch{info, pool->second, {}};
  for (const ClientBufferRange& buffer_range : info.buffer_ranges) {
    const auto exported = exports_.find(buffer_range.exported);
    if (exported == exports_.end()) {  // linked, and gone since the receiver has said where the images are
      send(ClientRelease{info.pool, info.batch_buffer});
      throw lost_with_its_loader();
    }
    const ExportedGpuMemory& memory = *exported->second;
    if (buffer_range.first < 0 || buffer_range.samples < 0 ||
        buffer_range.first > info.samples - buffer_range.samples ||
        !lies_within({buffer_range.at, buffer_range.bytes}, memory.bytes)) {
      unexpected();
    }
    batch.buffer_ranges.push_back({exported->second, buffer_range});
  }
  return batch;
}

std::string ClientSession::stats() {
  check_owner();
  MutexLock lock(mutex_);
  send(ClientStats{});
  return expect<ClientStatsJson>("statistics").json;
}

// Before any lock: one that another thread held at fork() stays locked in the child for ever.
void ClientSession::check_owner() const {
  if (::getpid() == owner_) return;
  throw Error(ErrorKind::usage, "this DataLoader belongs to the process that forked",
              "make a DataLoader of the child's own");
}

// ---- from destructors: never throws, and says nothing in a forked child ------------------------------------------
void ClientSession::release(const ClientBatch& batch) noexcept {
  returned_.count(batch.iteration, batch.pool);
  try_send(ClientRelease{batch.pool, batch.batch_buffer});
}

void ClientSession::stop(uint64_t iteration) noexcept {
  if (::getpid() != owner_) return;
  returned_.end(iteration);
  try_send(ClientStop{iteration});
  try {
    outbox_.put_stopped(iteration);
  } catch (...) {  // out of memory: a batch that still comes for it stays held, which is safe
  }
}

void ClientSession::try_send(const ClientMessage& message) noexcept {
  if (::getpid() != owner_) return;
  try {
    outbox_.put(encode_client(message));
    if (!mutex_.try_lock()) return;
    try {
      empty_outbox();
    } catch (...) {  // what is still to be said is said by the next call
    }
    mutex_.unlock();
  } catch (...) {  // out of memory: the batch buffer stays held, which is safe
  }
}

// ---- saying ------------------------------------------------------------------------------------------------------
void ClientSession::send(const ClientMessage& message) {
  empty_outbox();
  socket_.send(encode_client(message));
}

void ClientSession::empty_outbox() {
  for (const Message& message : outbox_.take()) socket_.send(message);
  drop_stopped();
  socket_.write_pending();
}

// An iteration that ended while its answer waited here: its batch goes back.
void ClientSession::drop_stopped() {
  for (const uint64_t iteration : outbox_.take_stopped()) answers_.stop(iteration);
  for (const ClientRelease& back : answers_.drop_stopped()) socket_.send(encode_client(back));
}

// ---- hearing -----------------------------------------------------------------------------------------------------
// `fd`: takes the descriptor that came with the answer.
template <class T>
T ClientSession::expect(const std::string& what, UniqueFd* fd) {
  const uint64_t question = questions_.ask();
  ReceiverAnswer answer;
  try {
    answer = answer_to(question, what, options_.answer_timeout_ns);
  } catch (...) {  // interrupted by while_waiting, or an end of the conversation
    if (auto left = questions_.abandon(question)) {
      try {
        undo(std::move(*left));
      } catch (...) {  // what interrupted us is what the caller has to hear
      }
    }
    throw;
  }
  if (auto* wanted = std::get_if<T>(&answer.message)) {
    if (fd != nullptr) *fd = std::move(answer.fd);
    return std::move(*wanted);
  }
  if (const auto* refused = std::get_if<ClientRefused>(&answer.message)) {
    fail(refused->error_kind, refused->error, refused->remedy);
  }
  if (const auto* failed = std::get_if<ClientFailed>(&answer.message)) {
    fail(failed->error_kind, failed->error, failed->remedy);
  }
  unexpected();
}

ReceiverAnswer ClientSession::answer_to(uint64_t question, const std::string& what, Nanoseconds limit_ns) {
  WaitDeadline wait_deadline(clock_, limit_ns);
  for (;;) {
    // Another thread may have received it while we had released the lock.
    if (auto answer = questions_.take(question)) return std::move(*answer);
    std::optional<ReceiverAnswer> any = receive_once(what, 0, wait_deadline);
    if (!any) continue;
    if (const uint64_t whose = iteration_of(any->message)) {
      keep_for_later(whose, std::move(any->message));
    } else {
      answered(std::move(*any));
    }
  }
}

// Takes the answer to a question other than for a next batch.
void ClientSession::answered(ReceiverAnswer answer) {
  if (std::optional<ReceiverAnswer> left = questions_.arrived(std::move(answer))) undo(std::move(*left));
}

// Undoes what was answered after its asker had been interrupted: an iteration that nobody knows of is ended.
void ClientSession::undo(ReceiverAnswer left) {
  const auto* iteration = std::get_if<ClientIteration>(&left.message);
  if (iteration == nullptr) return;
  socket_.send(encode_client(ClientStop{iteration->iteration}));
  add_pool(*iteration, std::move(left.fd));  // the receiver shows it once
}

std::optional<ReceiverAnswer> ClientSession::receive_once(const std::string& what, uint64_t iteration,
                                                          WaitDeadline& wait_deadline) {
  for (;;) {
    Packet packet;
    empty_outbox();
    if (socket_.receive_until(packet, kListen)) {
      ClientMessage message = decode_client(packet.bytes);
      if (received_export(message, packet.fd)) return std::nullopt;
      if (const auto* notice = std::get_if<ClientNotice>(&message)) {
        received(*notice);
        report_warnings();
        return std::nullopt;
      }
      return ReceiverAnswer{std::move(message), std::move(packet.fd)};
    }
    if (socket_.closed()) hung_up(what);
    if (iteration != 0 && waits_ended_.load(std::memory_order_relaxed)) {
      throw Error(ErrorKind::usage,
                  "this DataLoader was closed while a batch of split '" + options_.split + "' was waited for",
                  "close it when nobody asks it any more");
    }
    switch (wait_deadline.look(returned_.still_all_held(iteration), returned_.any_of(iteration))) {
      case WaitDeadline::WaitOutcome::wait: break;
      case WaitDeadline::WaitOutcome::loaders_late: too_late(what, iteration, wait_deadline.limit_ns());
      case WaitDeadline::WaitOutcome::program_late: holds_too_much();
    }
    if (options_.while_waiting && wait_deadline.callback_due()) {
      without_lock(options_.while_waiting);
      return std::nullopt;
    }
  }
}

// Asks for the iteration's next batch, unless that was done before and the wait was interrupted.
ClientMessage ClientSession::answer_of(uint64_t iteration) {
  report_warnings();
  WaitDeadline wait_deadline(clock_, options_.timeout_ns);
  for (;;) {
    // Another thread may have received our answer while we had released the lock: for an iteration of its own, and then
    // it is kept here; or as its own, where threads share an iteration, and then we ask for the next.
    if (auto kept = answers_.take(iteration)) return std::move(*kept);
    if (answers_.ask(iteration)) send(ClientNext{iteration});
    std::optional<ReceiverAnswer> answer = receive_once("the next batch", iteration, wait_deadline);
    if (!answer) continue;
    const uint64_t whose = iteration_of(answer->message);
    if (whose == iteration) {
      answers_.arrived(iteration);
      returned_.delivered(iteration);
      return std::move(answer->message);
    }
    if (whose != 0) {
      keep_for_later(whose, std::move(answer->message));
    } else if (questions_.waiting()) {
      answered(std::move(*answer));
    } else {
      return std::move(answer->message);  // to nothing that was asked: the caller says so
    }
  }
}

void ClientSession::keep_for_later(uint64_t iteration, ClientMessage answer) {
  for (const uint64_t over : outbox_.take_stopped()) answers_.stop(over);
  if (const auto back = answers_.keep(iteration, std::move(answer))) send(*back);
}

// ---- memory of loaders' GPUs -------------------------------------------------------------------------------------
bool ClientSession::received_export(const ClientMessage& message, UniqueFd& fd) {
  if (const auto* exported = std::get_if<ClientExport>(&message)) {
    const auto memory =
        std::make_shared<ExportedGpuMemory>(exported->exported, exported->bytes, fd ? fd.release() : -1);
    memory->linked = exported->linked;
    offers_.push_back(memory);
    exports_[exported->exported] = memory;
    return true;
  }
  if (const auto* opened = std::get_if<ClientLinkOpened>(&message)) {
    const auto known = exports_.find(opened->exported);
    if (known == exports_.end()) return true;
    // Another one: what the program has was shown as it was.
    const auto memory = std::make_shared<ExportedGpuMemory>(opened->exported, known->second->bytes, -1);
    memory->linked = true;
    memory->link_id = opened->id;
    memory->problem = opened->problem;
    offers_.push_back(memory);
    if (memory->problem.empty()) known->second = memory;
    return true;
  }
  if (const auto* gone = std::get_if<ClientExportGone>(&message)) {
    std::erase_if(offers_, [&](const auto& memory) { return memory->number == gone->exported; });
    const auto known = exports_.find(gone->exported);
    if (known == exports_.end()) return true;
    known->second->gone.store(true, std::memory_order_relaxed);
    exports_.erase(known);
    return true;
  }
  return false;
}

std::vector<std::shared_ptr<const ExportedGpuMemory>> ClientSession::take_offers() {
  check_owner();
  MutexLock lock(mutex_);
  return std::exchange(offers_, {});
}

void ClientSession::use(const ExportedGpuMemory& memory) {
  check_owner();
  MutexLock lock(mutex_);
  send(ClientExportUsed{memory.number, true});
}

void ClientSession::use_none() {
  check_owner();
  MutexLock lock(mutex_);
  for (const auto& [number, memory] : exports_) send(ClientExportUsed{number, false});
}

void ClientSession::ask_for_link(const ExportedGpuMemory& memory, const std::string& identity) {
  check_owner();
  MutexLock lock(mutex_);
  send(ClientLinkAsked{memory.number, identity});
}

void ClientSession::ask_for_images(const ExportedGpuMemory& memory, std::vector<MemoryRange> runs) {
  check_owner();
  if (memory.gone.load(std::memory_order_relaxed)) {
    throw lost_with_its_loader();
  }
  MutexLock lock(mutex_);
  send(ClientBufferRangesAsked{memory.number, std::move(runs)});
}

// ---- waiting -----------------------------------------------------------------------------------------------------
void ClientSession::received(const ClientNotice& notice) {
  warnings_.push_back(notice.text);
  unsaid_.push_back(notice.text);
  if (notice.held_iteration != 0) returned_.all_held(notice.held_iteration);
}

void ClientSession::hung_up(const std::string& what) {
  std::string why = !failure_.empty() ? failure_ : options_.problem ? options_.problem() : "";
  if (why.empty()) {
    why = "the receiver of trainer " + std::to_string(opened_.replica) + " on host " + host_name() +
          " went away while the program waited for " + what + " of split '" + options_.split + "'";
  }
  throw Error(ErrorKind::peer_lost, why, options_.server.empty() ? "" : "see the messages of " + options_.server);
}

// `iteration`: whose next batch it is; 0: another answer.
void ClientSession::too_late(const std::string& what, uint64_t iteration, Nanoseconds limit_ns) {
  const std::string failure = "trainer " + std::to_string(opened_.replica) + " waited " + in_seconds(limit_ns) +
                              " for " + what + " of split '" + options_.split + "'";
  // A batch that comes after all is the next call's, as after an interruption. Other answers are the receiver's own, whose
  // silence is its end; one that came after all would be taken for that to the next question.
  if (iteration == 0) {
    failure_ = failure;
    socket_.close();
  }
  const std::string limit = iteration == 0 ? "trainer.timeout_s" : "the program's timeout_s, else trainer.timeout_s,";
  throw Error(ErrorKind::peer_lost, failure,
              warnings_.empty() ? "see the loaders' messages; " + limit + " sets the limit" : warnings_.back());
}

void ClientSession::holds_too_much() const {
  throw Error(
      ErrorKind::usage, "the program holds all batches of split '" + options_.split + "', and asks for another",
      "drop batches before the next ones are asked for, copy what is to be kept (copy=True in Python), or raise "
      "trainer.hold (" +
          std::to_string(options_.hold) + ")");
}

// ---- warnings ----------------------------------------------------------------------------------------------------
void ClientSession::warn(const std::string& text) {
  check_owner();
  MutexLock lock(mutex_);
  warnings_.push_back(text);
  unsaid_.push_back(text);
  report_warnings();
}

std::vector<std::string> ClientSession::take_warnings() {
  MutexLock lock(mutex_);
  return std::exchange(warnings_, {});
}

void ClientSession::report_warnings() {
  for (const std::string& text : std::exchange(unsaid_, {})) {
    if (options_.on_warning) without_lock([&] { options_.on_warning(text); });
  }
}

// A callback may drop batches, ask for warnings(), or wait for a lock of the program's own.
template <class Call>
void ClientSession::without_lock(const Call& call) {
  mutex_.unlock();
  try {
    call();
  } catch (...) {
    mutex_.lock();
    throw;
  }
  mutex_.lock();
}

}  // namespace penstock
