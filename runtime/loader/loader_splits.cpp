#include "runtime/loader/loader_splits.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/loader/loader.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/sample_sizes.h"
#include "runtime/sample/split_fields.h"

namespace penstock {
namespace {

// How many lists of closed splits are kept: train, val and another two.
constexpr size_t kListsKept = 4;
// In messages, as everywhere: `penstock check` says the same of the same memory.
constexpr int64_t kBytesOfMegabyte = 1'000'000;

size_t chunk_buffer_bytes(const SplitContext& context, int32_t samples) {
  constexpr size_t page = 4096;
  return (chunk_layout(context.fields(), samples).total_bytes + page - 1) / page * page;
}

// What to do where memory is short. `others`: what would help besides.
std::string memory_remedy(const FieldTable& fields, const std::string& others) {
  size_t all = 0;
  size_t varying = 0;
  for (const FieldSpec& field : fields) {
    all += field.bytes_per_sample();
    if (!field.fixed_size()) varying += field.bytes_per_sample();
  }
  if (2 * varying < all) return others;
  return "lower limits.max_field_bytes: most of it is room for texts and bytes, in each sample for the longest one; "
         "or " +
         others;
}

[[noreturn]] void impossible_lease() {
  throw Error(ErrorKind::peer_lost, "a lease came for which this loader has no room or no split",
              "all ranks must run the same version of penstock");
}

}  // namespace

// Chunk buffers first; of the rest, half at most is for what is learned.
MemoryShares memory_shares(const LoaderOptions& options, int64_t chunk_buffer_bytes) {
  const int64_t left = std::max<int64_t>(options.memory_bytes - chunk_buffer_bytes, 0);
  MemoryShares shares;
  shares.learned = std::min(options.index_memory_bytes, left / 2);
  shares.read_ahead = left - shares.learned;
  shares.large = shares.read_ahead - std::min(options.read_ahead.memory_bytes, shares.read_ahead);
  return shares;
}

bool ended(const SplitContext& context) {
  return context.workers() != nullptr && context.workers()->waits_ended();
}

LoaderSplits::LoaderSplits(const LoaderOptions& options, Endpoint& endpoint, ReadAhead& ahead, Wakeup& wakeup)
    : options_(options),
      endpoint_(endpoint),
      ahead_(ahead),
      wakeup_(wakeup),
      learned_(options.index_memory_bytes > 0 ? std::make_shared<LearnedMemory>(memory_shares(options, 0).learned)
                                              : nullptr),
      large_(std::make_shared<LargeMemory>(memory_shares(options, 0).large)) {}

LoaderSplits::~LoaderSplits() {
  stop();
  join();
}

void LoaderSplits::join() {
  for (auto& [fingerprint, split] : splits_) {
    if (split.opening.joinable()) split.opening.join();
  }
}

void LoaderSplits::share_memory() {
  const MemoryShares shares = memory_shares(options_, static_cast<int64_t>(arena_bytes_));
  ahead_.set_memory(shares.read_ahead);
  if (learned_) learned_->set_limit(shares.learned);
  large_->set_limit(shares.large);
}

void LoaderSplits::tell_sizes(const SizesAsked& m) {
  const auto split = splits_.find(m.fingerprint);
  if (split == splits_.end() || !split->second.context) return;
  const Source& source = split->second.context->source();
  SizesTold told{m.fingerprint, m.first, {}};
  bool any = false;
  const int64_t end = std::min(source.size(), m.first + m.samples);
  for (int64_t index = m.first; index < end; ++index) {
    told.codes += static_cast<char>(size_code(source.known_size(index)));
    any = any || told.codes.back() != 0;
  }
  if (!any) told.codes.clear();
  send(told);
}

void LoaderSplits::prepare(const PrepareSplit& m) {
  Listed before;  // a list that is there already
  if (const auto known = splits_.find(m.fingerprint); known != splits_.end()) {
    known->second.closed = false;
    if (known->second.opened.valid()) return;  // the answer is on its way
    // In use by an iteration that ended. Files may have changed since all the same.
    if (in_use(*known->second.arena)) {
      before = set_aside(known);
    } else {
      retire(known);
    }
  }
  Split& split = splits_[m.fingerprint];
  split.max_chunk_samples = m.max_chunk_samples;
  split.described = fingerprint_of(m.json);
  split.like = m.like;
  // An earlier list: that of an open split, or of one that was closed a while ago.
  if (const auto like = splits_.find(m.like);
      m.like != 0 && like != splits_.end() && like->second.context && !ended(*like->second.context)) {
    before = {like->second.context, like->second.stamps, like->second.answer};
  }
  const auto kept =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return one.described == split.described; });
  if (m.like == 0 && kept != kept_.end()) {
    before = std::move(kept->listed);
    kept_.erase(kept);
  }
  std::promise<void> promise;
  split.opened = promise.get_future();
  if (options_.seams.open_split) {
    split.fresh = open(m, std::move(before));
    promise.set_value();
    return;
  }
  split.opening = std::thread([this, &split, m, before = std::move(before), promise = std::move(promise)]() mutable {
    try {
      split.fresh = open(m, std::move(before));
      promise.set_value();
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
    wakeup_.set();
  });
}

// In the opening thread. `before`: a list of the same description, or nothing. Nobody waits for it longer than the
// coordinator wants to (SplitRegistryOptions::go_on_after_ns), so it has the time that a chunk has.
LoaderSplits::Listed LoaderSplits::open(const PrepareSplit& m, Listed before) const {
  constexpr Nanoseconds kLongestPause = 2 * kSecond;
  const MonotonicClock clock;
  const Nanoseconds until = clock.now() + options_.retry_ns;
  std::mutex unused;
  std::condition_variable_any pausing;
  bool said = false;
  for (Nanoseconds pause = 50 * kMillisecond;; pause = std::min(2 * pause, kLongestPause)) {
    Listed fresh = open_once(m, before);
    if (!fresh.may_pass || clock.now() + pause > until || python_stop_.stop_requested()) return fresh;
    if (options_.on_notice && !std::exchange(said, true)) {
      options_.on_notice("a split could not be opened, and is tried again (balancer.retry_s): " + fresh.answer.error);
    }
    std::unique_lock lock(unused);
    pausing.wait_for(lock, python_stop_.get_token(), std::chrono::nanoseconds(pause), [] { return false; });
  }
}

LoaderSplits::Listed LoaderSplits::open_once(const PrepareSplit& m, Listed& before) const {
  Listed fresh;
  SplitPrepared& answer = fresh.answer;
  const auto fail = [&](int32_t kind, std::string error, std::string remedy) {
    const bool may_pass = fresh.may_pass;
    fresh = {};
    fresh.may_pass = may_pass;
    answer.error_kind = kind;
    answer.error = std::move(error);
    answer.remedy = std::move(remedy);
  };
  try {
    FileSystem& files = ahead_.files();
    const Looked looked = before.context ? look(before.stamps, files) : Looked::changed;
    if (looked == Looked::same) {
      fresh = std::move(before);
    } else {
      if (looked == Looked::changed && m.like == 0) before = {};  // nobody needs the old one: its room is wanted
      list_anew(m, files, fresh);
      // Folders that changed and hold the same pictures; or that may have changed, and did not.
      if (before.context && before.answer.dataset_fingerprint == answer.dataset_fingerprint &&
          before.answer.readable == answer.readable && same_files(before.stamps, fresh.stamps)) {
        fresh.context = std::move(before.context);
        answer = std::move(before.answer);
      } else {
        before = {};
      }
    }
    answer.same = m.like != 0 && fresh.context && answer.fingerprint == m.like;
  } catch (const Error& error) {
    fail(error.exit_code(), error.message(), error.remedy());
  } catch (const std::bad_alloc&) {
    fresh.may_pass = true;
    fail(static_cast<int32_t>(ErrorKind::runtime), "out of memory while the dataset was listed", "");
  } catch (const std::exception& error) {
    fail(static_cast<int32_t>(ErrorKind::runtime), error.what(), "");
  }
  answer.fingerprint = m.fingerprint;
  answer.may_pass = fresh.may_pass;
  return fresh;
}

void LoaderSplits::list_anew(const PrepareSplit& m, FileSystem& files, Listed& fresh) const {
  struct Opened {
    explicit Opened(FileSystem& below) : files(below) {}
    ListedFiles files;
    std::shared_ptr<const SplitContext> context;  // reads through `files`: goes first
  };
  const auto opened = std::make_shared<Opened>(files);
  try {
    opened->context =
        options_.seams.open_split
            ? options_.seams.open_split(split_from_json(m.json))
            : SplitContext::open(split_from_json(m.json), opened->files,
                                 {options_.python, options_.on_notice, python_stop_.get_token(), options_.only_here},
                                 options_.sources, learned_, large_);
  } catch (const FileError& error) {
    fresh.may_pass = opened->files.met_trouble() || may_pass(error.code());
    throw;
  } catch (const Error&) {
    fresh.may_pass = opened->files.met_trouble();
    throw;
  }
  fresh.stamps = opened->files.finish();
  fresh.context = {opened, opened->context.get()};
  const Source& source = fresh.context->source();
  fresh.answer.good = true;
  fresh.answer.fingerprint = m.fingerprint;
  fresh.answer.dataset_size = source.size();
  fresh.answer.dataset_fingerprint = source.fingerprint().hex();
  fresh.answer.classes = source.class_names();
  fresh.answer.labelled = source.labelled();
  for (const FieldSpec& field : fresh.context->fields()) {
    fresh.answer.sample_bytes += static_cast<int64_t>(field.bytes_per_sample());
  }
  ReadableSamples readable = source.readable();
  if (readable.ranges != IndexRanges::all(source.size())) {
    fresh.answer.partial = true;
    fresh.answer.readable = readable.ranges.bounds();
    fresh.answer.lacking = std::move(readable.lacking);
  }
  const auto extras = extra_fields(fresh.context->fields());
  fresh.answer.extra_fields.assign(extras.begin(), extras.end());
}

bool LoaderSplits::in_use(const Arena& arena) const {  // chunk buffers of it are out, or worked in
  return std::any_of(in_use_.begin(), in_use_.end(), [&](const auto& item) { return item.first.first == arena.id; });
}
// The coordinator asks again after the split could not be opened, here or at another loader: the folder may have been
// repaired, and what was listed no longer be so.
void LoaderSplits::retire(Splits::iterator split) {
  forget_arena(*split->second.arena);
  splits_.erase(split);
}
// Gives its list, for a look whether it holds still; workers in Python are begun anew.
LoaderSplits::Listed LoaderSplits::set_aside(Splits::iterator it) {
  Split& split = it->second;
  Listed list;
  if (split.context->workers() == nullptr) list = {split.context, std::move(split.stamps), split.answer};
  leaving_.push_back({std::move(split.context), std::move(split.arena), std::move(split.free_chunk_buffers)});
  splits_.erase(it);
  return list;
}
void LoaderSplits::forget_arena(const Arena& arena) {
  arena_bytes_ -= arena.memory.size();
  share_memory();
  endpoint_.forget_arena(arena.id);
}

void LoaderSplits::close(const SplitClosed& m) {
  const auto it = splits_.find(m.fingerprint);
  if (it == splits_.end()) return;
  it->second.closed = true;
  it->second.worth_keeping = !m.failed;
  // A sample that hangs would keep a thread from other splits. The context's workers serve nobody else: one that is
  // prepared anew gets others.
  if (it->second.context && it->second.context->workers() != nullptr) it->second.context->workers()->end_waits();
  let_closed_go();
}
void LoaderSplits::drop_all() {
  for (auto& [fingerprint, split] : splits_) {
    split.early.clear();
    split.closed = true;
  }
  for (auto& [chunk_buffer, use] : in_use_) use.counted = false;
  let_closed_go();
}
bool LoaderSplits::listing() const {
  return std::any_of(splits_.begin(), splits_.end(), [](const auto& item) { return item.second.opened.valid(); });
}
// Lists of files are kept for a while, and with them what loader.cache_gb holds: a trainer that starts again opens
// the same splits. Processes and chunk buffers are not.
void LoaderSplits::let_closed_go() {
  for (auto it = splits_.begin(); it != splits_.end();) {
    const auto split = it++;
    if (!split->second.closed || split->second.opened.valid() || in_use(*split->second.arena)) continue;
    if (split->second.context && split->second.context->workers() == nullptr && split->second.worth_keeping) {
      kept_.push_back(
          {split->second.described, {split->second.context, std::move(split->second.stamps), split->second.answer}});
      if (kept_.size() > kListsKept) kept_.pop_front();
    }
    retire(split);
  }
  let_kept_go();
}
// What closed splits hold in memory and on disk must not come on top of what living ones may have.
void LoaderSplits::let_kept_go() {
  if (kept_.empty()) return;
  if (learned_ && learned_->full()) {
    for (const Kept& one : kept_) one.listed.context->learned()->clear();
  }
  SourceBudget sum{0, 0};
  const auto add = [&](const std::shared_ptr<const SplitContext>& context) {
    if (!context) return;
    const SourceBudget taken = context->source().taken();
    sum.cache_bytes += taken.cache_bytes;
    sum.spool_bytes += taken.spool_bytes;
  };
  for (const auto& [fingerprint, split] : splits_) add(split.context);
  for (const Leaving& one : leaving_) add(one.context);
  for (const Kept& one : kept_) add(one.listed.context);
  while (!kept_.empty() &&
         (sum.cache_bytes > options_.sources.cache_bytes || sum.spool_bytes > options_.sources.spool_bytes)) {
    const SourceBudget taken = kept_.front().listed.context->source().taken();
    sum.cache_bytes -= taken.cache_bytes;
    sum.spool_bytes -= taken.spool_bytes;
    kept_.pop_front();
  }
}

std::vector<std::unique_ptr<ChunkWork>> LoaderSplits::collect() {
  std::vector<std::unique_ptr<ChunkWork>> begun;
  for (auto it = splits_.begin(); it != splits_.end();) {
    const auto here = it++;
    Split& split = here->second;
    if (!split.opened.valid()) continue;
    if (split.opened.wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
    if (!split.memory.valid()) {
      if (waits_for_room(split)) continue;
      if (split.opening.joinable()) split.opening.join();
      if (wants_memory(split)) take_memory(split);
    }
    if (split.memory.valid() && split.memory.wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
    split.opened.get();
    if (split.opening.joinable()) split.opening.join();
    Listed fresh = std::exchange(split.fresh, {});
    SplitPrepared answer = std::move(fresh.answer);
    if (answer.same) {
      if (const auto like = splits_.find(split.like); like != splits_.end()) {
        like->second.stamps = std::move(fresh.stamps);
      }
      send(answer);
      splits_.erase(here);
      continue;
    }
    if (answer.good) {
      split.context = std::move(fresh.context);
      split.stamps = std::move(fresh.stamps);
      try {
        if (split.memory.valid()) {
          make_arena(split);
        } else {
          take_back_chunk_buffers(split);
        }
      } catch (const Error& error) {
        answer.good = false;
        answer.error_kind = error.exit_code();
        answer.error = error.message();
        answer.remedy = error.remedy();
        split.context = nullptr;  // a lease that crosses this answer finds no split here
      }
    }
    if (split.closed && split.context && split.context->workers() != nullptr) split.context->workers()->end_waits();
    send(answer);
    split.answer = answer;
    for (LeaseGranted& m : std::exchange(split.early, {})) {
      if (answer.good) {
        if (auto work = begin(split, std::move(m))) begun.push_back(std::move(work));
      } else {
        send(ChunkUndone{m.lease, answer.error});
        send(ChunkBufferFree{m.receiver});  // it was counted on, though never taken
      }
    }
  }
  let_closed_go();
  return begun;
}

// Those of an earlier incarnation that are still out are not the coordinator's to count on.
bool LoaderSplits::has_chunk_buffers_for(const Leaving& one, const std::shared_ptr<const SplitContext>& context,
                                         int32_t samples) const {
  return one.context == context && one.arena->chunk_buffer_bytes == chunk_buffer_bytes(*context, samples) &&
         std::none_of(in_use_.begin(), in_use_.end(),
                      [&](const auto& item) { return item.first.first == one.arena->id && !item.second.counted; });
}

bool LoaderSplits::wants_memory(const Split& split) const {
  const SplitPrepared& answer = split.fresh.answer;
  return answer.good && !answer.same && std::none_of(leaving_.begin(), leaving_.end(), [&](const Leaving& one) {
           return has_chunk_buffers_for(one, split.fresh.context, split.max_chunk_samples);
         });
}

// Where the list is still the same, so are the chunk buffers. There are some, or the split would want memory.
void LoaderSplits::take_back_chunk_buffers(Split& split) {
  const auto same = std::find_if(leaving_.begin(), leaving_.end(), [&](const Leaving& one) {
    return has_chunk_buffers_for(one, split.context, split.max_chunk_samples);
  });
  split.arena = std::move(same->arena);
  split.free_chunk_buffers = std::move(same->free_chunk_buffers);
  leaving_.erase(same);
}

// Chunk buffers that are still out may be what its own have no room beside; receivers give them back, or are lost.
bool LoaderSplits::waits_for_room(const Split& split) const {
  const std::shared_ptr<const SplitContext>& context = split.fresh.context;
  const int32_t samples = split.max_chunk_samples;
  if (leaving_.empty() || !context || split.fresh.answer.same) return false;
  const bool has_some = std::any_of(leaving_.begin(), leaving_.end(),
                                    [&](const Leaving& one) { return has_chunk_buffers_for(one, context, samples); });
  const size_t total = chunk_buffer_bytes(*context, samples) * static_cast<size_t>(options_.chunk_buffers);
  return !has_some && static_cast<int64_t>(total + arena_bytes_) > options_.memory_bytes;
}

// Gigabytes take seconds, or ten times as long on a busy machine: a loader that is silent meanwhile would be given up.
void LoaderSplits::take_memory(Split& split) {
  const SplitContext& context = *split.fresh.context;
  const size_t total =
      chunk_buffer_bytes(context, split.max_chunk_samples) * static_cast<size_t>(options_.chunk_buffers);
  std::promise<SharedMemory> promise;
  split.memory = promise.get_future();
  if (static_cast<int64_t>(total + arena_bytes_) > options_.memory_bytes) {
    promise.set_exception(std::make_exception_ptr(Error(
        ErrorKind::config,
        "split '" + context.split().name + "' needs " + std::to_string(static_cast<int64_t>(total) / kBytesOfMegabyte) +
            " MB of chunk buffers at each loader, and loader.memory_gb leaves " +
            std::to_string((options_.memory_bytes - static_cast<int64_t>(arena_bytes_)) / kBytesOfMegabyte) + " MB",
        memory_remedy(context.fields(),
                      "raise loader.memory_gb, or lower loader.chunk_buffers, loader.threads or "
                      "loader.chunk_samples"))));
    return;
  }
  arena_bytes_ += split.counted = total;
  share_memory();
  const auto take = [mapped = endpoint_.peers_map_arenas(), total] {
    if (!mapped) return SharedMemory::create_private("penstock-chunk-buffers", total);
    SharedMemory memory = SharedMemory::create("penstock-chunk-buffers", total);
    memory.seal_future_writes();
    return memory;
  };
  const auto fulfil = [take](std::promise<SharedMemory>& promised) {
    try {
      promised.set_value(take());
    } catch (...) {
      promised.set_exception(std::current_exception());
    }
  };
  if (options_.seams.open_split) return fulfil(promise);
  split.opening = std::thread([this, fulfil, promise = std::move(promise)]() mutable {
    fulfil(promise);
    wakeup_.set();
  });
}

// Makes the split's arena of the memory that was taken for it, and registers it with the endpoint.
void LoaderSplits::make_arena(Split& split) {
  try {
    split.arena->memory = split.memory.get();
  } catch (const Error& error) {
    if (split.counted == 0) throw;  // there was no room for it
    arena_bytes_ -= std::exchange(split.counted, 0);
    share_memory();
    throw Error(
        error.kind(),
        error.message() + ", for " + std::to_string(options_.chunk_buffers) + " chunks of " +
            std::to_string(split.max_chunk_samples) + " samples of split '" + split.context->split().name + "'",
        memory_remedy(split.context->fields(),
                      "lower loader.chunk_buffers, loader.threads or loader.chunk_samples, or the number of loaders"));
  }
  split.counted = 0;  // it is the arena's now
  split.arena->chunk_buffer_bytes = chunk_buffer_bytes(*split.context, split.max_chunk_samples);
  split.arena->id = next_arena_++;
  endpoint_.register_arena(*split.arena);
  for (uint32_t chunk_buffer = 0; chunk_buffer < static_cast<uint32_t>(options_.chunk_buffers); ++chunk_buffer)
    split.free_chunk_buffers.push_back(chunk_buffer);
}

std::unique_ptr<ChunkWork> LoaderSplits::lease(LeaseGranted m) {
  const auto it = splits_.find(m.fingerprint);
  if (it == splits_.end() || m.samples.empty() || std::ssize(m.samples) > it->second.max_chunk_samples) {
    impossible_lease();
  }
  Split& split = it->second;
  // A loader that joins when others have opened the split is granted work at once.
  if (split.opened.valid()) {
    split.early.push_back(std::move(m));
    return nullptr;
  }
  return begin(split, std::move(m));
}

std::unique_ptr<ChunkWork> LoaderSplits::begin(Split& split, LeaseGranted m) {
  if (!split.context) {  // a lease that crossed our word that the split cannot be opened
    send(ChunkUndone{m.lease, "the split could not be opened here"});
    send(ChunkBufferFree{m.receiver});
    return nullptr;
  }
  if (split.free_chunk_buffers.empty()) impossible_lease();
  auto work = std::make_unique<ChunkWork>();
  work->split = split.context;
  work->chunk_buffer = {split.arena->id, split.free_chunk_buffers.back()};
  work->memory = split.arena->chunk_buffer(split.free_chunk_buffers.back());
  split.free_chunk_buffers.pop_back();
  in_use_[{work->chunk_buffer.arena, work->chunk_buffer.index}] = {m.receiver, true};
  work->lease = std::move(m);
  return work;
}

void LoaderSplits::send(const ControlMessage& message) {
  endpoint_.send(options_.coordinator, encode(message));
}

void LoaderSplits::revoke(const LeaseKey& lease) {
  for (auto& [fingerprint, split] : splits_) {
    const auto it =
        std::find_if(split.early.begin(), split.early.end(), [&](const LeaseGranted& m) { return m.lease == lease; });
    if (it == split.early.end()) continue;
    send(ChunkBufferFree{it->receiver});
    split.early.erase(it);
  }
}

void LoaderSplits::free_chunk_buffer(const ChunkBufferRef& chunk_buffer) {
  const auto it = in_use_.find({chunk_buffer.arena, chunk_buffer.index});
  if (it == in_use_.end()) return;  // not in use: freeing it again would give it to two works
  for (auto& [fingerprint, split] : splits_) {
    if (split.context && split.arena->id == chunk_buffer.arena) split.free_chunk_buffers.push_back(chunk_buffer.index);
  }
  for (Leaving& one : leaving_) {
    if (one.arena->id == chunk_buffer.arena) one.free_chunk_buffers.push_back(chunk_buffer.index);
  }
  if (it->second.counted) send(ChunkBufferFree{it->second.receiver});
  in_use_.erase(it);
  std::erase_if(leaving_, [&](const Leaving& one) {
    const bool home = !in_use(*one.arena);
    if (home) forget_arena(*one.arena);
    return home;
  });
  let_closed_go();
}

}  // namespace penstock
