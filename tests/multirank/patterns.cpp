// Training programs in small, one a way of using the client, for tests: interplay_test.py and others say what to
// expect.
//
//   patterns MODE JOB.yaml OUT.json [key.sub=value ...]   writes what it saw, and the receiver's figures, to OUT.json
//   ("%r" in OUT.json becomes the trainer's rank)
// In long, counted and paced the last epoch does not begin while there is a file `hold` beside OUT.json, so that a test that
// disturbs the job has all the time it needs.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/client/data_loader.h"

namespace {

using penstock::Batch;
using penstock::DataLoader;

struct Arguments {
  std::string job;
  penstock::DataLoaderOptions options;
  std::string out;                       // OUT.json
  std::map<std::string, long long> saw;  // written there
};

void require(bool holds, const char* what) {
  if (!holds) throw penstock::Error(penstock::ErrorKind::runtime, std::string("patterns: not so: ") + what);
}

double checksum(const Batch& batch) {
  const penstock::TensorView image = batch.image();
  const auto* values = image.as<float>();
  double sum = 0;
  for (int64_t i = 0; i < image.elements(); ++i) sum += values[i] * static_cast<double>(1 + i % 13);
  for (int64_t i = 0; i < batch.size(); ++i) sum += static_cast<double>(batch.indices()[i] * (i + 1));
  return sum;
}

long long count_iteration(DataLoader& loader) {
  long long valid = 0;
  for (const Batch& batch : loader) valid += batch.num_valid();
  return valid;
}

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

void wait_while_held(const Arguments& a) {
  const std::string file = a.out.substr(0, a.out.rfind('/') + 1) + "hold";
  for (int waited_ms = 0; ::access(file.c_str(), F_OK) == 0; waited_ms += 20) {
    require(waited_ms < 120'000, "the test has let go within two minutes");
    sleep_ms(20);
  }
}

// Two epochs, then validation.
std::string all(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  for (int epoch = 0; epoch < 2; ++epoch) a.saw["train"] += count_iteration(train);
  DataLoader val(a.job, "val", a.options);
  a.saw["val"] = count_iteration(val);
  require(a.saw["val"] == val.num_samples(), "num_samples is the number of valid samples");
  return train.stats_json();
}

// A validation iteration after the first and after the second step of a live training epoch.
std::string validate(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  DataLoader val(a.job, "val", a.options);
  for (const Batch& batch : train) {
    const double before = checksum(batch);
    if (batch.step() < 2) a.saw["val"] += count_iteration(val);
    require(checksum(batch) == before, "a batch stays as it is while another split passes");
    ++a.saw["steps"];
  }
  return train.stats_json();
}

// Each trainer breaks off at another step; the next epoch is whole.
std::string break_off(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  for (const Batch& batch : train) {
    if (batch.step() == train.rank()) break;
  }
  require(train.epoch() == 1, "a new iteration is the next epoch");
  a.saw["train"] = count_iteration(train);
  return train.stats_json();
}

// Takes the first batch, when the next ones have long been asked for, and leaves.
std::string first_batch(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  auto batches = train.begin_at(0, 0);
  a.saw["images"] = static_cast<long long>(batches->size());
  sleep_ms(500);
  std::printf("first batch %d\n", train.rank());
  std::fflush(stdout);
  return train.stats_json();
}

// Two iterations over the same split at once, in step with each other.
std::string two_iterators(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  auto one = train.begin_at(0, 0);
  auto two = train.begin_at(1, 0);
  while (one != train.end() && two != train.end()) {
    require(one->epoch() == 0 && two->epoch() == 1 && one->step() == two->step(),
            "each iteration has its own position");
    ++one;
    ++two;
    ++a.saw["steps"];
  }
  require(one == train.end() && two == train.end(), "both iterations end");
  return train.stats_json();
}

// Trainer 0 alone looks at the first batch before it trains: no other cursor, so nobody minds.
std::string look_first(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  train.set_epoch(0);
  if (train.rank() == 0) (void)*train.begin();
  for (int epoch = 0; epoch < 2; ++epoch) {
    train.set_epoch(epoch);
    a.saw["train"] += count_iteration(train);
  }
  return train.stats_json();
}

// Each trainer begins at another step, as when one of them found no checkpoint.
std::string different_cursors(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  for (auto it = train.begin_at(1, train.rank()); it != train.end(); ++it) sleep_ms(100);
  // The one that began first goes on, as if it waited in an all-reduce: its launcher ends it.
  sleep_ms(20'000);
  return train.stats_json();
}

// A child of the program keeps the socket open, as a forked worker does; it says so, and sleeps.
std::string forked(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  const auto first = train.begin();
  require(first->step() == 0, "the first batch");
  if (::fork() == 0) {
    sleep_ms(30'000);
    ::_exit(0);
  }
  std::printf("first batch %d\n", train.rank());
  std::fflush(stdout);
  sleep_ms(30'000);
  return "{}";
}

// An iteration that is begun in the middle.
std::string resume(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  for (auto it = train.begin_at(0, 2); it != train.end(); ++it) {
    if (a.saw["steps"]++ == 0) a.saw["first"] = it->step();
  }
  return train.stats_json();
}

// The part of a run that TEST_PART says, "EPOCH STEP LAST_EPOCH END_STEP": as a run that was resumed, and stopped again.
// Each epoch that comes to its end is followed by a validation.
std::string part(Arguments& a) {
  const char* text = std::getenv("TEST_PART");
  long long epoch = 0, step = 0, last_epoch = 0, end_step = 0;
  require(text != nullptr && std::sscanf(text, "%lld %lld %lld %lld", &epoch, &step, &last_epoch, &end_step) == 4,
          "TEST_PART has four numbers");
  DataLoader train(a.job, "train", a.options);
  DataLoader val(a.job, "val", a.options);
  for (; epoch <= last_epoch; ++epoch, step = 0) {
    for (auto it = train.begin_at(epoch, step); it != train.end(); ++it) {
      a.saw["train"] += it->size();
      if (epoch == last_epoch && it->step() + 1 == end_step) break;
    }
    if (epoch < last_epoch || end_step == train.size()) a.saw["val"] += count_iteration(val);
  }
  return train.stats_json();
}

// Holds as many batches as it may: none changes, and writing to one changes no other.
std::string hold(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  std::vector<std::pair<Batch, double>> held;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (Batch& batch : train) {
      for (const auto& [old, sum] : held) require(checksum(old) == sum, "a held batch stays as it was");
      batch.image().as<float>()[0] = 1e6F;  // programs normalise in place
      held.emplace_back(batch, checksum(batch));
      if (held.size() > 2) held.erase(held.begin());
      ++a.saw["steps"];
    }
  }
  require(train.warnings().empty(), "trainer.hold batches are free to keep");
  const std::string stats = train.stats_json();
  // Batches outlive the loader that gave them.
  { const DataLoader gone = std::move(train); }
  for (const auto& [old, sum] : held) require(checksum(old) == sum, "a batch outlives its loader");
  return stats;
}

// Holds every batch there is: a warning, then next() waits until another thread drops them, a while behind the warning.
std::string hold_all(Arguments& a) {
  std::atomic<int> warned{0};
  a.options.on_warning = [&](const std::string&) { ++warned; };
  DataLoader train(a.job, "train", a.options);
  std::vector<Batch> held;
  std::jthread dropper;
  for (int epoch = 0; epoch < 3; ++epoch) {  // 9 steps: five are held once
    for (const Batch& batch : train) {
      held.push_back(batch);
      ++a.saw["steps"];
      if (held.size() == 5) {
        dropper = std::jthread([&warned, dropped = std::exchange(held, {})]() mutable {
          for (int waited_ms = 0; warned == 0 && waited_ms < 20'000; waited_ms += 10) sleep_ms(10);
          sleep_ms(300);
          dropped.clear();
        });
      }
    }
  }
  dropper.join();
  a.saw["warned"] = warned;
  return train.stats_json();
}

// Holds every batch there is and drops none: an error in trainer.timeout_s, never memory that is in use.
std::string hold_for_ever(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  std::vector<std::pair<Batch, double>> held;
  for (int epoch = 0; epoch < 9; ++epoch) {
    for (const Batch& batch : train) {
      held.emplace_back(batch, checksum(batch));
      for (const auto& [old, sum] : held) require(checksum(old) == sum, "a held batch stays as it was");
    }
  }
  return "{}";
}

// Trainers of different pace: the slow one is not given less, the quick one not more.
std::string uneven(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const Batch& batch : train) {
      if (train.rank() == 0) sleep_ms(60);
      a.saw["train"] += batch.size();
    }
  }
  DataLoader val(a.job, "val", a.options);
  a.saw["val"] = count_iteration(val);
  return train.stats_json();
}

// Goes on for a minute, with a little work for each batch: for tests that end it.
std::string endless(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < std::chrono::seconds(60)) {
    for (const Batch& batch : train) {
      a.saw["train"] += batch.size();
      if (a.saw["train"] == batch.size()) {
        std::printf("first batch %d\n", train.rank());
        std::fflush(stdout);
      }
      sleep_ms(20);
    }
  }
  return train.stats_json();
}

volatile std::sig_atomic_t asked_to_end = 0;

// What many programs do: SIGTERM sets a flag, and the next step saves a checkpoint and leaves. Saving takes a moment, in
// which the program still wants batches.
std::string checkpoint(Arguments& a) {
  std::signal(SIGTERM, [](int) { asked_to_end = 1; });
  DataLoader train(a.job, "train", a.options);
  int more = 12;
  for (;;) {
    for (const Batch& batch : train) {
      a.saw["train"] += batch.size();
      if (a.saw["train"] == batch.size()) {
        std::printf("first batch %d\n", train.rank());
        std::fflush(stdout);
      }
      sleep_ms(50);
      if (asked_to_end != 0 && --more == 0) return train.stats_json();
    }
  }
}

// Ten epochs with a little work for each batch, then validation: long enough to be disturbed.
std::string long_run(Arguments& a) {
  DataLoader train(a.job, "train", a.options);
  for (int epoch = 0; epoch < 10; ++epoch) {
    if (epoch == 9) wait_while_held(a);
    for (const Batch& batch : train) {
      a.saw["train"] += batch.size();
      if (a.saw["train"] == batch.size()) {
        std::printf("first batch %d\n", train.rank());
        std::fflush(stdout);
      }
      sleep_ms(40);
    }
  }
  return train.stats_json();
}

int number_from(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

// Like `long`: PATTERNS_EPOCHS epochs, with a step of PATTERNS_PACE_MS. Says at the end of each epoch how many have passed.
std::string counted(Arguments& a) {
  const int epochs = number_from("PATTERNS_EPOCHS", 10);
  const int pace_ms = number_from("PATTERNS_PACE_MS", 0);
  DataLoader train(a.job, "train", a.options);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    if (epoch == epochs - 1) wait_while_held(a);
    for (const Batch& batch : train) {
      a.saw["train"] += batch.size();
      ++a.saw["batches"];
      if (a.saw["batches"] == 1) std::printf("first batch %d\n", train.rank());
      if (a.saw["batches"] == 1) std::fflush(stdout);
      if (pace_ms > 0) sleep_ms(pace_ms);
    }
    if (train.rank() == 0) std::printf("epochs %d\n", epoch + 1);
    if (train.rank() == 0) std::fflush(stdout);
  }
  return train.stats_json();
}

// Like `long` with shorter steps. OUT.json.times gets a line for every next(), "next END_NS TOOK_NS", and one for every
// time that a thread which looks at the clock each millisecond was kept from it, "stall END_NS TOOK_NS".
std::string paced(Arguments& a) {
  const auto now_ns = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  std::vector<std::pair<long long, long long>> stalls, takes;
  std::jthread ticking([&](const std::stop_token& over) {
    for (long long last = now_ns(); !over.stop_requested();) {
      sleep_ms(1);
      const long long now = now_ns();
      if (now - last > 5'000'000) stalls.push_back({now, now - last});
      last = now;
    }
  });
  DataLoader train(a.job, "train", a.options);
  for (int epoch = 0; epoch < 12; ++epoch) {
    if (epoch == 11) wait_while_held(a);
    auto at = train.begin();
    for (long long asked = now_ns(); at != train.end(); asked = now_ns(), ++at) {
      takes.push_back({now_ns(), now_ns() - asked});
      a.saw["train"] += (*at).size();
      if (takes.size() == 1) {
        std::printf("first batch %d\n", train.rank());
        std::fflush(stdout);
      }
      sleep_ms(15);
    }
  }
  ticking.request_stop();
  ticking.join();
  std::ofstream file(a.out + ".times");
  for (const auto& [end, took] : takes) file << "next " << end << ' ' << took << '\n';
  for (const auto& [end, took] : stalls) file << "stall " << end << ' ' << took << '\n';
  return train.stats_json();
}

// Each trainer asks for something else: refused by name, for both.
std::string disagree(Arguments& a) {
  const char* rank = std::getenv("RANK");
  if (rank != nullptr && std::strcmp(rank, "1") == 0) a.options.overrides.push_back("splits.train.batch_size=7");
  DataLoader train(a.job, "train", a.options);
  a.saw["train"] = count_iteration(train);
  // Programs that never live at the same time are of different runs, and may differ: this one waits for the other.
  sleep_ms(20'000);
  return train.stats_json();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<std::string(Arguments&)>> modes{
      {"all", all},           {"validate", validate},       {"break", break_off},
      {"two", two_iterators}, {"resume", resume},           {"part", part},
      {"hold", hold},         {"hold_all", hold_all},       {"hold_for_ever", hold_for_ever},
      {"uneven", uneven},     {"look_first", look_first},   {"different_cursors", different_cursors},
      {"forked", forked},     {"endless", endless},         {"long", long_run},
      {"paced", paced},       {"checkpoint", checkpoint},   {"disagree", disagree},
      {"counted", counted},   {"first_batch", first_batch},
  };
  if (argc < 4 || modes.count(argv[1]) == 0) {
    std::fprintf(stderr, "usage: patterns MODE JOB.yaml OUT.json [key.sub=value ...]\n");
    return 2;
  }
  Arguments arguments;
  arguments.job = argv[2];
  arguments.options.overrides.assign(argv + 4, argv + argc);
  const char* rank = std::getenv("RANK");
  std::string out = argv[3];
  if (const size_t at = out.find("%r"); at != std::string::npos) out.replace(at, 2, rank != nullptr ? rank : "0");
  arguments.out = out;
  try {
    const std::string stats = modes.at(argv[1])(arguments);
    std::ofstream file(out);
    file << "{\"stats\": " << stats << ", \"saw\": {";
    const char* comma = "";
    for (const auto& [name, value] : arguments.saw) {
      file << comma << '"' << name << "\": " << value;
      comma = ", ";
    }
    file << "}}\n";
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "patterns: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
