// To whom a loader offers its GPUs' memory, whose chunks it exports there, and what becomes of buffer ranges: without
// GPUs' work, sockets or threads.
#include "runtime/loader/memory_exporter.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/gpu/played/host_gpu.h"
#include "tests/support/link_states.h"

namespace penstock {
namespace {

constexpr PeerId kNear = 4;
constexpr PeerId kFar = 5;  // on another node

class Wire final : public Endpoint {
 public:
  Capabilities capabilities(PeerId peer) const override { return {"test", true, peer == kNear}; }
  void send(PeerId peer, Message message) override {
    const ControlMessage said = decode(message);
    if (const auto* offer = std::get_if<ExportOffered>(&said)) {
      CHECK(offer->linked);
      offers.emplace_back(peer, offer->gpu);
    } else {
      opened.push_back(std::get<LinkOpened>(said));
    }
  }
  void send_with(PeerId peer, Message message, int fd) override {
    const auto offer = std::get<ExportOffered>(decode(message));
    CHECK_FALSE(offer.linked);
    CHECK(SharedMemory::open(duplicate(fd), offer.bytes, SharedMemory::Access::read).size() == offer.bytes);
    offers.emplace_back(peer, offer.gpu);
  }
  void send_chunk(PeerId, Message, ChunkBufferRef, size_t) override {}
  void release(PeerId, uint64_t) override {}
  bool peers_map_arenas() const noexcept override { return false; }
  void register_arena(const Arena&) override {}
  void forget_arena(uint32_t) override {}
  bool poll(Incoming&) override { return false; }
  void collect_fds(std::vector<pollfd>&) const override {}
  bool flush(Nanoseconds) override { return true; }

  std::vector<std::pair<PeerId, int32_t>> offers;
  std::vector<LinkOpened> opened;
};

// Three GPUs, of which the second exports nothing.
class Gpus final : public Executor {
 public:
  Gpus() {
    for (int i = 0; i < 3; ++i) {
      gpus_.push_back(open_host_gpu(i, size_t{1} << 20));
      buffer_ranges_.push_back(i == 1 ? nullptr : std::make_unique<BufferRanges>(*gpus_.back(), 10'000));
    }
  }
  void submit(std::unique_ptr<ChunkWork>) override {}
  std::unique_ptr<ChunkWork> next_done() override { return nullptr; }
  int done_fd() const override { return -1; }
  std::unique_ptr<ChunkWork> withdraw(const LeaseKey&) override { return nullptr; }
  ExecutorFigures figures() const override { return {}; }
  BufferRanges* buffer_ranges(size_t gpu) const noexcept override { return buffer_ranges_[gpu].get(); }
  Gpu& gpu(size_t number) const { return *gpus_[number]; }
  int64_t out() const { return buffer_ranges_[0]->figures().out + buffer_ranges_[2]->figures().out; }

 private:
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<std::unique_ptr<BufferRanges>> buffer_ranges_;
};

struct Desk {
  ChunkWork made_by(size_t gpu, PeerId receiver = kNear) {
    ChunkWork work;
    work.lease.receiver = receiver;
    work.exported = {gpu, gpus.buffer_ranges(gpu)->take(1000, receiver).value()};
    return work;
  }

  explicit Desk(bool links = false)
      : exporter(wire, gpus, {.gpus = 3, .links = links},
                 [this](const std::string& text) { notices.push_back(text); }) {}

  Wire wire;
  Gpus gpus;
  std::vector<std::string> notices;
  MemoryExporter exporter;
};

TEST_CASE("a receiver of this node is offered what there is, once, when a program of its reads images on GPUs") {
  Desk desk;
  CHECK(desk.exporter.gpus_for(kNear, 0) == 0);
  CHECK(desk.exporter.gpus_for(kFar, 7) == 0);
  CHECK(desk.wire.offers.empty());
  for (int i = 0; i < 2; ++i) CHECK(desk.exporter.gpus_for(kNear, 7) == 0);
  CHECK(desk.wire.offers == std::vector<std::pair<PeerId, int32_t>>{{kNear, 0}, {kNear, 2}});
}

TEST_CASE("only a program that has a GPU's memory open gets chunks there") {
  Desk desk;
  (void)desk.exporter.gpus_for(kNear, 7);
  desk.exporter.used(kNear, {2, 7, true});
  CHECK(desk.exporter.gpus_for(kNear, 7) == 0b100);
  CHECK(desk.exporter.gpus_for(kNear, 6) == 0);
  CHECK(desk.exporter.gpus_for(kNear, 8) == 0);
  desk.exporter.used(kNear, {0, 7, true});
  CHECK(desk.exporter.gpus_for(kNear, 7) == 0b101);
  desk.exporter.used(kNear, {2, 7, false});
  CHECK(desk.exporter.gpus_for(kNear, 7) == 0b001);
  for (const int32_t gpu : {-1, 1, 3, 64}) {
    CHECK_THROWS_WITH_AS(desk.exporter.used(kNear, {gpu, 7, true}), doctest::Contains("which exports none"), Error);
    CHECK_THROWS_AS(desk.exporter.back(kNear, {gpu, 1}), Error);
  }
}

TEST_CASE(
    "a buffer range goes with its chunk, and comes back by its receiver's word, not by its death, as programs may live "
    "on") {
  Desk desk;
  const ChunkWork work = desk.made_by(2);
  const auto buffer_range = desk.exporter.export_range(work);
  REQUIRE(buffer_range);
  CHECK(std::tuple(buffer_range->gpu, buffer_range->id, buffer_range->at, buffer_range->bytes) ==
        std::tuple(2, work.exported->buffer_range.id, work.exported->buffer_range.at, uint64_t{1000}));
  desk.exporter.drop(work);  // it is not the loader's any more
  CHECK(desk.gpus.out() == 1);
  SUBCASE("its word") {
    desk.exporter.back(kFar, {2, buffer_range->id});
    CHECK(desk.gpus.out() == 1);
    desk.exporter.back(kNear, {2, buffer_range->id});
  }
  SUBCASE("its death") {
    desk.exporter.used(kNear, {2, 7, true});
    desk.exporter.lost(kNear);
    CHECK(desk.exporter.gpus_for(kNear, 7) == 0);
    CHECK_FALSE(desk.exporter.export_range(desk.made_by(0)));  // of a chunk that was being made for it
    CHECK(desk.gpus.out() == 1);
    return;
  }
  CHECK(desk.gpus.out() == 0);
}

TEST_CASE("a chunk that is not sent leaves nothing behind, and one without a buffer range has none") {
  Desk desk;
  desk.exporter.drop(desk.made_by(0));
  CHECK(desk.gpus.out() == 0);
  CHECK_FALSE(desk.exporter.export_range(ChunkWork()));
  desk.exporter.drop(ChunkWork());
}

TEST_CASE("where no descriptor gets to, memory is offered to be linked, and sent from when it is asked for") {
  Desk desk(true);
  CHECK(desk.exporter.gpus_for(kFar, 7) == 0);
  CHECK(desk.wire.offers == std::vector<std::pair<PeerId, int32_t>>{{kFar, 0}, {kFar, 2}});
  desk.exporter.asked(kFar, LinkAsked{2, 7, "another GPU"});
  REQUIRE(desk.wire.opened.size() == 1);
  CHECK(std::tuple(desk.wire.opened[0].gpu, desk.wire.opened[0].gpu_reader, desk.wire.opened[0].problem) ==
        std::tuple(2, 7, std::string()));
  const std::unique_ptr<Gpu> theirs = open_host_gpu(9, size_t{1} << 20);
  auto theirs_link = theirs->link(desk.wire.opened[0].id, LinkEnd::receiver);
  REQUIRE(penstock_test::after_joining(*theirs_link) == LinkState::joined);
  CHECK(desk.exporter.gpus_for(kFar, 7) == 0);  // it has not said so
  desk.exporter.used(kFar, {2, 7, true});
  CHECK(desk.exporter.gpus_for(kFar, 7) == 0b100);

  const ChunkWork work = desk.made_by(2, kFar);
  for (size_t i = 0; i < 1000; ++i) work.exported->buffer_range.data[i] = static_cast<std::byte>(i);
  const auto buffer_range = desk.exporter.export_range(work);
  REQUIRE(buffer_range);
  const auto stream = theirs->stream();
  std::vector<std::byte> got(30);
  theirs_link->receive(got.data(), 10, *stream);
  theirs_link->receive(got.data() + 10, 20, *stream);
  desk.exporter.asked(kFar, BufferRangesAsked{2, 7, {{buffer_range->at + 500, 10}, {buffer_range->at, 20}}});
  stream->wait(kSecond);
  for (size_t i = 0; i < 10; ++i) CHECK(got[i] == static_cast<std::byte>(500 + i));
  for (size_t i = 0; i < 20; ++i) CHECK(got[10 + i] == static_cast<std::byte>(i));
  for (const MemoryRange run : {MemoryRange{9990, 11}, MemoryRange{~uint64_t{0}, 2}, MemoryRange{10'001, 0}}) {
    const bool inside =
        run.at <= desk.gpus.buffer_ranges(2)->bytes() && run.bytes <= desk.gpus.buffer_ranges(2)->bytes() - run.at;
    if (!inside)
      CHECK_THROWS_WITH_AS(desk.exporter.asked(kFar, BufferRangesAsked{2, 7, {run}}),
                           doctest::Contains("outside the memory"), Error);
  }
  CHECK_THROWS_AS(desk.exporter.asked(kFar, LinkAsked{1, 7, ""}), Error);
  CHECK_THROWS_AS(desk.exporter.asked(kFar, BufferRangesAsked{3, 7, {}}), Error);

  SUBCASE("it says that it reads no more") {
    desk.exporter.used(kFar, {2, 7, false});
    CHECK(desk.exporter.gpus_for(kFar, 7) == 0);
    desk.exporter.asked(kFar, BufferRangesAsked{2, 7, {{0, 10}}});  // on its way then
    CHECK(desk.wire.opened.size() == 1);
  }
  SUBCASE("its link ends: it hears why, and gets images by the host") {
    // more than a socket takes
    desk.exporter.asked(kFar, BufferRangesAsked{2, 7, std::vector<MemoryRange>(200, {0, 10'000})});
    theirs_link.reset();
    penstock_test::wait_until([&] {
      (void)desk.exporter.gpus_for(kFar, 7);
      return desk.wire.opened.size() == 2;
    });
    REQUIRE(desk.wire.opened.size() == 2);
    CHECK(desk.wire.opened[1].id.empty());
    CHECK(desk.wire.opened[1].problem.find("the other end") != std::string::npos);
    CHECK(desk.exporter.gpus_for(kFar, 7) == 0);
    CHECK(desk.notices.size() == 1);
  }
  SUBCASE("its receiver dies") {
    desk.exporter.lost(kFar);
    CHECK(desk.exporter.gpus_for(kFar, 7) == 0);
    CHECK(desk.gpus.out() == 0);
  }
  desk.exporter.end_links();
}

TEST_CASE("no link to the loader's own GPU, and none where there is no library for it") {
  Desk desk(true);
  (void)desk.exporter.gpus_for(kFar, 7);
  desk.exporter.asked(kFar, LinkAsked{2, 7, desk.gpus.gpu(2).identity()});
  REQUIRE(desk.wire.opened.size() == 1);
  CHECK(desk.wire.opened[0].id.empty());
  CHECK(desk.wire.opened[0].problem.find("is the trainer's own") != std::string::npos);
  desk.exporter.asked(kFar, LinkAsked{2, 8, desk.gpus.gpu(2).identity()});
  CHECK(desk.notices.size() == 1);  // people hear it once, programs each
  CHECK(desk.wire.opened.size() == 2);
}

}  // namespace
}  // namespace penstock
