// Images finished on a GPU, here one that is this CPU: the finishing pass's bytes, in bounded memory, and what fails.
#include <doctest/doctest.h>

#include "runtime/gpu/gpu_finisher.h"
#include "runtime/gpu/played/host_gpu.h"
#include "tests/gpu/finisher_checks.h"
#include "tests/support/faulty_gpu.h"

namespace gpu_finisher_test {

namespace {

using namespace penstock;
using namespace penstock_test;

constexpr size_t kGpuBytes = size_t{64} << 20;

}  // namespace

TEST_CASE("finished images are the finishing pass's, in every dtype and format, however they are cut into pieces") {
  check_finisher(open_host_gpu(0, kGpuBytes));
}

TEST_CASE("images of a batch may lie in what a GPU exports, beside others that are uploaded") {
  check_exported(open_host_gpu(0, kGpuBytes));
}

// A batch of nine: two from here, four by a link, one from here, and two by it.
struct LinkedBatch {
  LinkedBatch() {
    const std::string id = sender->link_id();
    here = sender->link(id, LinkEnd::sender);
    there = gpu->link(id, LinkEnd::receiver);
    for (size_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(i * 7 % 251);
    parts = {{at(0), 2},
             {.samples = 4, .link = there.get(), .at = 2 * kEach},
             {at(6), 1},
             {.samples = 2, .link = there.get(), .at = 7 * kEach}};
    for (size_t i = 0; i < 9; ++i) finisher.run(at(i), wanted.data() + i * finisher.bytes_per_sample());
  }
  const uint8_t* at(size_t image) const { return images.data() + image * kEach; }
  // As the loader does it: the share is `images`.
  void send(const std::vector<LinkRun>& runs) const {
    for (const LinkRun& one : runs) {
      CHECK(one.link == there.get());
      here->send(reinterpret_cast<const std::byte*>(images.data() + one.run.at), one.run.bytes);
    }
  }

  static constexpr size_t kEach = size_t{3} * 8 * 8;
  Finisher finisher{{.dtype = DType::float32, .scale = true}, 3, 8, 8};
  std::vector<uint8_t> images = std::vector<uint8_t>(9 * kEach);
  std::vector<std::byte> wanted = std::vector<std::byte>(9 * finisher.bytes_per_sample());
  std::vector<std::byte> tensor = std::vector<std::byte>(9 * finisher.bytes_per_sample());
  std::unique_ptr<Gpu> sender = open_host_gpu(1, kGpuBytes);
  std::shared_ptr<Gpu> gpu = open_host_gpu(0, kGpuBytes);
  std::unique_ptr<GpuLink> here;
  std::unique_ptr<GpuLink> there;
  std::vector<RawImages> parts;
};

TEST_CASE("images by a link: what is received is what runs() said, however the batch is cut into pieces") {
  LinkedBatch batch;
  for (const size_t memory_bytes : {size_t{0}, 3 * LinkedBatch::kEach + 2048, size_t{1} << 20}) {
    CAPTURE(memory_bytes);
    GpuFinisher finishing(batch.gpu, batch.finisher, nullptr, {.memory_bytes = memory_bytes});
    const std::vector<LinkRun> runs = finishing.runs(batch.parts);
    size_t bytes = 0;
    for (const LinkRun& one : runs) bytes += one.run.bytes;
    CHECK(bytes == 6 * LinkedBatch::kEach);
    for (int pass = 0; pass < 2; ++pass) {
      std::fill(batch.tensor.begin(), batch.tensor.end(), std::byte{0});
      batch.send(runs);
      finishing.finish(batch.parts, batch.tensor.data());
      finishing.wait();
      CHECK(batch.tensor == batch.wanted);
    }
    CHECK(finishing.figures().linked_bytes == static_cast<int64_t>(2 * bytes));
    CHECK(finishing.figures().uploaded_bytes == static_cast<int64_t>(2 * 3 * LinkedBatch::kEach));
  }
}

TEST_CASE("a link that dies under a batch: an error by name, and the GPU goes on") {
  LinkedBatch batch;
  GpuFinisher finishing(batch.gpu, batch.finisher);
  batch.send({finishing.runs(batch.parts)[0]});
  finishing.finish(batch.parts, batch.tensor.data());
  batch.here.reset();
  CHECK_THROWS_WITH_AS(finishing.wait(), doctest::Contains("the other end"), GpuError);
  CHECK_THROWS_AS(finishing.finish(batch.parts, batch.tensor.data()), GpuError);
  finishing.wait();  // for what was told before that
  finishing.finish(batch.images.data(), 9, batch.tensor.data());
  finishing.wait();
  CHECK(batch.tensor == batch.wanted);
}

// A stream as of a GPU whose sender is dead: it is not done before its links have ended.
TEST_CASE("a stream that hangs for a link's sake is freed by ending the link, in bounded time") {
  LinkedBatch batch;
  class Hanging final : public GpuLink {
   public:
    LinkState state() const override { return ended ? LinkState::failed : LinkState::joined; }
    std::string failure() const override { return why; }
    void send(const std::byte*, size_t) override {}
    void receive(std::byte*, size_t, GpuStream&) override {}
    void end(const std::string& reason) noexcept override {
      ended = true;
      why = reason;
    }
    bool ended = false;
    std::string why;
  } link;
  const auto faults = std::make_shared<GpuFaults>();
  faults->busy = [&link] { return !link.ended; };
  const auto gpu = std::make_shared<FaultyGpu>(open_host_gpu(0, kGpuBytes), faults);
  GpuFinisher finishing(gpu, batch.finisher, nullptr, {.timeout_ns = 20 * kMillisecond});
  finishing.finish({{.samples = 9, .link = &link}}, batch.tensor.data());
  CHECK_THROWS_WITH_AS(finishing.wait(), doctest::Contains("nothing has come by a link"), GpuError);
  CHECK(link.ended);
}

TEST_CASE("a batch is read when the GPU comes to it, so its memory may not go before") {
  const Finisher finisher({.dtype = DType::uint8, .memory_format = MemoryFormat::channels_last}, 3, 2, 2);
  GpuFinisher gpu(open_host_gpu(0, kGpuBytes), finisher);
  std::vector<uint8_t> images(12, 1);
  std::vector<uint8_t> tensor(12, 9);
  gpu.finish(images.data(), 1, tensor.data());
  std::fill(images.begin(), images.end(), 2);  // as a batch buffer that was given back too early
  CHECK(tensor == std::vector<uint8_t>(12, 9));
  gpu.wait();
  CHECK(tensor == std::vector<uint8_t>(12, 2));
}

TEST_CASE("memory is bounded, whatever the batch") {
  const Finisher finisher({.dtype = DType::float32}, 3, 32, 40);
  const GpuFinisher usual(open_host_gpu(0, kGpuBytes), finisher);
  CHECK(usual.memory_bytes() <= GpuFinisherOptions{}.memory_bytes);
  CHECK(usual.memory_bytes() > GpuFinisherOptions{}.memory_bytes * 9 / 10);
  // An image at least.
  const GpuFinisher small(open_host_gpu(0, kGpuBytes), finisher, nullptr, {.memory_bytes = 0});
  CHECK(small.memory_bytes() >= 3 * 32 * 40);
  CHECK(small.memory_bytes() < 3 * 32 * 40 + 8192);
  // And all of it goes back.
  const std::shared_ptr<Gpu> gpu = open_host_gpu(0, size_t{9} << 20);
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(GpuFinisher(gpu, finisher));
}

TEST_CASE("what fails says so by name") {
  const Finisher finisher({.dtype = DType::float16}, 3, 8, 8);
  const auto faults = std::make_shared<GpuFaults>();
  const auto gpu = std::make_shared<FaultyGpu>(open_host_gpu(0, kGpuBytes), faults);
  std::vector<uint8_t> images(size_t{40} * 3 * 8 * 8);
  std::vector<uint16_t> tensor(images.size());
  SUBCASE("too little memory") {
    faults->most_bytes = 1000;
    CHECK_THROWS_WITH_AS(GpuFinisher(gpu, finisher), doctest::Contains("short of memory"), GpuError);
  }
  SUBCASE("any call, from the first to the wait") {
    // Upload of what is constant, and its wait; upload and kernel of three pieces, of 17 at most; and the wait.
    for (int call = 0; call < 9; ++call) {
      CAPTURE(call);
      faults->after(call, GpuFault::failed);
      const auto all = [&] {
        GpuFinisher finishing(gpu, finisher, nullptr, {.memory_bytes = 8000});
        finishing.finish(images.data(), 40, tensor.data());
        finishing.wait();
      };
      CHECK_THROWS_WITH_AS(all(), doctest::Contains("GPU 0 (this CPU): a fault of the test"), GpuError);
    }
    faults->after(9, GpuFault::failed);
    GpuFinisher finishing(gpu, finisher, nullptr, {.memory_bytes = 8000});
    finishing.finish(images.data(), 40, tensor.data());
    CHECK_NOTHROW(finishing.wait());
    faults->after(1'000'000, GpuFault::failed);
  }
  SUBCASE("a tensor that is not aligned") {
    GpuFinisher finishing(gpu, finisher);
    CHECK_THROWS_WITH_AS(finishing.finish(images.data(), 1, reinterpret_cast<std::byte*>(tensor.data()) + 1),
                         doctest::Contains("not aligned"), Error);
  }
  SUBCASE("images of one channel") {
    CHECK_THROWS_WITH_AS(GpuFinisher(gpu, Finisher({.dtype = DType::float32}, 1, 8, 8)),
                         doctest::Contains("three channels"), Error);
  }
}

}  // namespace gpu_finisher_test
