#include "runtime/datasets/python_source.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/json_text.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/process/tree.h"
#include "tests/support/temporary_folder.h"

namespace python_source_test {

using namespace penstock;

namespace {

// Nothing but the standard library, so any python3 will do.
const char* const module_text = R"(
import os, random, signal, sys, time

class Data:
    classes = ["a", "b"]

    def __init__(self, count=10, flag=""):
        self.count, self.flag = count, flag
        self.fingerprint = "v1"

    def __len__(self):
        return self.count

    def once(self):
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False

    def __getitem__(self, i):
        if i == 3: raise ValueError("torn")
        if i == 4: open("/nowhere/at/all")
        if i == 5 and self.once():
            print("last words", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGKILL)
        if i == 6 and self.once(): time.sleep(1000)
        if i == 7: os._exit(3)
        if i == 8: return b"x" * 2000, 0
        if i == 9: return "no picture", 1
        if self.flag == "chatter" and os.fork() == 0:  # a child that prints for as long as its parent lives
            while True: os.write(1, b"." * 4096)
        return (b"%d of %d" % (i, os.getpid()) if self.flag == "pid" else b"%d %r" % (i, random.random())), i + 100
)";

struct World {
  TemporaryFolder folder;
  DatasetSpec dataset;
  PythonSpec python;
  DecodeLimits limits;
  std::vector<std::string> notices;
  Mutex mutex;
  std::stop_source stop;

  World() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // a worker that is forgotten by the process that forked it comes to us
    std::ofstream(folder.path() + "/data.py") << module_text;
    dataset.python = "data:Data";
    dataset.path = folder.path();
    args({{"flag", folder.path() + "/flag"}});
    python.interpreter = "/usr/bin/python3";
    python.timeout_s = 10;
    limits.max_encoded_bytes = 1000;
  }
  void args(const nlohmann::json& json) { dataset.args = json_text(json); }
  std::shared_ptr<const PythonWorkers> workers() {
    return std::make_shared<PythonWorkers>(PythonHost{python,
                                                      [this](const std::string& text) {
                                                        MutexLock lock(mutex);
                                                        notices.push_back(text);
                                                      },
                                                      stop.get_token()},
                                           python_config(dataset, {}), "the dataset");
  }
  PythonSource source() { return {dataset, limits, workers()}; }
};

std::string image_of(const SourceSample& sample) {
  return {reinterpret_cast<const char*>(sample.image.data()), sample.image.size()};
}

DrawKey key_of(int64_t index, uint32_t epoch = 0) {
  return {.seed = 1, .epoch = epoch, .index = static_cast<uint64_t>(index), .occurrence = 0};
}

// The message of the error that `act` throws, which must be of kind `kind`.
template <class Act>
std::string error_of(ErrorKind kind, Act&& act) {
  try {
    act();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  FAIL("no error");
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  INFO(part);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

// Children, their children, and what they have left behind: waits until it is no more than `limit`, some seconds at most.
int64_t processes_left(int64_t limit) {
  for (int waited = 0;; ++waited) {
    for (const pid_t pid : descendants(::getpid())) {
      // A child that a killed worker or fork server had.
      (void)::waitpid(pid, nullptr, WNOHANG);
    }
    const auto count = std::ssize(descendants(::getpid()));
    if (count <= limit || waited == 2000) return count;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_CASE("a dataset in Python") {
  World world;
  {
    const PythonSource source = world.source();
    CHECK(source.size() == 10);
    CHECK(source.class_names() == std::vector<std::string>{"a", "b"});
    CHECK(source.key(2) == "data:Data[2]");
    CHECK(source.fields().size() == 2);
    SourceSample sample;
    REQUIRE(source.load(key_of(2), sample).ok());
    CHECK(sample.label == 102);
    CHECK(sample.width == 0);
    CHECK(source.label(1) == 101);
    const std::string first = image_of(sample);
    CHECK(first.starts_with("2 0."));
    // What it draws depends on the key alone.
    REQUIRE(source.load(key_of(1), sample).ok());
    REQUIRE(source.load(key_of(2), sample).ok());
    CHECK(image_of(sample) == first);
    REQUIRE(source.load(key_of(2, 1), sample).ok());
    CHECK(image_of(sample) != first);

    contains(source.load(key_of(3), sample).reason, "ValueError: torn (data.py:");
    CHECK(sample.image.empty());
    contains(error_of(ErrorKind::runtime, [&] { (void)source.load(key_of(4), sample); }),
             "sample 4: FileNotFoundError");
    contains(source.load(key_of(8), sample).reason, "2000 bytes, above limits.max_encoded_bytes (1000)");
    contains(source.load(key_of(9), sample).reason, "'image' is of type str");
    (void)error_of(ErrorKind::usage, [&] { (void)source.load(key_of(10), sample); });
    CHECK(world.notices.empty());
    CHECK(source.fingerprint() == world.source().fingerprint());
    world.args({{"count", 9}});
    CHECK_FALSE(source.fingerprint() == world.source().fingerprint());
  }
  CHECK(processes_left(0) == 0);
}

TEST_CASE("workers that die or hang are replaced, and named") {
  World world;
  world.python.timeout_s = 2;
  world.python.attempts = 2;
  const auto workers = world.workers();
  const PythonSource source(world.dataset, world.limits, workers);
  SourceSample sample;
  REQUIRE(source.load(key_of(5), sample).ok());
  CHECK(sample.label == 105);
  CHECK(world.notices.size() == 1);
  contains(world.notices.at(0), "the dataset: sample 5: worker ");
  contains(world.notices.at(0), " was killed by SIGKILL");
  CHECK(world.notices.at(0).find("(by us)") == std::string::npos);
  std::filesystem::remove(world.folder.path() + "/flag");
  REQUIRE(source.load(key_of(6), sample).ok());
  contains(world.notices.at(1), "did not answer within 2 s and was killed by SIGKILL (by us)");
  const std::string given_up = error_of(ErrorKind::runtime, [&] { (void)source.load(key_of(7), sample); });
  contains(given_up, "sample 7 was given up after 2 workers: worker ");
  contains(given_up, "exited with status 3");
  CHECK(world.notices.size() == 4);
  REQUIRE(source.load(key_of(0), sample).ok());  // and the pool is as good as new

  // Killed while it had nothing to do: the next call finds out.
  for (const pid_t pid : descendants(::getpid())) ::kill(pid, SIGKILL);
  REQUIRE(source.load(key_of(1), sample).ok());
  CHECK(sample.label == 101);
}

TEST_CASE("the end of a job does not wait for a sample that hangs") {
  World world;
  world.python.timeout_s = 60;
  const PythonSource source = world.source();
  SourceSample sample;
  std::jthread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    world.stop.request_stop();
  });
  const auto begun = std::chrono::steady_clock::now();
  contains(error_of(ErrorKind::runtime, [&] { (void)source.load(key_of(6), sample); }),
           "the job, or its split, ended before");
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
  CHECK(world.notices.empty());
  CHECK(processes_left(1) == 1);  // the fork server stays as long as the source does
}

TEST_CASE("a worker that prints without end holds nobody up") {
  World world;
  world.args({{"flag", "chatter"}});
  world.python.timeout_s = 60;
  // What it prints goes to our stderr: into a pipe that is read, and later one that nobody reads.
  const int kept = ::dup(STDERR_FILENO);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::dup2(ends[1], STDERR_FILENO) >= 0);
  int64_t good = 0;
  double seconds = 0;
  {
    const PythonSource source = world.source();
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i) {
      SourceSample sample;
      good += source.load(key_of(i), sample).ok() ? 1 : 0;
    }
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  }
  ::dup2(kept, STDERR_FILENO);
  for (const int fd : {kept, ends[0], ends[1]}) ::close(fd);
  CHECK(good == 3);
  CHECK(seconds < 30);
  CHECK(processes_left(0) == 0);
}

TEST_CASE("as many workers as threads, or as the job says") {
  for (const int most : {0, 2}) {
    World world;
    world.args({{"flag", "pid"}});
    world.python.workers = most;
    const PythonSource source = world.source();
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        SourceSample sample;
        for (int i = 0; i < 60; ++i) good += source.load(key_of(i % 3), sample).ok() && sample.label == i % 3 + 100;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(good == 180);
    const int fork_server = 1;
    const int limit = (most == 0 ? 3 : most) + fork_server;
    CHECK(processes_left(limit) <= limit);
  }
}

TEST_CASE("modules are imported once for all workers and splits, and each worker makes its own dataset") {
  // With a thread of the module's own, whose locks a fork would not undo, every worker is a program instead.
  for (const bool threads : {false, true}) {
    CAPTURE(threads);
    World world;
    std::ofstream(world.folder.path() + "/counting.py") << R"(
import os, threading
HERE = os.path.dirname(__file__)

def count(what):
    with open(f"{HERE}/{what}", "a") as file:
        file.write(f"{os.getpid()}\n")

count("imported")
if )" << (threads ? "True" : "False") << R"(:
    threading.Thread(target=threading.Event().wait, daemon=True).start()

class Data:
    def __init__(self):
        count("made")
    def __len__(self):
        return 8
    def __getitem__(self, i):
        threading.Event().wait(0.05)
        return b"%d" % i, i
)";
    world.dataset.python = "counting:Data";
    world.args(nlohmann::json::object());
    const PythonSource train = world.source();
    const PythonSource val = world.source();
    std::vector<std::thread> callers;
    std::atomic<int> good{0};
    for (int t = 0; t < 3; ++t) {
      callers.emplace_back([&] {
        SourceSample sample;
        for (const PythonSource* source : {&train, &val}) good += source->load(key_of(1), sample).ok();
      });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(good == 6);
    const auto lines = [&](const std::string& file) {
      std::ifstream in(world.folder.path() + "/" + file);
      std::vector<std::string> found;
      for (std::string line; std::getline(in, line);) found.push_back(line);
      return found;
    };
    std::vector<std::string> made = lines("made");
    std::sort(made.begin(), made.end());
    CHECK(made.size() >= 2);
    CHECK(std::unique(made.begin(), made.end()) == made.end());
    CHECK(lines("imported").size() == (threads ? 1 + made.size() : 1));
  }
}

TEST_CASE("what cannot be opened says why") {
  World world;
  const auto says = [&](const std::string& name, const std::string& part) {
    world.dataset.python = name;
    contains(error_of(ErrorKind::dataset, [&] { (void)world.source(); }), part);
  };
  says("nowhere:Data", "No module named 'nowhere'");
  says("data:Nothing", "module 'data' has no 'Nothing'");
  says("os:getpid", "keyword arguments");
  world.args(nlohmann::json::object());
  says("os:getpid", "which has no __len__");
  world.args({{"count", 0}});
  says("data:Data", "is empty");
  world.python.interpreter = "/no/such/python";
  contains(error_of(ErrorKind::runtime, [&] { (void)world.source(); }), "cannot start '/no/such/python'");
  world.python.interpreter = "/bin/false";
  world.python.attempts = 2;
  contains(error_of(ErrorKind::runtime, [&] { (void)world.source(); }), "exited with status 1");
  CHECK(processes_left(0) == 0);
}

}  // namespace python_source_test
