// The client as a program sees it, with loader, balancer and receiver in threads of this process.
#include "runtime/client/data_loader.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/json_text.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/pixels/finish.h"
#include "runtime/protocol/client_protocol.h"
#include "tests/support/error_of.h"
#include "tests/support/tiny_dataset.h"
#include "transport/unix_socket.h"

namespace penstock {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

std::vector<int64_t> indices_of(const Batch& batch) {
  return {batch.indices(), batch.indices() + batch.size()};
}

std::vector<int64_t> epoch_of(DataLoader& loader) {
  std::vector<int64_t> order;
  for (auto& batch : loader) {
    const auto some = indices_of(batch);
    order.insert(order.end(), some.begin(), some.end());
  }
  return order;
}

std::vector<float> pixels_of(const Batch& batch) {
  const TensorView view = batch.image();
  return {view.as<float>(), view.as<float>() + view.elements()};
}

struct Environment {
  Environment(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Environment() { ::unsetenv(name_); }
  const char* name_;
};

TEST_CASE("an epoch: every sample once, shapes, labels, the short last batch") {
  const TinyDataset data(50);
  DataLoader loader(data.job(), "train");
  CHECK(loader.embedded());
  CHECK(loader.size() == 7);
  CHECK(loader.batch_size() == 8);
  CHECK(loader.dataset_size() == 50);
  CHECK(loader.num_samples() == 50);
  CHECK(loader.num_replicas() == 1);
  CHECK(loader.class_names() == std::vector<std::string>{"class0", "class1", "class2", "class3", "class4"});
  std::set<int64_t> seen;
  int64_t step = 0;
  for (auto& batch : loader) {
    CHECK(batch.step() == step);
    CHECK(batch.epoch() == 0);
    CHECK(batch.size() == (step < 6 ? 8 : 2));
    CHECK(batch.num_valid() == batch.size());
    CHECK(batch.image().shape == std::vector<int64_t>{batch.size(), 3, 24, 24});
    CHECK(batch.image().strides == std::vector<int64_t>{3 * 24 * 24, 24 * 24, 24, 1});
    CHECK(batch.image().dtype == DType::float32);
    CHECK(batch.label().shape == std::vector<int64_t>{batch.size()});
    for (int64_t i = 0; i < batch.size(); ++i) {
      CHECK(seen.insert(batch.indices()[i]).second);
      CHECK(batch["label"].as<int64_t>()[i] == batch.indices()[i] / 10);  // ten pictures a class, in order
      CHECK(batch.valid()[i] == 1);
      CHECK(batch.substituted()[i] == 0);
    }
    for (const float v : pixels_of(batch)) REQUIRE((v > -3 && v < 4));
    ++step;
  }
  CHECK(step == 7);
  CHECK(seen.size() == 50);
  CHECK(loader.warnings().empty());
}

TEST_CASE("epochs advance by themselves, set_epoch goes anywhere, eval replays epoch 0") {
  const TinyDataset data(50);
  DataLoader train(data.job(), "train");
  CHECK(train.epoch() == 0);
  const auto first = epoch_of(train);
  CHECK(train.epoch() == 1);
  const auto second = epoch_of(train);
  CHECK(first != second);
  train.set_epoch(0);
  CHECK(epoch_of(train) == first);
  CHECK(epoch_of(train) == second);  // on from there
  train.set_epoch(7);
  CHECK(train.begin()->epoch() == 7);
  CHECK(train.begin()->epoch() == 8);  // breaking off counts as an iteration
  CHECK_THROWS_AS(train.set_epoch(-1), Error);
  DataLoader val(data.job(), "val");
  std::vector<int64_t> straight(50);
  for (size_t i = 0; i < 50; ++i) straight[i] = static_cast<int64_t>(i);
  CHECK(epoch_of(val) == straight);
  CHECK(epoch_of(val) == straight);
  CHECK(val.epoch() == 0);
}

TEST_CASE("an epoch that does not exist is a named error, and the loader goes on") {
  const TinyDataset data(20);
  DataLoader loader(data.job(), "train");
  loader.set_epoch(int64_t{1} << 40);
  const Error error = error_of([&] { (void)loader.begin(); });
  CHECK(error.kind() == ErrorKind::usage);
  CHECK(error.message().find("1099511627776") != std::string::npos);
  loader.set_epoch(0);
  CHECK(epoch_of(loader).size() == 20);
}

TEST_CASE("begin_at resumes in the middle of an epoch") {
  const TinyDataset data(50);
  DataLoader loader(data.job(), "train");
  const auto whole = epoch_of(loader);
  std::vector<int64_t> rest;
  for (BatchIterator it = loader.begin_at(0, 4); it != loader.end(); ++it) {
    CHECK(it->step() == 4 + std::ssize(rest) / 8);
    const auto some = indices_of(*it);
    rest.insert(rest.end(), some.begin(), some.end());
  }
  CHECK(rest == std::vector<int64_t>(whole.begin() + 32, whole.end()));
  CHECK(loader.begin_at(0, 7) == loader.end());
  CHECK_THROWS_AS((void)loader.begin_at(0, 8), Error);
  CHECK_THROWS_AS((void)loader.begin_at(0, -1), Error);
  loader.set_epoch(3);
  (void)loader.begin_at(3, 2);
  CHECK(loader.epoch() == 4);  // that set_epoch() is used up
}

TEST_CASE("break at any step and begin again, many times") {
  const TinyDataset data(50);
  DataLoader loader(data.job(), "train");
  const auto whole = epoch_of(loader);
  for (size_t stop = 0; stop < 21; ++stop) {
    loader.set_epoch(0);
    size_t step = 0;
    for (auto& batch : loader) {
      REQUIRE(indices_of(batch)[0] == whole[step * 8]);
      if (step++ == stop % 7) break;
    }
  }
  loader.set_epoch(0);
  CHECK(epoch_of(loader) == whole);
}

TEST_CASE("a validation iteration inside a live training epoch, and two iterations of one split side by side") {
  const TinyDataset data(50);
  DataLoader train(data.job(), "train");
  DataLoader val(data.job(), "val");
  const auto alone = epoch_of(train);
  train.set_epoch(0);
  std::vector<int64_t> order;
  for (auto& batch : train) {
    const auto some = indices_of(batch);
    order.insert(order.end(), some.begin(), some.end());
    if (batch.step() % 3 == 1) CHECK(epoch_of(val).size() == 50);
  }
  CHECK(order == alone);
  BatchIterator a = train.begin_at(0, 0);
  BatchIterator b = train.begin_at(0, 0);
  ++b;
  for (int64_t step = 0; step < 6; ++step) {
    CHECK(a->step() == step);
    CHECK(b->step() == step + 1);
    CHECK(indices_of(*a)[0] == alone[static_cast<size_t>(step) * 8]);
    CHECK(indices_of(*b)[0] == alone[static_cast<size_t>(step) * 8 + 8]);
    ++a;
    ++b;
  }
  CHECK(b == train.end());
  CHECK_FALSE(a == train.end());
  CHECK_THROWS_AS((void)*b, Error);
}

TEST_CASE("batches outlive the loader, unchanged; writing into one disturbs no other") {
  const TinyDataset data(50);
  std::vector<Batch> kept;
  std::vector<std::vector<float>> before;
  {
    DataLoader loader(data.job(), "train");
    for (auto& batch : loader) {
      if (kept.size() < 3) {
        kept.push_back(batch);
        before.push_back(pixels_of(batch));
      } else {
        // As a program that normalises in place does.
        const TensorView view = batch.image();
        std::fill_n(view.as<float>(), view.elements(), 1e9f);
      }
      for (size_t i = 0; i < kept.size(); ++i) REQUIRE(pixels_of(kept[i]) == before[i]);
    }
    std::fill_n(kept[1].image().as<float>(), kept[1].image().elements(), -5.0f);
    before[1].assign(before[1].size(), -5.0f);
    (void)epoch_of(loader);
  }
  for (size_t i = 0; i < kept.size(); ++i) CHECK(pixels_of(kept[i]) == before[i]);
  CHECK(kept[0].indices()[0] != kept[1].indices()[0]);
  CHECK(kept[2].size() == 8);
}

TEST_CASE("all batches held: a warning, then waiting until another thread drops one") {
  const TinyDataset data(100, "");
  std::vector<std::string> told;
  std::atomic<bool> warned = false;
  DataLoaderOptions options{.overrides = {"trainer.hold=1"}};
  options.on_warning = [&](const std::string& text) {
    told.push_back(text);
    warned = true;
  };
  DataLoader loader(data.job(), "train", options);
  std::vector<Batch> kept;
  BatchIterator it = loader.begin();
  for (; told.empty() && kept.size() < 10; ++it) {
    kept.push_back(*it);
    if (kept.size() < 4) continue;
    // Four batch buffers: two of prefetch, one in use, one to hold.
    std::atomic<bool> dropping = false;
    std::thread releaser([&] {
      for (int i = 0; i < 3'000 && !warned; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      dropping = true;
      kept.erase(kept.begin());
    });
    ++it;
    CHECK(dropping);
    releaser.join();
    break;
  }
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("trainer.hold") != std::string::npos);
  CHECK(loader.warnings() == told);
  CHECK(loader.warnings().empty());
  CHECK(it->step() == 4);
}

TEST_CASE("the warning's callback may drop batches and ask for warnings") {
  const TinyDataset data(100);
  std::vector<Batch> kept;
  DataLoader* self = nullptr;
  DataLoaderOptions options{.overrides = {"trainer.hold=0"}};
  options.on_warning = [&](const std::string&) {
    CHECK(self->warnings().size() == 1);
    kept.clear();
  };
  DataLoader loader(data.job(), "train", options);
  self = &loader;
  int64_t count = 0;
  for (auto& batch : loader) {
    kept.push_back(batch);
    ++count;
  }
  CHECK(count == 13);
}

TEST_CASE("an exception of the warning's callback comes through, and no batch is lost by it") {
  const TinyDataset data(100);
  std::vector<Batch> kept;
  DataLoaderOptions options{.overrides = {"trainer.hold=0"}};
  options.on_warning = [&](const std::string&) { throw std::runtime_error("enough"); };
  DataLoader loader(data.job(), "train", options);
  BatchStream stream = loader.start();
  for (int i = 0; i < 3; ++i) kept.push_back(stream.next());
  CHECK_THROWS_WITH_AS(stream.next(), "enough", std::runtime_error);
  CHECK(pixels_of(kept[2]).size() == 8 * 3 * 24 * 24);
  kept.clear();
  int64_t step = 3;
  for (Batch batch = stream.next(); batch; batch = stream.next()) CHECK(batch.step() == step++);
  CHECK(step == 13);
  int64_t count = 0;
  for (auto& batch : loader) count += batch.size();
  CHECK(count == 100);
}

TEST_CASE("a folder that was repaired opens at the second attempt") {
  const TinyDataset data(20);
  const std::string folder = data.folder().path("data");
  DataLoader alive(data.job(), "val");  // keeps the process's coordinator and loader alive
  std::filesystem::rename(folder, folder + ".away");
  CHECK(error_of([&] { DataLoader(data.job(), "train"); }).kind() == ErrorKind::dataset);
  std::filesystem::rename(folder + ".away", folder);
  DataLoader loader(data.job(), "train");
  int64_t count = 0;
  for (auto& batch : loader) count += batch.size();
  CHECK(count == 20);
}

TEST_CASE("a program that holds all batches is told so, and goes on once one is dropped") {
  const TinyDataset data(100);
  DataLoader loader(data.job(), "train", {.overrides = {"trainer.hold=0", "trainer.timeout_s=2"}});
  std::vector<Batch> kept;
  const Error error = error_of([&] {
    for (auto& batch : loader) kept.push_back(batch);
  });
  CHECK(error.kind() == ErrorKind::usage);
  CHECK(error.message().find("the program holds all batches of split 'train'") != std::string::npos);
  CHECK(error.remedy().find("trainer.hold (0)") != std::string::npos);
  CHECK(kept.size() == 3);
  CHECK(pixels_of(kept[0]).size() == 8 * 3 * 24 * 24);
  // Nothing is lost: with one dropped the iteration goes on.
  BatchStream iteration =
      DataLoader(data.job(), "val", {.overrides = {"trainer.hold=0", "trainer.timeout_s=2"}}).start();
  kept.clear();
  for (int i = 0; i < 3; ++i) kept.push_back(iteration.next());
  for (int again = 0; again < 2; ++again)
    CHECK(error_of([&] { kept.push_back(iteration.next()); }).kind() == ErrorKind::usage);
  kept.erase(kept.begin());
  kept.push_back(iteration.next());
  CHECK(kept.back().step() == 3);
}

TEST_CASE("a receiver that never answers is given up after trainer.timeout_s; one that hangs up at once") {
  const TinyDataset data(10);
  const std::string name = "penstock-test/" + std::to_string(::getpid());
  UniqueFd receiver = listen_abstract(name);
  const Environment here("PENSTOCK_RECEIVER", "@" + name);
  const Error error = error_of([&] { DataLoader(data.job(), "train", {.overrides = {"trainer.timeout_s=0.2"}}); });
  CHECK(error.kind() == ErrorKind::peer_lost);
  CHECK(error.message().find("did not answer") != std::string::npos);
  const UniqueFd given_up(::accept4(receiver.get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::thread closing([&] {
    pollfd connection{receiver.get(), POLLIN, 0};
    (void)::poll(&connection, 1, 20'000);
    receiver.reset();  // with the connection that waits in it
  });
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  CHECK(error_of([&] { DataLoader(data.job(), "train"); }).kind() == ErrorKind::peer_lost);
  CHECK(clock.now() - begun < 10 * kSecond);
  closing.join();
}

TEST_CASE("a receiver whose job waits for lost loaders has that much longer to answer") {
  const TinyDataset data(10);
  const std::string name = "penstock-test-waits/" + std::to_string(::getpid());
  const UniqueFd listening = listen_abstract(name);
  const Environment here("PENSTOCK_RECEIVER", "@" + name);
  std::promise<void> over;
  Nanoseconds longest_wait_ns = 0;
  std::thread receiver([&, ended = over.get_future()] {
    pollfd connection{listening.get(), POLLIN, 0};
    (void)::poll(&connection, 1, 20'000);
    PacketSocket client(UniqueFd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    Packet hello, opening;
    (void)client.receive_until(hello, 20 * kSecond);
    client.send(encode_client(ClientWelcome{}));
    if (client.receive_until(opening, 20 * kSecond))
      longest_wait_ns = std::get<ClientOpen>(decode_client(opening.bytes)).longest_wait_ns;
    ended.wait();  // it says nothing of the split, as where no loader is left
  });
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  const Error error = error_of([&] {
    DataLoader(data.job(), "train",
               {.overrides = {"trainer.timeout_s=3", "balancer.on_all_lost=wait", "balancer.wait_s=0.5",
                              "balancer.lost_after_s=0.2", "balancer.heartbeat_s=0.1"},
                .timeout_s = 0.25});  // which is for batches
  });
  over.set_value();
  receiver.join();
  CHECK(error.kind() == ErrorKind::peer_lost);
  CHECK(error.message().find("s for the opening of split 'train'") != std::string::npos);
  CHECK(clock.now() - begun >= 3700 * kMillisecond);
  CHECK(longest_wait_ns == 950 * kMillisecond);  // the program's own, whatever the receiver's job says
}

TEST_CASE("dtype and memory format by choice: the same numbers") {
  const TinyDataset data(20);
  DataLoader plain(data.job(), "val");
  DataLoader last(data.job(), "val", {.channels_last = true});
  DataLoader bytes(data.job(), "val", {.dtype = DType::uint8});
  DataLoader half(data.job(), "val", {.dtype = DType::float16, .channels_last = true});
  BatchIterator a = plain.begin();
  BatchIterator b = last.begin();
  BatchIterator c = bytes.begin();
  BatchIterator d = half.begin();
  CHECK(c->image().dtype == DType::uint8);
  CHECK(d->image().dtype == DType::float16);
  CHECK(b->image().shape == a->image().shape);
  CHECK(b->image().strides == std::vector<int64_t>{3 * 24 * 24, 1, 3 * 24, 3});
  const auto at = [](const TensorView& v, int64_t n, int64_t ch, int64_t y, int64_t x) {
    return n * v.strides[0] + ch * v.strides[1] + y * v.strides[2] + x * v.strides[3];
  };
  for (int64_t n = 0; n < 8; ++n) {
    for (int64_t ch = 0; ch < 3; ++ch) {
      for (int64_t y = 0; y < 24; ++y) {
        for (int64_t x = 0; x < 24; ++x) {
          const float v = a->image().as<float>()[at(a->image(), n, ch, y, x)];
          REQUIRE(v == b->image().as<float>()[at(b->image(), n, ch, y, x)]);
          REQUIRE(half_bits(v) == d->image().as<uint16_t>()[at(d->image(), n, ch, y, x)]);
          const uint8_t byte = c->image().as<uint8_t>()[at(c->image(), n, ch, y, x)];
          REQUIRE(v * 255.0f == doctest::Approx(byte));  // finish_test knows the last bit
        }
      }
    }
  }
}

// Bytes of a batch's images; raw ones finished by the loader's finisher.
std::vector<std::byte> finished(const DataLoader& loader, const Batch& batch) {
  const TensorView view = batch.image();
  const auto* const data = static_cast<const std::byte*>(view.data);
  const auto bytes = static_cast<size_t>(view.elements()) * size_of(view.dtype);
  if (!loader.raw_images()) return {data, data + bytes};
  CHECK(view.dtype == DType::uint8);
  const Finisher finisher = loader.finisher();
  std::vector<std::byte> out(static_cast<size_t>(batch.size()) * finisher.bytes_per_sample());
  const size_t each = bytes / static_cast<size_t>(batch.size());
  for (size_t i = 0; i < static_cast<size_t>(batch.size()); ++i) {
    finisher.run(view.as<uint8_t>() + i * each, out.data() + i * finisher.bytes_per_sample());
  }
  return out;
}

TEST_CASE(
    "raw images, finished by the program: the receiver's bytes and hashes, also of batches that CutMix has mixed") {
  const TinyDataset data(20);
  std::ifstream file(data.job());
  const std::string job{std::istreambuf_iterator<char>(file), {}};
  const auto mixed_by = [&](const std::string& transform) {
    const std::string before = "std: [0.2, 0.3, 0.4]}}";
    std::string text = job;
    text.insert(text.find(before) + before.size(), ", {" + transform + ": {num_classes: 5}}");
    const std::string path = data.folder().path(transform + ".yaml");
    std::ofstream(path) << text;
    return path;
  };
  struct Case {
    std::string job;
    DataLoaderOptions options;
    bool raw = true;
  };
  const Case cases[] = {{data.job(), {}},
                        {data.job(), {.dtype = DType::float16, .channels_last = true}},
                        {data.job(), {.dtype = DType::bfloat16}},
                        {data.job(), {.dtype = DType::uint8, .channels_last = true}},
                        {mixed_by("CutMix"), {.channels_last = true}},
                        // Floats are mixed, which finishing the mixture would not give.
                        {mixed_by("MixUp"), {}, false}};
  for (const Case& one : cases) {
    DataLoaderOptions raw = one.options;
    raw.raw_images = true;
    DataLoader plain(one.job, "train", one.options);
    DataLoader other(one.job, "train", raw);
    CHECK_FALSE(plain.raw_images());
    CHECK(other.raw_images() == one.raw);
    CHECK(other.kind("image") == FieldKind::image);
    BatchIterator b = other.begin();
    int batches = 0;
    for (auto& batch : plain) {
      REQUIRE(b != other.end());
      CHECK(finished(other, *b) == finished(plain, batch));
      CHECK(indices_of(*b) == indices_of(batch));
      ++b;
      ++batches;
    }
    CHECK(batches == 3);
    const auto hashes = [](DataLoader& loader) {
      const auto split = parse_json(loader.stats_json())["splits"]["train"];
      return std::pair(split["order_hash"], split["pixel_hash"]);
    };
    CHECK(hashes(other) == hashes(plain));
  }
}

TEST_CASE("exact evaluation on three replicas: each sample counts once, padding carries -100") {
  const TinyDataset data(50);
  std::multiset<int64_t> counted;
  int64_t told = 0;
  for (int rank = 0; rank < 3; ++rank) {
    DataLoader val(data.job(), "val", {.num_replicas = 3, .rank = rank});
    CHECK(val.rank() == rank);
    CHECK(val.size() == 3);
    told += val.num_samples();
    for (auto& batch : val) {
      int64_t valid = 0;
      for (int64_t i = 0; i < batch.size(); ++i) {
        valid += batch.valid()[i];
        if (batch.valid()[i] != 0) {
          counted.insert(batch.indices()[i]);
          CHECK(batch.label().as<int64_t>()[i] == batch.indices()[i] / 10);
        } else {
          CHECK(batch.label().as<int64_t>()[i] == -100);
        }
      }
      CHECK(batch.num_valid() == valid);
    }
  }
  CHECK(told == 50);
  CHECK(counted.size() == 50);
  CHECK(std::set<int64_t>(counted.begin(), counted.end()).size() == 50);
}

TEST_CASE("where a program stands is told by arguments, then RANK and WORLD_SIZE; never guessed") {
  const TinyDataset data(50);
  {
    const Environment rank("RANK", "1");
    const Environment world("WORLD_SIZE", "2");
    DataLoader loader(data.job(), "train");
    CHECK(loader.rank() == 1);
    CHECK(loader.num_replicas() == 2);
    DataLoader other(data.job(), "train", {.num_replicas = 4, .rank = 3});
    CHECK(other.rank() == 3);
    CHECK(other.size() == 2);
  }
  {
    const Environment rank("RANK", "2");
    const Environment world("WORLD_SIZE", "2");
    CHECK(error_of([&] { DataLoader(data.job(), "train"); }).kind() == ErrorKind::usage);
  }
  {
    const Environment world("WORLD_SIZE", "2");
    CHECK(error_of([&] { DataLoader(data.job(), "train"); }).message().find("without RANK") != std::string::npos);
  }
  {
    const Environment size("OMPI_COMM_WORLD_SIZE", "2");
    const Environment rank("OMPI_COMM_WORLD_RANK", "0");
    const Error error = error_of([&] { DataLoader(data.job(), "train"); });
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(error.remedy().find("penstock run") != std::string::npos);
    DataLoader told(data.job(), "train", {.num_replicas = 2, .rank = 0});
    CHECK(told.size() == 4);
  }
  CHECK_THROWS_AS(DataLoader(data.job(), "train", {.num_replicas = 2, .rank = 2}), Error);
}

TEST_CASE("what cannot work says so at once") {
  const TinyDataset data(10);
  CHECK(error_of([&] { DataLoader(data.job(), "trian"); }).what() == doctest::Contains("train"));
  CHECK(error_of([&] { DataLoader(data.folder().path("none.yaml"), "train"); }).kind() == ErrorKind::config);
  const Error missing = error_of(
      [&] { DataLoader(data.job(), "train", {.overrides = {"splits.train.dataset.folder=/nowhere/at/all"}}); });
  CHECK(missing.kind() == ErrorKind::dataset);
  CHECK(missing.message() == "the embedded loader: the dataset folder '/nowhere/at/all' does not exist");
  const Error memory = error_of([&] {
    DataLoader(data.job(), "train", {.overrides = {"loader.memory_gb=0.01", "loader.chunk_buffers=2000"}});
  });
  CHECK(memory.kind() == ErrorKind::config);
  CHECK(memory.remedy().find("loader.memory_gb") != std::string::npos);
  DataLoader loader(data.job(), "train");
  BatchIterator it = loader.begin();
  const Error field = error_of([&] { (void)(*it)["images"]; });
  CHECK(field.kind() == ErrorKind::usage);
  CHECK(field.remedy().find("'image', 'label'") != std::string::npos);
  DataLoader moved = std::move(loader);
  CHECK(epoch_of(moved).size() == 10);
}

TEST_CASE("a forked child ends without disturbing its parent, and can load for itself") {
  const TinyDataset data(50);
  auto loader = std::make_unique<DataLoader>(data.job(), "train");
  const auto whole = epoch_of(*loader);
  loader->set_epoch(0);
  BatchIterator it = loader->begin();
  std::vector<int64_t> order = indices_of(*it);
  for (int round = 0; round < 3; ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      int status = 0;
      try {
        const Batch batch = *it;
        if (batch.indices()[0] != order[0]) status = 10;
        bool refused = false;
        try {
          ++it;
        } catch (const Error& error) {
          refused = error.kind() == ErrorKind::usage;
        }
        if (!refused) status = 11;
        it = {};
        loader.reset();  // as a program does that unwinds in the child
        if (!kThreadSanitizer && status == 0) {
          DataLoader own(data.job(), "train");
          if (epoch_of(own) != whole) status = 12;
        }
      } catch (...) {
        status = 13;
      }
      ::_exit(status);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  for (++it; it != loader->end(); ++it) {
    const auto some = indices_of(*it);
    order.insert(order.end(), some.begin(), some.end());
  }
  CHECK(order == whole);
}

TEST_CASE("the program's signals go to the program's threads: those of an embedded loader block them all") {
  const TinyDataset data(50);
  DataLoader loader(data.job(), "train");
  (void)epoch_of(loader);
  int threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    if (entry.path().filename() == std::to_string(::getpid())) continue;
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("SigBlk:", 0) != 0) continue;
      const uint64_t blocked = std::stoull(line.substr(7), nullptr, 16);
      for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGALRM}) CHECK((blocked >> (number - 1) & 1) == 1);
      ++threads;
    }
  }
  CHECK(threads >= 4);  // receiver, loader, and two that decode
  sigset_t mine;
  REQUIRE(::pthread_sigmask(SIG_BLOCK, nullptr, &mine) == 0);
  CHECK(sigismember(&mine, SIGTERM) == 0);
}

TEST_CASE("loaders come and go a hundred times: no descriptor and no mapping stays") {
  const TinyDataset data(16);
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto once = [&] {
    DataLoader loader(data.job(), "train");
    CHECK(loader.begin()->size() == 8);
  };
  once();
  const auto before = descriptors();
  for (int i = 0; i < (kThreadSanitizer ? 20 : 100); ++i) once();
  CHECK(descriptors() == before);
}

TEST_CASE("fifty different splits come and go beside one that stays: nothing of them stays") {
  const TinyDataset data(16);
  DataLoader stays(data.job(), "val");
  const auto pictures = stays.begin();
  const auto once = [&](int seed) {
    DataLoader loader(data.job(), "train", {.overrides = {"seed=" + std::to_string(seed)}});
    CHECK(loader.begin()->size() == 8);
  };
  // Descriptors and mappings of chunk buffers and batch buffers; those of a split that was closed just now go soon.
  const auto memories = [] {
    int found = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      found += std::filesystem::read_symlink(entry, gone).string().find("penstock-") != std::string::npos ? 1 : 0;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) found += line.find("penstock-") != std::string::npos ? 1 : 0;
    return found;
  };
  const int before = memories();
  CHECK(before > 0);
  for (int seed = 0; seed < 50; ++seed) once(seed);
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + 10 * kSecond;
  while (memories() > before && clock.now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(memories() == before);
  CHECK(pictures->size() == 8);
}

TEST_CASE("start() does not wait; an iteration given up before its first batch costs nothing") {
  const TinyDataset data(50);
  DataLoader loader(data.job(), "train");
  for (int i = 0; i < 20; ++i) (void)loader.start();
  CHECK(loader.epoch() == 20);
  BatchStream stream = loader.start_at(1, 5);
  CHECK(stream.next().step() == 5);
  CHECK(stream.next().step() == 6);
  CHECK_FALSE(stream.next());
  CHECK_FALSE(stream.next());
  CHECK_FALSE(BatchStream().next());
}

struct Interrupted {};
// Waits of the loader throw as long as `interrupt` is set, as a program's Ctrl-C does.
DataLoaderOptions interrupted_if(const bool& interrupt) {
  DataLoaderOptions options;
  options.while_waiting = [&interrupt] {
    if (interrupt) throw Interrupted{};
  };
  return options;
}

TEST_CASE("an interrupted wait loses no batch, and leaves the loader free for other questions") {
  const TinyDataset data(50);
  bool interrupt = false;
  DataLoader loader(data.job(), "train", interrupted_if(interrupt));
  std::vector<Batch> held;
  BatchStream stream = loader.start_at(0, 0);
  // As many as the program may hold: the next one waits until one is dropped.
  for (int i = 0; i < 5; ++i) held.push_back(stream.next());
  interrupt = true;
  CHECK_THROWS_AS(stream.next(), Interrupted);
  CHECK_THROWS_AS(stream.next(), Interrupted);
  CHECK(loader.stats_json().find("splits") != std::string::npos);
  interrupt = false;
  CHECK(loader.start_at(3, 2).next().step() == 2);  // another iteration, meanwhile
  held.clear();
  CHECK(stream.next().step() == 5);
  CHECK(stream.next().step() == 6);
  CHECK_FALSE(stream.next());

  // An iteration that ends while it is waited for gives its batch back: the pool is whole again afterwards.
  for (int round = 0; round < 3; ++round) {
    BatchStream given_up = loader.start_at(0, 0);
    for (int i = 0; i < 5; ++i) held.push_back(given_up.next());
    interrupt = true;
    CHECK_THROWS_AS(given_up.next(), Interrupted);
    interrupt = false;
    given_up = {};
    held.clear();
  }
  CHECK(epoch_of(loader).size() == 50);
}

TEST_CASE("an iterator whose ++ was interrupted has the batch after all, by another ++") {
  const TinyDataset data(50);
  bool interrupt = false;
  DataLoader loader(data.job(), "train", interrupted_if(interrupt));
  BatchIterator iterator = loader.begin();
  std::vector<Batch> held{*iterator};
  for (int i = 1; i < 5; ++i) held.push_back(*++iterator);
  interrupt = true;
  for (int again = 0; again < 2; ++again) CHECK_THROWS_AS(++iterator, Interrupted);
  CHECK(iterator == loader.end());
  interrupt = false;
  held.clear();
  CHECK((++iterator)->step() == 5);
  CHECK((++iterator)->step() == 6);
  CHECK(++iterator == loader.end());
  CHECK(++iterator == loader.end());
}

TEST_CASE("threads that wait for the same iteration, or for iterations of one loader, each get their batches") {
  const TinyDataset data(400);
  DataLoaderOptions options;
  options.overrides = {"trainer.timeout_s=6"};
  // While one thread looks after the program's signals, others come in.
  options.while_waiting = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  DataLoader loader(data.job(), "train", options);
  BatchStream shared = loader.start_at(0, 0);
  BatchStream own = loader.start_at(1, 0);
  std::vector<Batch> held;  // all batch buffers of both: nobody gets a batch before one is dropped
  for (int i = 0; i < 5; ++i) {
    held.push_back(shared.next());
    held.push_back(own.next());
  }
  Mutex mutex;
  std::multiset<int64_t> steps;
  int64_t own_step = 0;
  std::vector<std::string> problems;
  const auto next = [&](BatchStream stream, bool is_own) {
    try {
      const Batch batch = stream.next();
      MutexLock lock(mutex);
      if (is_own) {
        own_step = batch.step();
      } else {
        steps.insert(batch.step());
      }
    } catch (const Error& error) {
      MutexLock lock(mutex);
      problems.push_back(error.message());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(next, shared, false);
  threads.emplace_back(next, own, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // several looks
  held.clear();
  for (std::thread& thread : threads) thread.join();
  CHECK(problems.empty());
  CHECK(steps == std::multiset<int64_t>{5, 6, 7});
  CHECK(own_step == 5);
}

TEST_CASE("state: the rest of an epoch after resuming, on as many replicas as one likes") {
  const TinyDataset data(64);
  DataLoader loader(data.job(), "train");
  const std::string state = loader.state(4, 3);
  CHECK(loader.resume(state) == Cursor{4, 3});
  // Half the batch on twice the replicas is the same global batch.
  DataLoaderOptions half;
  half.overrides = {"splits.train.batch_size=4", "loader.threads=1"};
  half.num_replicas = 2;
  half.rank = 1;
  CHECK(DataLoader(data.job(), "train", half).resume(state) == Cursor{4, 3});
}

TEST_CASE("a state is refused by the name of what differs") {
  const TinyDataset data(50);
  DataLoader loader(data.job(), "train");
  const std::string state = loader.state(1, 2);
  const auto refusal = [&](const char* split, std::vector<std::string> overrides) {
    DataLoaderOptions options;
    options.overrides = std::move(overrides);
    DataLoader other(data.job(), split, options);
    const Error error = error_of([&] { (void)other.resume(state); });
    CHECK(error.kind() == ErrorKind::config);
    return error.message();
  };
  CHECK(refusal("val", {}).find("split 'train'") != std::string::npos);
  CHECK(refusal("train", {"seed=4"}).find("seed was 3 and is now 4") != std::string::npos);
  CHECK(refusal("train", {"splits.train.batch_size=4"}).find("global batch was 8") != std::string::npos);
  CHECK(refusal("train", {"on_error=substitute"}).find("on_error") != std::string::npos);
  const TinyDataset more(51);
  DataLoader other(more.job(), "train");
  CHECK(error_of([&] { (void)other.resume(state); }).message().find("dataset size was 50 and is now 51") !=
        std::string::npos);
  const TinyDataset moved(50);  // the same samples in another folder
  CHECK(DataLoader(moved.job(), "train").resume(state) == Cursor{1, 2});
  for (const char* text : {"", "{}", "[]", "null", "{\"penstock_state\": 1}", "{\"penstock_state\": 2}"}) {
    CHECK(error_of([&] { (void)loader.resume(text); }).message().starts_with("saved state: "));
  }
  CHECK(error_of([&] { (void)loader.resume(std::string(1 << 20, ' ')); }).kind() == ErrorKind::config);
}

TEST_CASE("a job that the program made, as text") {
  const TinyDataset data(20);
  const std::string folder = data.folder().path("data");
  const std::string text = "splits: {only: {mode: eval, dataset: {folder: \"" + folder +
                           "\"}, pipeline: [{CenterCrop: {size: 24}}], batch_size: 8}}";
  DataLoader loader = DataLoader::from_text(text, "my job", "only");
  CHECK(loader.size() == 3);
  CHECK(error_of([&] { DataLoader::from_text("splitz: {}", "my job", "only"); }).message().find("my job:1:1") !=
        std::string::npos);
}

TEST_CASE("statistics name images, waiting and ranges") {
  const TinyDataset data(50);
  DataLoader loader(data.job(), "train");
  (void)epoch_of(loader);
  (void)loader.begin();
  const nlohmann::json stats = parse_json(loader.stats_json());
  const auto& train = stats.at("splits").at("train");
  CHECK(train.at("images") == 58);
  CHECK(train.at("batches") == 8);
  CHECK(train.at("ranges").size() == 2);
  CHECK(train.at("ranges")[0].at("end_step") == 7);
  CHECK(train.at("ranges")[1].at("epoch") == 1);
  CHECK(train.at("ranges")[1].at("end_step") == 1);
  CHECK(train.at("order_hash").get<std::string>().size() == 32);
  CHECK(stats.at("dropped_chunks") == 0);
}

TEST_CASE("fields of varying length have values, others arrays") {
  const TinyDataset data(1);
  data.folder().write("captions.py", R"(
class Captions:
    def __len__(self):
        return 5
    def __getitem__(self, i):
        with open(__file__.rpartition("/")[0] + "/data/class0/0000.png", "rb") as file:
            return {"image": file.read(), "label": i, "caption": "ab" * i, "raw": b"\xff" * (5 - i)}
)");
  data.folder().write("captions.yaml", "splits: {val: {mode: eval, dataset: {python: \"captions:Captions\", path: " +
                                           data.folder().path() +
                                           "}, batch_size: 5, pipeline: [{CenterCrop: {size: 24}}]}}");
  DataLoader loader(data.folder().path("captions.yaml"), "val");
  CHECK(loader.fields() == std::vector<std::string>{"image", "label", "caption", "raw"});
  const Batch batch = *loader.begin();
  REQUIRE(batch.size() == 5);
  CHECK(batch.kind("caption") == FieldKind::text);
  CHECK(batch.kind("raw") == FieldKind::bytes);
  for (int64_t i = 0; i < 5; ++i) {
    CHECK(batch.label().as<int64_t>()[i] == i);
    CHECK(batch.value("caption", i) == std::string_view("abababab").substr(0, static_cast<size_t>(2 * i)));
    CHECK(batch.value("raw", i) == std::string(static_cast<size_t>(5 - i), '\xff'));
  }
  CHECK(error_of([&] { (void)batch["caption"]; }).message().find("field 'caption' has values of varying length") !=
        std::string::npos);
  CHECK(error_of([&] { (void)batch.value("label", 0); }).message().find("field 'label' is an array") !=
        std::string::npos);
  CHECK(error_of([&] { (void)batch.value("raw", 5); }).message().find("a batch of 5 samples has no sample 5") !=
        std::string::npos);
  CHECK(error_of([&] { (void)batch.value("text", 0); }).remedy().find("'caption', 'raw'") != std::string::npos);
}

}  // namespace
}  // namespace penstock
