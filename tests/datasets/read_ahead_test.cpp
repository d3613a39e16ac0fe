// Reads that run ahead: the ring and the threads behind one interface, the same bytes and errors as without them,
// bounds, cancellation, and nothing left behind.
#include "runtime/datasets/read_ahead.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "runtime/base/memory.h"
#include "runtime/job/job.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/slow_file_system.h"
#include "tests/support/tar_writer.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

std::string content(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

int64_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

bool eventually(const std::function<bool()>& is_so, milliseconds within = milliseconds(10'000)) {
  const auto deadline = std::chrono::steady_clock::now() + within;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// Descriptors and threads are the same when it ends as when it began.
class NothingLeft {
 public:
  NothingLeft() {
    std::thread([] {}).join();  // with the first thread a sanitizer may start one of its own
    files_ = entries_of("/proc/self/fd");
    threads_ = entries_of("/proc/self/task");
  }
  ~NothingLeft() {
    CHECK(eventually([this] { return entries_of("/proc/self/task") <= threads_; }));
    CHECK(eventually([this] { return entries_of("/proc/self/fd") <= files_; }));
  }

 private:
  int64_t files_ = 0;
  int64_t threads_ = 0;
};

// Jobs through one engine, waited for.
class Runner {
 public:
  explicit Runner(bool uring, FileSystem& files = posix_file_system()) {
    ReadEngineOptions options{.reads = 8, .done = [this](const std::shared_ptr<ReadJob>&) { ++done_; }, .cpus = {}};
    std::string why;
    engine_ = uring ? make_uring_engine(options, why) : make_thread_engine(options, files);
    if (!engine_) MESSAGE("no io_uring here: ", why);
  }
  bool there() const { return engine_ != nullptr; }
  ReadEngine& engine() { return *engine_; }
  std::shared_ptr<ReadJob> start(const std::string& path, uint64_t most) {
    auto job = std::make_shared<ReadJob>();
    job->path = path;
    job->whole = true;
    job->bytes = most;
    ++started_;
    engine_->start(job);
    return job;
  }
  std::shared_ptr<ReadJob> start_part(const std::string& path, std::shared_ptr<const FileReader> reader,
                                      uint64_t offset, uint64_t bytes) {
    auto job = std::make_shared<ReadJob>();
    job->path = path;
    job->reader = std::move(reader);
    job->offset = offset;
    job->bytes = bytes;
    ++started_;
    engine_->start(job);
    return job;
  }
  void finish() {
    REQUIRE(eventually([this] { return done_ == started_; }));
  }
  int64_t done() const { return done_; }

 private:
  std::atomic<int64_t> done_{0};
  int64_t started_ = 0;
  std::shared_ptr<ReadEngine> engine_;  // goes first: its threads count
};

TEST_CASE("either engine reads what the file system would, and leaves everything unusual to it") {
  const TemporaryFolder folder;
  const size_t sizes[] = {0, 1, 4095, 4096, 100'000, 1 << 20};
  for (const size_t size : sizes) folder.write("f" + std::to_string(size), content(size, size));
  folder.make_folder("sub");
  REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  // Says that it has 4096 bytes, and has a few.
  const std::string liar = "/sys/kernel/mm/transparent_hugepage/enabled";
  int compared = 0;
  for (const bool uring : {false, true}) {
    const NothingLeft nothing_left;
    Runner runner(uring);
    if (!runner.there()) continue;
    std::map<size_t, std::shared_ptr<ReadJob>> whole;
    for (const size_t size : sizes) whole[size] = runner.start(folder.path("f" + std::to_string(size)), 1 << 20);
    std::vector<std::shared_ptr<ReadJob>> bad = {
        runner.start(folder.path("none"), 1 << 20), runner.start(folder.path("sub"), 1 << 20),
        runner.start(folder.path("pipe"), 1 << 20), runner.start(folder.path("f4096"), 4095)};
    if (std::filesystem::exists(liar)) bad.push_back(runner.start(liar, 1 << 20));
    const std::string path = folder.path("f100000");
    const std::shared_ptr<const FileReader> reader = posix_file_system().open_file(path);
    const auto first = runner.start_part(path, reader, 0, 1000);
    const auto last = runner.start_part(path, reader, 99'000, 1000);
    const auto unopened = runner.start_part(path, nullptr, 5000, 90'000);
    bad.push_back(runner.start_part(path, reader, 99'001, 1000));
    bad.push_back(runner.start_part(folder.path("none"), nullptr, 0, 10));
    runner.finish();
    const std::string all = content(100'000, 100'000);
    for (const auto& [size, job] : whole) {
      CHECK(job->good);
      CHECK(as_text(job->data) == content(size, size));
      ++compared;
    }
    CHECK(as_text(first->data) == all.substr(0, 1000));
    CHECK(as_text(last->data) == all.substr(99'000));
    CHECK(as_text(unopened->data) == all.substr(5000, 90'000));
    for (const auto& job : bad) CHECK_FALSE(job->good);
    CHECK(runner.engine().stop(5 * kSecond) == 0);
  }
  CHECK(compared >= 6);
}

// A file whose bytes have not come: a pipe.
class PipeReader final : public FileReader {
 public:
  PipeReader() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    out_ = UniqueFd(ends[0]);
    in_ = UniqueFd(ends[1]);
  }
  const std::string& path() const noexcept override { return path_; }
  uint64_t size() const noexcept override { return 100; }
  int64_t modified_ns() const noexcept override { return 0; }
  void read_at(uint64_t, std::span<std::byte>) const override { throw std::runtime_error("not by this way"); }
  int descriptor() const noexcept override { return out_.get(); }

 private:
  std::string path_ = "a pipe";
  UniqueFd out_;
  UniqueFd in_;
};

TEST_CASE("the ring takes back a read that is under way, by name and at the end") {
  const NothingLeft nothing_left;
  Runner runner(true);
  if (!runner.there()) return;
  const auto pipe = std::make_shared<PipeReader>();
  const auto one = runner.start_part("a pipe", pipe, 0, 10);
  const auto other = runner.start_part("a pipe", pipe, 0, 10);
  std::this_thread::sleep_for(milliseconds(20));
  CHECK(runner.done() == 0);
  runner.engine().cancel(one);
  CHECK(eventually([&] { return runner.done() == 1; }));
  CHECK_FALSE(one->good);
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  CHECK(runner.engine().stop(60 * kSecond) == 0);
  CHECK(clock.now() - begun < 30 * kSecond);
  CHECK(runner.done() == 2);
  CHECK_FALSE(other->good);
}

TEST_CASE("a dead disk holds up the engine's end for as long as it may, and what it holds goes when it answers") {
  const NothingLeft nothing_left;
  const TemporaryFolder folder;
  folder.write("a", "1");
  folder.write("b", "2");
  SlowFileSystem disk(milliseconds(0));
  disk.hang("/a");
  Runner runner(false, disk);
  const auto dead = runner.start(folder.path("a"), 10);
  const auto alive = runner.start(folder.path("b"), 10);
  CHECK(eventually([&] { return runner.done() == 1 && disk.waiting() == 1; }));
  CHECK(alive->good);
  CHECK(runner.engine().stop(50 * kMillisecond) == 1);
  disk.release();
  CHECK(eventually([&] { return runner.done() == 2; }));
}

// In this thread alone, from now on.
bool forbid(long call, unsigned error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// A source of whole files.
class Files : public Source {
 public:
  Files(std::vector<std::string> paths, FileSystem& files, int64_t limit = 1 << 20)
      : paths_(std::move(paths)), files_(files), limit_(limit) {}
  int64_t size() const override { return std::ssize(paths_); }
  const FieldTable& fields() const override { return fields_; }
  std::string key(int64_t index) const override { return paths_[static_cast<size_t>(index)]; }
  int64_t label(int64_t) const override { return 0; }
  const std::vector<std::string>& class_names() const override { return names_; }
  int64_t encoded_size(int64_t) const override { return 0; }
  SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const override {
    return files_.read_file(key(index), limit_, bytes) ? SampleStatus::good() : SampleStatus::bad("too large");
  }
  void list_reads(int64_t index, std::vector<FilePart>& parts) const override {
    FilePart& part = parts.emplace_back();
    part.path = key(index);
    part.max_bytes = limit_;
  }
  Sum128 fingerprint() const override { return {}; }

 private:
  std::vector<std::string> paths_;
  FileSystem& files_;
  int64_t limit_;
  FieldTable fields_;
  std::vector<std::string> names_;
};

ReadAheadOptions eagerly(ReadMethod method, int reads = 8, int64_t memory = 8 << 20) {
  ReadAheadOptions options;
  options.reads = reads;
  options.memory_bytes = memory;
  options.method = method;
  options.eager = true;
  return options;
}

TEST_CASE("where io_uring is forbidden, threads read, and the figures say why") {
  const TemporaryFolder folder;
  folder.write("a", "bytes");
  ReadAheadFigures figures;
  bool forbidden = false;
  std::vector<std::byte> bytes;
  std::thread([&] {
    forbidden = forbid(SYS_io_uring_setup, EPERM);
    const auto ahead = ReadAhead::make(eagerly(ReadMethod::io_uring), posix_file_system());
    const Files source({folder.path("a")}, ahead->files());
    const uint64_t ticket = ahead->plan(source, {0});
    CHECK(eventually([&] { return ahead->figures().under_way == 0; }));
    CHECK(source.read(0, bytes).ok());
    ahead->drop(ticket);
    figures = ahead->figures();
    ahead->stop();
  }).join();
  REQUIRE(forbidden);
  CHECK(figures.method == "threads");
  CHECK(figures.why_threads.find("Operation not permitted") != std::string::npos);
  CHECK(figures.taken == 1);
  CHECK(as_text(bytes) == "bytes");
}

// As in a container whose limit on processes is reached.
bool forbid_threads() {
  return forbid(SYS_clone3, EAGAIN) && forbid(SYS_clone, EAGAIN);
}

TEST_CASE("where no thread can be started, those that there are read, or each job is left to who wanted it") {
  const NothingLeft nothing_left;
  const TemporaryFolder folder;
  folder.write("a", "bytes");
  bool forbidden = false;
  bool one_good = false;
  bool none_good = false;
  std::string why;
  bool ring = false;
  std::thread([&] {
    Runner some(false);
    (void)some.start(folder.path("a"), 100);
    some.finish();
    Runner none(false);
    forbidden = forbid_threads();
    std::vector<std::shared_ptr<ReadJob>> jobs;
    for (int i = 0; i < 20; ++i) jobs.push_back(some.start(folder.path("a"), 100));
    some.finish();
    one_good = std::all_of(jobs.begin(), jobs.end(), [](const auto& job) { return job->good; });
    jobs.clear();
    for (int i = 0; i < 20; ++i) jobs.push_back(none.start(folder.path("a"), 100));
    none.finish();
    none_good = std::any_of(jobs.begin(), jobs.end(), [](const auto& job) { return job->good; });
    CHECK(some.engine().stop(5 * kSecond) == 0);
    CHECK(none.engine().stop(5 * kSecond) == 0);
    ring = make_uring_engine({.reads = 8, .done = [](const std::shared_ptr<ReadJob>&) {}, .cpus = {}}, why) != nullptr;
  }).join();
  REQUIRE(forbidden);
  CHECK(one_good);
  CHECK_FALSE(none_good);
  CHECK_FALSE(ring);
  MESSAGE(why);
  CHECK(!why.empty());
}

TEST_CASE("a loader without threads to read ahead reads as if nothing ran ahead") {
  const NothingLeft nothing_left;
  const TemporaryFolder folder;
  std::vector<std::string> paths;
  std::vector<int64_t> all;
  for (int i = 0; i < 2000; ++i) {
    paths.push_back(folder.path("f" + std::to_string(i)));
    all.push_back(i);
  }
  ReadAheadFigures figures;
  bool forbidden = false;
  std::string error;
  std::thread([&] {
    forbidden = forbid_threads();
    const auto ahead = ReadAhead::make(eagerly(ReadMethod::threads), posix_file_system());
    const Files source(paths, ahead->files());
    try {
      ahead->drop(ahead->plan(source, all));
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    figures = ahead->figures();
    ahead->stop();
  }).join();
  REQUIRE(forbidden);
  CHECK(error.empty());
  CHECK(figures.failed == 2000);
  CHECK(figures.under_way == 0);
  CHECK(figures.held_bytes == 0);
}

// What one reading of a sample comes to: bytes, status, or the words of the error.
std::string outcome(const Source& source, int64_t index) {
  std::vector<std::byte> bytes;
  try {
    const SampleStatus status = source.read(index, bytes);
    return status.ok() ? "bytes " + as_text(bytes) : "bad " + status.reason;
  } catch (const Error& error) {
    return std::string("error ") + error.message() + " | " + error.remedy();
  }
}

TEST_CASE("any order, any sizes, any cancellations: what a thread gets is what the disk alone would give it") {
  const uint64_t seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const TemporaryFolder folder;
  std::vector<std::string> paths;
  for (int i = 0; i < 60; ++i) {
    const std::string name = "f" + std::to_string(i);
    if (i % 20 == 7) {
      folder.make_folder(name);
    } else if (i % 20 != 13) {  // those are missing
      folder.write(name, content(random() % (i % 5 == 0 ? 200'000 : 3000), random()));
    }
    paths.push_back(folder.path(name));
  }
  const Files plain(paths, posix_file_system(), 150'000);
  std::vector<std::string> wanted;
  for (int64_t i = 0; i < plain.size(); ++i) wanted.push_back(outcome(plain, i));
  int64_t compared = 0;
  int64_t taken = 0;
  for (const ReadMethod method : {ReadMethod::automatic, ReadMethod::threads}) {
    const NothingLeft nothing_left;
    const int64_t memory = 300'000;
    const auto ahead = ReadAhead::make(eagerly(method, 4, memory), posix_file_system());
    const Files source(paths, ahead->files(), 150'000);
    std::atomic<int64_t> wrong{0};
    std::atomic<int64_t> count{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, own = random()] {
        std::mt19937_64 dice(own);
        for (int chunk = 0; chunk < 60; ++chunk) {
          std::vector<int64_t> indices;
          for (uint64_t n = dice() % 12 + 1; n > 0; --n) indices.push_back(static_cast<int64_t>(dice() % paths.size()));
          const uint64_t ticket = ahead->plan(source, indices);
          if (dice() % 8 == 0) std::this_thread::sleep_for(milliseconds(1));
          if (dice() % 8 != 0) {  // else the lease was taken away
            if (dice() % 4 == 0) std::shuffle(indices.begin(), indices.end(), dice);
            if (dice() % 4 == 0) indices.resize(dice() % indices.size());
            for (const int64_t index : indices) {
              if (outcome(source, index) != wanted[static_cast<size_t>(index)]) ++wrong;
              ++count;
            }
          }
          const ReadAheadFigures figures = ahead->figures();
          if (figures.held_bytes > memory || figures.held_bytes < 0 || figures.under_way > 4) ++wrong;
          ahead->drop(ticket);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(eventually([&] { return ahead->figures().under_way == 0; }));
    CHECK(ahead->figures().held_bytes == 0);
    taken += ahead->figures().taken;
    compared += count;
    ahead->stop();
  }
  MESSAGE(compared, " reads compared, ", taken, " of them ran ahead");
  CHECK(compared > 500);
  CHECK(taken > 100);
}

TEST_CASE("an error of the disk reaches the sample that wanted the bytes, once, in the disk's words") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b", "c"}) folder.write(name, name);
  FaultyFileSystem disk;
  disk.fail_read("/b");
  const auto ahead = ReadAhead::make(eagerly(ReadMethod::automatic), disk);
  const Files source({folder.path("a"), folder.path("b"), folder.path("c")}, ahead->files());
  const uint64_t ticket = ahead->plan(source, {0, 1, 2});
  CHECK(eventually([&] { return ahead->figures().under_way == 0 && ahead->figures().reads == 3; }));
  CHECK(outcome(source, 0) == "bytes a");
  CHECK(outcome(source, 1).find("cannot read '" + folder.path("b") + "': Input/output error") != std::string::npos);
  disk.repair();
  CHECK(outcome(source, 1) == "bytes b");  // as it is now: no error was kept
  CHECK(outcome(source, 2) == "bytes c");
  ahead->drop(ticket);
  CHECK(ahead->figures().failed == 1);
  CHECK(ahead->figures().method == "threads");  // a file system that is not the kernel's
  ahead->stop();
}

TEST_CASE("nothing runs ahead of reads from memory; slow ones wake it, and it sleeps when they are over") {
  const TemporaryFolder folder;
  std::vector<std::string> paths;
  std::vector<int64_t> all;
  for (int i = 0; i < 50; ++i) {
    paths.push_back(folder.path("f" + std::to_string(i)));
    folder.write("f" + std::to_string(i), content(5000, static_cast<uint64_t>(i)));
    all.push_back(i);
  }
  SlowFileSystem disk(milliseconds(0));
  ReadAheadOptions options = eagerly(ReadMethod::automatic);
  options.eager = false;
  // The first read of many a disk is slow: sleep_for(0) does not wait, so a switch can only be another's doing.
  const auto ahead = ReadAhead::make(options, disk);
  const Files source(paths, ahead->files());
  for (int64_t i = 0; i < 50; ++i) (void)outcome(source, i);
  CHECK_FALSE(ahead->awake());
  CHECK(ahead->plan(source, all) == 0);
  CHECK(ahead->figures().reads == 0);
  CHECK(ahead->figures().method.empty());
  disk.set_latency(milliseconds(5));
  int64_t slow = 0;
  while (!ahead->awake() && slow < 20) (void)outcome(source, slow++);
  CHECK(slow <= 3);
  uint64_t ticket = ahead->plan(source, all);
  CHECK(ticket != 0);
  for (int64_t i = 0; i < 50; ++i) (void)outcome(source, i);
  ahead->drop(ticket);
  CHECK(ahead->figures().taken > 30);
  disk.set_latency(milliseconds(0));
  CHECK(eventually([&] {
    ticket = ahead->plan(source, all);
    for (int64_t i = 0; i < 50; ++i) (void)outcome(source, i);
    ahead->drop(ticket);
    return !ahead->awake();
  }));
  ahead->stop();
}

TEST_CASE("who waits too long for a read that ran ahead says so, and asks the disk itself") {
  const TemporaryFolder folder;
  folder.write("a", "1");
  SlowFileSystem disk(milliseconds(0));
  disk.hang("/a");
  ReadAheadOptions options = eagerly(ReadMethod::automatic);
  options.wait_limit_ns = 100 * kMillisecond;
  std::string said;
  options.on_notice = [&](const std::string& notice) { said = notice; };
  const auto ahead = ReadAhead::make(options, disk);
  const Files source({folder.path("a")}, ahead->files());
  const uint64_t ticket = ahead->plan(source, {0});
  REQUIRE(eventually([&] { return disk.waiting() == 1; }));
  std::string got;
  std::thread worker([&] { got = outcome(source, 0); });
  CHECK(eventually([&] { return disk.waiting() == 2; }));  // the one ahead, and the thread's own
  disk.release();
  worker.join();
  CHECK(got == "bytes 1");
  CHECK(said.find("reading '" + folder.path("a") + "' ahead (threads) takes more than 0.1 s") == 0);
  ahead->drop(ticket);
  CHECK(ahead->plan(source, {0}) == 0);  // for a minute
  ahead->stop();
}

// Whether reads that were planned behind one that hangs are begun once it has come back.
bool goes_on_after(const std::function<void(ReadAhead&, const Files&, SlowFileSystem&)>& trouble) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b", "c"}) folder.write(name, name);
  SlowFileSystem disk(milliseconds(0));
  disk.hang("/a");
  ReadAheadOptions options = eagerly(ReadMethod::automatic, 1);
  options.wait_limit_ns = 50 * kMillisecond;
  const auto ahead = ReadAhead::make(options, disk);
  const Files source({folder.path("a"), folder.path("b"), folder.path("c")}, ahead->files());
  const uint64_t ticket = ahead->plan(source, {0, 1, 2});
  REQUIRE(eventually([&] { return disk.waiting() == 1; }));
  trouble(*ahead, source, disk);
  disk.release();
  CHECK(eventually([&] { return ahead->figures().under_way == 0; }));
  const bool went_on = ahead->figures().reads > 1;
  CHECK(outcome(source, 1) == "bytes b");
  CHECK(outcome(source, 2) == "bytes c");
  ahead->drop(ticket);
  CHECK(ahead->figures().held_bytes == 0);
  ahead->stop();
  return went_on;
}

TEST_CASE("what was planned before a read that took too long, or before memory ran out, is not begun after it") {
  CHECK(goes_on_after([](ReadAhead&, const Files&, SlowFileSystem&) {}));
  CHECK_FALSE(goes_on_after([](ReadAhead&, const Files& source, SlowFileSystem& disk) {
    std::thread worker([&] { (void)outcome(source, 0); });
    CHECK(eventually([&] { return disk.waiting() == 2; }));
    disk.release();
    worker.join();
  }));
  CHECK_FALSE(goes_on_after([](ReadAhead& ahead, const Files& source, SlowFileSystem& disk) {
    ahead.set_memory(0);
    std::thread worker([&] { (void)outcome(source, 0); });
    std::this_thread::sleep_for(milliseconds(10));
    disk.release();
    worker.join();
  }));
}

// Two parts of a file, near enough to be one read.
class TwoParts final : public Files {
 public:
  using Files::Files;
  void list_reads(int64_t index, std::vector<FilePart>& parts) const override {
    parts.push_back({key(index), 0, 10, 0, nullptr});
    parts.push_back({key(index), 20, 10, 0, nullptr});
  }
};

TEST_CASE("what a thread waits for goes with that thread when its ticket has gone, whatever it leaves of it") {
  const TemporaryFolder folder;
  const std::string all = content(30, 1);
  folder.write("a", all);
  SlowFileSystem disk(milliseconds(0));
  disk.hang("/a");
  const auto ahead = ReadAhead::make(eagerly(ReadMethod::automatic), disk);
  const TwoParts source({folder.path("a")}, ahead->files());
  const uint64_t ticket = ahead->plan(source, {0});
  REQUIRE(eventually([&] { return disk.waiting() == 1; }));
  std::vector<std::byte> bytes(10);
  std::thread worker([&] { ahead->files().open_file(folder.path("a"))->read_at(20, bytes); });
  CHECK(eventually([&] { return ahead->figures().waiting == 1; }));
  ahead->drop(ticket);
  CHECK(ahead->figures().held_bytes == 30);
  disk.release();
  worker.join();
  CHECK(as_text(bytes) == all.substr(20));
  CHECK(ahead->figures().taken == 1);
  CHECK(ahead->figures().held_bytes == 0);
  ahead->stop();
}

TEST_CASE("a thread that waits for a read when the loader ends is told so") {
  const TemporaryFolder folder;
  folder.write("a", "1");
  SlowFileSystem disk(milliseconds(0));
  disk.hang("/a");
  std::string said;
  ReadAheadOptions options = eagerly(ReadMethod::automatic);
  options.on_notice = [&](const std::string& notice) { said = notice; };
  const auto ahead = ReadAhead::make(options, disk);
  const Files source({folder.path("a")}, ahead->files());
  (void)ahead->plan(source, {0});
  REQUIRE(eventually([&] { return disk.waiting() == 1; }));
  std::string got;
  std::thread worker([&] { got = outcome(source, 0); });
  CHECK(eventually([&] { return ahead->figures().waiting == 1; }));
  ahead->stop(50 * kMillisecond);
  worker.join();
  CHECK(got.find("the loader ends while '" + folder.path("a") + "' is being read") != std::string::npos);
  CHECK(said.find("1 reads ahead (threads) have not come back") == 0);
  disk.release();
  CHECK(eventually([&] { return disk.waiting() == 0; }));
}

TEST_CASE("5 ms a read: two threads run at the pace of their own work") {
  const TemporaryFolder folder;
  std::vector<std::string> paths;
  for (int i = 0; i < 240; ++i) {
    paths.push_back(folder.path("f" + std::to_string(i)));
    folder.write("f" + std::to_string(i), content(5000, static_cast<uint64_t>(i)));
  }
  SlowFileSystem disk(milliseconds(5));
  const auto run = [&](bool on) {
    ReadAheadOptions options = eagerly(ReadMethod::automatic, on ? 32 : 0, 64 << 20);  // a megabyte for each, at first
    const auto ahead = ReadAhead::make(options, disk);
    const Files source(paths, ahead->files());
    const auto begun = std::chrono::steady_clock::now();
    std::atomic<int64_t> next{0};
    // As leases come: 16 samples each, three in hand besides the one at work.
    std::vector<uint64_t> tickets;
    const auto plan = [&](int64_t chunk) {
      std::vector<int64_t> indices;
      for (int64_t i = 16 * chunk; i < std::min<int64_t>(16 * chunk + 16, source.size()); ++i) indices.push_back(i);
      if (!indices.empty()) tickets.push_back(ahead->plan(source, indices));
    };
    for (int64_t chunk = 0; chunk < 4; ++chunk) plan(chunk);
    std::vector<std::thread> threads;
    Mutex mutex;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        for (int64_t i = next++; i < source.size(); i = next++) {
          if (i % 16 == 0) {
            MutexLock lock(mutex);
            plan(i / 16 + 4);
          }
          (void)outcome(source, i);
          std::this_thread::sleep_for(milliseconds(1));  // decoding
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    for (const uint64_t ticket : tickets) ahead->drop(ticket);
    const ReadAheadFigures figures = ahead->figures();
    ahead->stop();
    return std::pair{took.count(), figures};
  };
  const double without = run(false).first;
  const auto with = run(true);
  const ReadAheadFigures& figures = with.second;
  MESSAGE("240 reads of 5 ms by two threads of 1 ms a sample: ", without, " s, ahead ", with.first, " s; of these ",
          figures.waited, " were waited for, and ", figures.early, " read by the thread itself");
  CHECK(without > 0.6);
  // How long they take says more of the machine: most were there when a thread came to them.
  CHECK(figures.taken - figures.waited > 120);
}

TEST_CASE("sources name every part that load() reads") {
  const TemporaryFolder folder;
  TarWriter tar;
  for (int i = 0; i < 6; ++i) {
    const std::string key = "k" + std::to_string(i);
    tar.member(key + ".jpg", content(3000, static_cast<uint64_t>(i)));
    tar.member(key + ".txt", "text of " + key);
    folder.write("folder/c/" + key + ".jpg", content(2000, static_cast<uint64_t>(i)));
    folder.write("images/" + key + ".jpg", content(1000, static_cast<uint64_t>(i)));
    folder.write("masks/" + key + ".png", content(500, static_cast<uint64_t>(i)));
  }
  folder.write("shard.tar", tar.finish());
  std::map<std::string, DatasetSpec> kinds;
  kinds["folder"].folder = folder.path("folder");
  kinds["paired"].images = folder.path("images");
  kinds["paired"].masks = folder.path("masks");
  kinds["tar"].tar = folder.path("shard.tar");
  kinds["tar"].fields = "txt:text";
  int compared = 0;
  for (const auto& kind : kinds) {
    const DatasetSpec& spec = kind.second;
    INFO(kind.first);
    SlowFileSystem disk(milliseconds(0));  // counts reads
    const auto ahead = ReadAhead::make(eagerly(ReadMethod::automatic), disk);
    const auto source = make_source(spec, DecodeLimits{}, ahead->files());
    const auto plain = make_source(spec, DecodeLimits{});
    REQUIRE(source->size() == 6);
    const uint64_t ticket = ahead->plan(*source, {0, 1, 2, 3, 4, 5});
    REQUIRE(ticket != 0);
    CHECK(eventually([&] { return ahead->figures().reads >= 6 && ahead->figures().under_way == 0; }));
    const int64_t reads = disk.reads();
    for (uint64_t i = 0; i < 6; ++i) {
      SourceSample sample;
      SourceSample wanted;
      REQUIRE(source->load({1, 0, i, 0}, sample).ok());
      REQUIRE(plain->load({1, 0, i, 0}, wanted).ok());
      CHECK(as_text(sample.image) == as_text(wanted.image));
      REQUIRE(sample.fields.size() == wanted.fields.size());
      for (size_t f = 0; f < sample.fields.size(); ++f) CHECK(as_text(sample.fields[f]) == as_text(wanted.fields[f]));
      ++compared;
    }
    CHECK(disk.reads() == reads);  // nothing was asked of the disk by load() itself
    ahead->drop(ticket);
    CHECK(ahead->figures().held_bytes == 0);
    ahead->stop();
  }
  CHECK(compared == 18);
}

}  // namespace
}  // namespace penstock
