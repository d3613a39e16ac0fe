#include "runtime/datasets/read_ahead.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {
namespace {

// Parts this near each other are one read: a tar archive's headers lie between them.
constexpr uint64_t kNear = 16 << 10;
constexpr uint64_t kLargestJoined = 4 << 20;
// A read from memory: a few system calls, and bytes at 2 GB a second. A decoding thread needs half a millisecond for a
// photo, so a twenty-fifth of that, lost on each read, is what is put up with.
constexpr Nanoseconds kCalls = 100 * kMicrosecond;
constexpr int64_t kBytesPerNs = 2;
constexpr Nanoseconds kTolerated = 20 * kMicrosecond;
// One read from a disk far away is enough to begin; some hundred from memory, to end.
constexpr Nanoseconds kBegin = 2 * kMillisecond;
constexpr Nanoseconds kMost = 8 * kMillisecond;
constexpr Nanoseconds kSuspension = 60 * kSecond;
constexpr Nanoseconds kCloseLook = kSecond;

// What of a read's time was more than memory needs.
Nanoseconds lateness(Nanoseconds took, uint64_t bytes) {
  return std::max<Nanoseconds>(0, took - kCalls - static_cast<Nanoseconds>(bytes) / kBytesPerNs);
}

}  // namespace

struct ReadAhead::Entry : ReadJob {
  enum class State { queued, started, ready, failed, gone };
  State state = State::queued;
  std::vector<Key> parts;  // not taken yet
  int64_t reserved = 0;
  int waiters = 0;
  bool abandoned = false;  // started, and wanted by nobody any more
  bool orphaned = false;   // its ticket is gone, and only those that wait for it keep it
  Nanoseconds started_at = 0;
  CondVar changed;
};

size_t ReadAhead::KeyHash::operator()(const Key& key) const noexcept {
  return std::hash<std::string>()(key.path) ^ (key.offset * 0x9e3779b97f4a7c15U) ^ key.bytes;
}

// Around a read by the thread that needs it.
class ReadAhead::Watch {
 public:
  explicit Watch(ReadAhead& ahead) : ahead_(ahead), begun_(ahead.clock_.now()) {
    if (begun_ < ahead_.look_closely_until_.load(std::memory_order_relaxed)) switches_ = voluntary_switches();
  }
  void end(uint64_t bytes) {
    const Nanoseconds now = ahead_.clock_.now();
    Nanoseconds waited = now - begun_;
    if (lateness(waited, bytes) > 0) {
      // Slow, or interrupted: on a busy machine the latter is the rule. The next ones will tell.
      ahead_.look_closely_until_.store(now + kCloseLook, std::memory_order_relaxed);
      if (switches_ < 0 || voluntary_switches() == switches_) waited = 0;
    }
    ahead_.observe(waited, bytes);
  }

 private:
  ReadAhead& ahead_;
  Nanoseconds begun_;
  int64_t switches_ = -1;
};

// What sources see: the file system below, with what ran ahead in front of it.
class ReadAhead::FrontReader final : public FileReader {
 public:
  FrontReader(ReadAhead& ahead, std::shared_ptr<const FileReader> below) : ahead_(ahead), below_(std::move(below)) {}

  const std::string& path() const noexcept override { return below_->path(); }
  uint64_t size() const noexcept override { return below_->size(); }
  int64_t modified_ns() const noexcept override { return below_->modified_ns(); }
  int descriptor() const noexcept override { return below_->descriptor(); }
  void read_at(uint64_t offset, std::span<std::byte> into) const override {
    if (ahead_.parts_.load(std::memory_order_relaxed) > 0 && !into.empty() &&
        ahead_.take({below_->path(), offset, into.size()}, 0, nullptr, into)) {
      return;
    }
    Watch watch(ahead_);
    below_->read_at(offset, into);
    watch.end(into.size());
  }
  const std::shared_ptr<const FileReader>& below() const noexcept { return below_; }

 private:
  ReadAhead& ahead_;
  std::shared_ptr<const FileReader> below_;
};

class ReadAhead::Front final : public FileSystem {
 public:
  explicit Front(ReadAhead& ahead) : ahead_(ahead), below_(ahead.below_) {}

  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    if (ahead_.parts_.load(std::memory_order_relaxed) > 0 &&
        ahead_.take({path, 0, FilePart::kWholeFile}, max_bytes, &bytes, {})) {
      return true;
    }
    Watch watch(ahead_);
    const bool fits = below_.read_file(path, max_bytes, bytes);
    watch.end(bytes.size());
    ahead_.learn_size(bytes.size());
    return fits;
  }
  std::unique_ptr<FileReader> open_file(const std::string& path) override {
    return std::make_unique<FrontReader>(ahead_, below_.open_file(path));
  }
  int64_t file_size(const std::string& path) override { return below_.file_size(path); }
  FileFacts examine(const std::string& path) override { return below_.examine(path); }
  Directory list_directory(const std::string& path) override { return below_.list_directory(path); }

 private:
  ReadAhead& ahead_;
  FileSystem& below_;
};

ReadAhead::ReadAhead(const ReadAheadOptions& options, FileSystem& files)
    : options_(options),
      below_(files),
      front_(std::make_unique<Front>(*this)),
      awake_(options.reads > 0 && options.eager),
      memory_bytes_(options.memory_bytes) {}

std::shared_ptr<ReadAhead> ReadAhead::make(const ReadAheadOptions& options, FileSystem& files) {
  return std::shared_ptr<ReadAhead>(new ReadAhead(options, files));
}

ReadAhead::~ReadAhead() {
  stop(0);
}

void ReadAhead::observe(Nanoseconds waited, uint64_t bytes) {
  if (options_.reads <= 0 || options_.eager) return;
  const Nanoseconds late = lateness(waited, bytes);
  // Two threads may overwrite each other's sum: it is a hint, and both have seen a disk.
  const int64_t before = slowness_ns_.load(std::memory_order_relaxed);
  const int64_t now = std::clamp<int64_t>(before + late - kTolerated, 0, kMost);
  if (now == before) return;
  slowness_ns_.store(now, std::memory_order_relaxed);
  if (now >= kBegin) awake_.store(true, std::memory_order_relaxed);
  if (now == 0) awake_.store(false, std::memory_order_relaxed);
}

void ReadAhead::learn_size(size_t bytes) {
  if (!awake()) return;
  MutexLock lock(mutex_);
  usual_bytes_ = std::max(usual_bytes_, static_cast<double>(bytes));
}

uint64_t ReadAhead::plan(const Source& source, const std::vector<int64_t>& indices) {
  if (!awake()) return 0;
  std::vector<std::vector<FilePart>> parts(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) source.list_reads(indices[i], parts[i]);
  std::vector<EntryPtr> now;
  uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    if (stopped_ || memory_bytes_ <= 0 || clock_.now() < suspended_until_) return 0;
    ticket = next_ticket_++;
    for (std::vector<FilePart>& sample : parts) add_parts(ticket, sample);
    now = next_reads();
  }
  start(now);
  return ticket;
}

void ReadAhead::add_parts(uint64_t ticket, std::vector<FilePart>& parts) {
  EntryPtr last;
  for (FilePart& part : parts) {
    Key key{std::move(part.path), part.offset, part.bytes};
    if (table_.count(key) != 0) continue;  // the same sample, twice within reach: the second one reads it then
    const bool whole = part.bytes == FilePart::kWholeFile;
    if (last && !whole && !last->whole && last->path == key.path && part.offset >= last->offset) {
      const uint64_t end = last->offset + last->bytes;
      const uint64_t new_end = std::max(end, part.offset + part.bytes);
      if (part.offset <= end + kNear && new_end - last->offset <= kLargestJoined) {
        last->bytes = new_end - last->offset;
        last->parts.push_back(key);
        table_.emplace(std::move(key), last);
        continue;
      }
    }
    last = std::make_shared<Entry>();
    last->path = key.path;
    last->whole = whole;
    last->offset = part.offset;
    last->bytes = whole ? static_cast<uint64_t>(std::max<int64_t>(0, part.max_bytes)) : part.bytes;
    if (const auto* mine = dynamic_cast<const FrontReader*>(part.reader.get())) last->reader = mine->below();
    last->parts.push_back(key);
    table_.emplace(std::move(key), last);
    queue_.push_back(last);
    tickets_[ticket].push_back(last);
  }
  parts_.store(std::ssize(table_), std::memory_order_relaxed);
}

std::vector<ReadAhead::EntryPtr> ReadAhead::next_reads() {
  std::vector<EntryPtr> now;
  // What is in the queue stays there: whoever comes to it reads for himself, and a ticket's end takes it away.
  if (memory_bytes_ <= 0 || clock_.now() < suspended_until_) return now;
  while (!queue_.empty() && under_way_ < options_.reads && !stopped_) {
    const EntryPtr& entry = queue_.front();
    if (entry->state == Entry::State::queued) {
      // Nobody knows a file's size yet; what is larger than the largest of late is left to who wants it.
      const auto guess = static_cast<int64_t>(usual_bytes_ * 1.25);
      int64_t wanted =
          entry->whole ? std::min(static_cast<int64_t>(entry->bytes), guess) : static_cast<int64_t>(entry->bytes);
      if (entry->whole && wanted > memory_bytes_) wanted = memory_bytes_;
      if (wanted > memory_bytes_) {  // it never fits
        forget(entry);
        queue_.pop_front();
        continue;
      }
      if (reserved_ + wanted > memory_bytes_) break;
      entry->bytes = static_cast<uint64_t>(wanted);
      entry->reserved = wanted;
      entry->state = Entry::State::started;
      entry->started_at = clock_.now();
      reserved_ += wanted;
      ++under_way_;
      ++figures_.reads;
      now.push_back(entry);
    }
    queue_.pop_front();
  }
  return now;
}

std::shared_ptr<ReadEngine> ReadAhead::engine() {
  if (engine_ || stopped_) return engine_;
  ReadEngineOptions wanted;
  wanted.reads = options_.reads;
  wanted.cpus = options_.cpus;
  wanted.done = [weak = weak_from_this()](const std::shared_ptr<ReadJob>& job) {
    if (const auto self = weak.lock()) self->finished(job);
  };
  if (!below_.is_the_kernels()) {
    figures_.why_threads = "the file system is not the kernel's";
  } else if (options_.method == ReadMethod::threads) {
    figures_.why_threads = "loader.read_method";
  } else {
    engine_ = make_uring_engine(wanted, figures_.why_threads);
  }
  if (!engine_) engine_ = make_thread_engine(wanted, below_);
  figures_.method = engine_->name();
  return engine_;
}

void ReadAhead::start(const std::vector<EntryPtr>& entries) {
  if (entries.empty()) return;
  std::shared_ptr<ReadEngine> by;
  {
    MutexLock lock(mutex_);
    by = engine();
  }
  if (!by) return;
  for (const EntryPtr& entry : entries) by->start(entry);
}

void ReadAhead::release_memory(Entry& entry) {
  reserved_ -= std::exchange(entry.reserved, 0);
}

// Out of the table: who asks for it reads for himself.
void ReadAhead::forget(const EntryPtr& entry) {
  for (const Key& key : entry->parts) {
    if (const auto found = table_.find(key); found != table_.end() && found->second == entry) table_.erase(found);
  }
  entry->parts.clear();
  if (entry->state == Entry::State::started) {
    entry->abandoned = true;  // its memory is the engine's until it is done
  } else {
    entry->data = {};
    entry->state = Entry::State::gone;
    release_memory(*entry);
  }
  parts_.store(std::ssize(table_), std::memory_order_relaxed);
}

void ReadAhead::finished(const std::shared_ptr<ReadJob>& job) {
  const EntryPtr entry = std::static_pointer_cast<Entry>(job);
  std::vector<EntryPtr> now;
  const auto size = static_cast<int64_t>(entry->data.size());
  {
    MutexLock lock(mutex_);
    --under_way_;
    if (entry->good && entry->whole) usual_bytes_ = std::max(static_cast<double>(size), usual_bytes_ * 0.999);
    figures_.bytes += size;
    if (entry->good && !entry->abandoned) {
      entry->state = Entry::State::ready;
      reserved_ -= entry->reserved - size;
      entry->reserved = size;
    } else {
      if (!entry->abandoned) ++figures_.failed;
      entry->state = Entry::State::failed;
      forget(entry);
      entry->state = Entry::State::failed;
    }
    entry->changed.notify_all();
    now = next_reads();
  }
  // A cancelled read says nothing of the disk.
  if (!job->cancelled) observe(job->waited_ns, static_cast<uint64_t>(size));
  start(now);
}

bool ReadAhead::take(const Key& key, int64_t max_bytes, std::vector<std::byte>* whole, std::span<std::byte> part) {
  std::vector<EntryPtr> now;
  std::vector<std::byte> old;  // freed without the lock
  std::string notice;
  bool found = false;
  {
    MutexLock lock(mutex_);
    const auto at = table_.find(key);
    if (at == table_.end()) return false;
    const EntryPtr entry = at->second;
    if (entry->state == Entry::State::queued) {
      ++figures_.early;
      forget(entry);
    } else {
      bool waited = false;
      while (entry->state == Entry::State::started && !stopped_) {
        waited = true;
        const Nanoseconds more = entry->started_at + options_.wait_limit_ns - clock_.now();
        if (more <= 0) break;
        ++entry->waiters;
        ++figures_.waiting;
        (void)entry->changed.wait_for(mutex_, std::chrono::microseconds(more / 1000 + 1));
        --figures_.waiting;
        --entry->waiters;
      }
      const bool last = entry->orphaned && entry->waiters == 0;
      if (entry->state == Entry::State::started && stopped_) {
        throw Error(ErrorKind::runtime, "the loader ends while '" + key.path + "' is being read");
      }
      if (entry->state == Entry::State::started) {
        // The limit and not the time waited, so that a late thread does not change the sentence.
        const auto tenths = options_.wait_limit_ns / (100 * kMillisecond);
        notice = "reading '" + key.path + "' ahead (" + figures_.method + ") takes more than " +
                 std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) +
                 " s; the thread that waited for it asks the disk itself now, and nothing is read ahead for a minute";
        suspended_until_ = clock_.now() + kSuspension;
        forget(entry);
      } else if (entry->state == Entry::State::ready &&
                 (whole == nullptr || static_cast<int64_t>(entry->data.size()) <= max_bytes)) {
        if (whole != nullptr) {
          whole->swap(entry->data);
        } else {
          std::memcpy(part.data(), entry->data.data() + (key.offset - entry->offset), part.size());
        }
        found = true;
        ++figures_.taken;
        if (waited) ++figures_.waited;
        table_.erase(key);
        std::erase(entry->parts, key);
        if (entry->parts.empty()) {
          old.swap(entry->data);
          entry->state = Entry::State::gone;
          release_memory(*entry);
        }
        parts_.store(std::ssize(table_), std::memory_order_relaxed);
      }
      if (last && entry->state == Entry::State::ready) forget(entry);
    }
    now = next_reads();
  }
  start(now);
  if (!notice.empty() && options_.on_notice) options_.on_notice(notice);
  return found;
}

void ReadAhead::drop(uint64_t ticket) {
  if (ticket == 0) return;
  std::vector<EntryPtr> now;
  std::vector<EntryPtr> unwanted;
  std::shared_ptr<ReadEngine> by;
  {
    MutexLock lock(mutex_);
    const auto found = tickets_.find(ticket);
    if (found == tickets_.end()) return;
    for (const EntryPtr& entry : found->second) {
      // One that another chunk's thread waits for goes with that.
      if (entry->waiters > 0) entry->orphaned = true;
      if (entry->parts.empty() || entry->waiters > 0) continue;
      if (entry->state == Entry::State::started) unwanted.push_back(entry);
      if (entry->state != Entry::State::queued) ++figures_.dropped;
      forget(entry);
    }
    tickets_.erase(found);
    now = next_reads();
    by = engine_;
  }
  if (by) {
    for (const EntryPtr& entry : unwanted) by->cancel(entry);
  }
  start(now);
}

void ReadAhead::set_memory(int64_t bytes) {
  MutexLock lock(mutex_);
  memory_bytes_ = std::min(bytes, options_.memory_bytes);
}

ReadAheadFigures ReadAhead::figures() const {
  MutexLock lock(mutex_);
  ReadAheadFigures figures = figures_;
  figures.held_bytes = reserved_;
  figures.under_way = under_way_;
  return figures;
}

void ReadAhead::stop(Nanoseconds wait_limit_ns) {
  std::shared_ptr<ReadEngine> ending;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    for (const auto& [key, entry] : table_) entry->changed.notify_all();
    ending = std::move(engine_);
  }
  if (!ending) return;
  const int left = ending->stop(wait_limit_ns);
  {
    MutexLock lock(mutex_);
    queue_.clear();
    table_.clear();
    tickets_.clear();
    parts_.store(0, std::memory_order_relaxed);
  }
  if (left > 0 && options_.on_notice) {
    options_.on_notice(std::to_string(left) + " reads ahead (" + ending->name() + ") have not come back within " +
                       std::to_string(wait_limit_ns / kSecond) + " s; the kernel keeps them until the disk answers");
  }
}

}  // namespace penstock
