// Which batch buffers an iteration reserves, what next() is answered, and whose batch buffers are whose: without
// threads, sockets or clocks.
#include "runtime/receiver/iterations.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/fake_receiver_messenger.h"
#include "tests/support/temporary_folder.h"

namespace penstock::iterations_test {
namespace {

constexpr int kClient = 7;
constexpr PeerId kLoader = 1;
constexpr int64_t kSamples = 26;  // seven batches of four, the last one short

std::string split_json() {
  const Job job = parse_job(
      "splits:\n  train:\n    mode: train\n    dataset: {folder: /data}\n    pipeline: [{CenterCrop: {size: 4}}]\n"
      "    batch_size: 4\n    drop_last: false\n",
      "job.yaml");
  return canonical_json(resolve_split(job, "train"));
}

struct Desk {
  explicit Desk(int prefetch = 2, int hold = 0, bool on_gpus = false) {
    options.prefetch = prefetch;
    options.hold = hold;
    out.look = [this](int connection, const ClientMessage& m, int fd) {
      CHECK(connection == kClient);
      const auto* const exported = std::get_if<ClientExport>(&m);
      const auto* const iteration = std::get_if<ClientIteration>(&m);
      CHECK((fd >= 0) ==
            ((exported != nullptr && !exported->linked) || (iteration != nullptr && iteration->with_memory)));
      if (iteration != nullptr && fd >= 0) {
        pools[iteration->pool] = SharedMemory::open(
            duplicate(fd), iteration->batch_buffer_bytes * static_cast<size_t>(iteration->batch_buffers),
            SharedMemory::Access::read);
      }
    };
    splits.open(kClient, {split_json(), -1, -1, on_gpus, on_gpus, 300 * kSecond});
    REQUIRE(splits.find_opened(1) == nullptr);  // the dataset's size is not known
    SplitOpened opened;
    opened.fingerprint = 5;
    opened.dataset_size = kSamples;
    opened.split = 1;
    splits.opened(opened);
    REQUIRE(splits.find_opened(1) != nullptr);
    told<OpenSplit>();
    REQUIRE(received<ClientOpened>().size() == 1);
  }

  // All messages of one kind that were said since the last look.
  template <class T, class M>
  static bool take(const M& message, std::vector<T>& found) {
    const T* wanted = std::get_if<T>(&message);
    if (wanted != nullptr) found.push_back(*wanted);
    return wanted != nullptr;
  }
  template <class T>
  std::vector<T> told() {
    std::vector<T> found;
    std::erase_if(out.for_coordinator, [&](const ControlMessage& m) { return take(m, found); });
    return found;
  }
  template <class T>
  std::vector<T> received() {
    std::vector<T> found;
    std::erase_if(out.for_clients, [&](const auto& item) { return take(item.second, found); });
    return found;
  }
  std::vector<int64_t> reserved() {
    std::vector<int64_t> steps;
    for (const BatchBufferFree& batch_buffer : told<BatchBufferFree>()) steps.push_back(batch_buffer.step);
    return steps;
  }

  ClientIteration begin(int64_t step = 0) {
    iterations.begin(kClient, {1, 0, step, {}});
    const ClientIteration iteration = received<ClientIteration>().at(0);
    iterations.ready({iteration.iteration, 4});
    return iteration;
  }
  // The whole of a step's batch; false: dropped. `buffer_range`: the number of that of a GPU's memory which has its
  // images, too.
  bool make(uint64_t iteration, int64_t step, uint64_t buffer_range = 0, bool nowhere_else = false) {
    ChunkHeader header;
    header.lease = {iteration, step, 0, 1};
    header.fingerprint = 5;
    header.samples = static_cast<int32_t>(std::min<int64_t>(4, kSamples - 4 * step));
    const FieldLayout layout =
        payload_layout(splits.at(1).raw_fields, header.samples, nowhere_else ? header.samples : 0);
    header.payload_bytes = layout.total_bytes;
    if (buffer_range > 0)
      header.buffer_range = {0, buffer_range, 64 * buffer_range, static_cast<uint64_t>(header.samples) * 48};
    const Message payload(layout.total_bytes, std::byte{9});
    std::vector<SampleRecord> records(static_cast<size_t>(header.samples));
    for (SampleRecord& one : records) {
      one.on_gpu = buffer_range > 0;
      if (nowhere_else) one.pixel_hash = Sum128{5, 6};
    }
    if (!iterations.take(header, records, {kLoader, {}, payload, 0})) return false;
    iterations.serve(iteration);
    return true;
  }
  // Some of step 0's rows as a chunk, whatever their order; each image is of bytes of its row's number.
  bool make_rows(uint64_t iteration, int32_t chunk, const std::vector<int64_t>& rows, int64_t position_of_row0 = 0,
                 uint64_t buffer_range = 0) {
    ChunkHeader header;
    header.lease = {iteration, 0, chunk, 1};
    header.fingerprint = 5;
    header.samples = static_cast<int32_t>(rows.size());
    header.first_row = static_cast<int32_t>(rows.front());
    const FieldLayout layout = payload_layout(splits.at(1).raw_fields, header.samples, 0);
    header.payload_bytes = layout.total_bytes;
    if (buffer_range > 0) header.buffer_range = {0, buffer_range, 64 * buffer_range, rows.size() * 48};
    Message payload(layout.total_bytes, std::byte{0});
    std::vector<SampleRecord> records(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      records[i].planned.position = position_of_row0 + rows[i];
      records[i].index = 100 + rows[i];
      records[i].on_gpu = buffer_range > 0;
      std::fill_n(payload.begin() + static_cast<std::ptrdiff_t>(layout.offsets[0] + i * 48), 48,
                  static_cast<std::byte>(rows[i] + 1));
    }
    return iterations.take(header, records, {kLoader, {}, payload, 0});
  }
  ClientBatch batch(uint64_t iteration, int64_t step, uint64_t buffer_range = 0) {
    iterations.next(kClient, {iteration});
    REQUIRE(make(iteration, step, buffer_range));
    const auto batches = received<ClientBatch>();
    REQUIRE(batches.size() == 1);
    CHECK(batches[0].step == step);
    return batches[0];
  }

  // A loader's GPU exports memory, and the client has it open.
  int32_t share_memory() {
    exports.offered(kLoader, {0, 4096}, duplicate(SharedMemory::create("penstock-test", 4096).fd()));
    const int32_t exported = received<ClientExport>().at(0).exported;
    exports.used(kClient, {exported, true});
    out.for_ranks.clear();
    return exported;
  }
  // The same, by a link.
  int32_t link_memory() {
    exports.offered(kLoader, {0, 4096, true}, UniqueFd());
    const int32_t exported = received<ClientExport>().at(0).exported;
    exports.used(kClient, {exported, true});
    out.for_ranks.clear();
    return exported;
  }
  // Buffer ranges that went back to loaders since the last look.
  std::vector<uint64_t> given_back() {
    std::vector<uint64_t> ids;
    for (const auto& [loader, message] : out.for_ranks) {
      CHECK(loader == kLoader);
      ids.push_back(std::get<BufferRangeReturned>(message).id);
    }
    out.for_ranks.clear();
    return ids;
  }
  // The first byte of the first sample's image in the batch buffer: 9, as every loader's byte is here, or 0, where nothing was
  // written.
  int first_byte(const ClientBatch& batch) const {
    const BatchBufferLayout layout = batch_buffer_layout(splits.at(1).fields, 4);
    return static_cast<int>(
        pools.at(batch.pool).data()[static_cast<size_t>(batch.batch_buffer) * layout.total_bytes + layout.fields[0]]);
  }

  std::map<int32_t, SharedMemory> pools;
  ReceiverOptions options;
  ManualClock clock;
  ClientConnections clients;
  FakeReceiverMessenger out;
  OpenSplits splits{options, clients, out};
  ExportRegistry exports{out};
  ReceiverStatistics statistics;
  Iterations iterations{options, clock, splits, exports, statistics, out};
};

using Steps = std::vector<int64_t>;

TEST_CASE("of a client that hangs up it is known whether it has waited for a batch in vain") {
  Desk desk;
  const ClientIteration iteration = desk.begin();
  desk.clock.advance(400 * kSecond);
  CHECK(desk.iterations.waited_in_vain(kClient) == "");  // it asks for none
  desk.iterations.next(kClient, {iteration.iteration});
  desk.clock.advance(200 * kSecond);
  CHECK(desk.iterations.waited_in_vain(kClient) == "");
  desk.clock.advance(100 * kSecond - kMillisecond);
  CHECK(desk.iterations.waited_in_vain(kClient) ==
        "no batch of split 'train' came within 300 s (trainer.timeout_s, or its program's timeout)");
  CHECK(desk.iterations.waited_in_vain(kClient, iteration.iteration) != "");
  CHECK(desk.iterations.waited_in_vain(kClient, iteration.iteration + 1) == "");  // the one that ends has not waited
  CHECK(desk.iterations.waited_in_vain(kClient + 1) == "");
  REQUIRE(desk.make(iteration.iteration, 0));
  CHECK(desk.iterations.waited_in_vain(kClient) == "");
}

TEST_CASE("a batch that comes when its client has given up does not hide why, until the client asks for another") {
  Desk desk;
  const ClientIteration iteration = desk.begin();
  desk.iterations.next(kClient, {iteration.iteration});
  desk.clock.advance(301 * kSecond);
  REQUIRE(desk.make(iteration.iteration, 0));
  CHECK(desk.iterations.waited_in_vain(kClient).starts_with("no batch of split 'train' came within 300 s"));
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.iterations.waited_in_vain(kClient) == "");
}

TEST_CASE("prefetch batches are reserved ahead of the client, and one more while it waits") {
  Desk desk;
  const ClientIteration iteration = desk.begin();
  CHECK(iteration.batch_buffers == 3);
  CHECK(desk.reserved() == Steps{0, 1});
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.reserved() == Steps{2});
  CHECK(desk.make(iteration.iteration, 1));
  CHECK(desk.out.for_clients.empty());  // step 1 is whole, step 0 is asked for
  CHECK(desk.make(iteration.iteration, 0));
  const ClientBatch first = desk.received<ClientBatch>().at(0);
  CHECK(first.step == 0);
  CHECK(desk.reserved().empty());
  CHECK_FALSE(desk.make(iteration.iteration, 0));  // late: the batch buffer is the program's
  desk.iterations.release(kClient, {first.pool, first.batch_buffer});
  desk.iterations.release(kClient, {first.pool, first.batch_buffer});  // twice: the first one counted
  CHECK(desk.reserved().empty());                                      // 1 and 2 are ahead
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.received<ClientBatch>().at(0).step == 1);
  CHECK(desk.reserved() == Steps{3});
  CHECK(desk.statistics.figures().batches == 2);
  CHECK(desk.statistics.figures().step == 2);
}

TEST_CASE("while batch buffers of many megabytes are taken, others hear that this rank lives") {
  Desk desk(2, 60'000);
  const ClientIteration iteration = desk.begin();
  const uint64_t bytes = iteration.batch_buffer_bytes * static_cast<uint64_t>(iteration.batch_buffers);
  REQUIRE(bytes > uint64_t{40} << 20);
  CHECK(desk.out.signs_of_life >= static_cast<int>(bytes >> 25));
  Desk small;
  (void)small.begin();
  CHECK(small.out.signs_of_life == 0);
}

TEST_CASE("chunks of rows that do not follow each other come together to a batch, each row once") {
  Desk desk;
  desk.iterations.begin(kClient, {1, 0, 0, {}});
  const ClientIteration iteration = desk.received<ClientIteration>().at(0);
  desk.iterations.ready({iteration.iteration, 2, true});
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.make_rows(iteration.iteration, 3, {1, 3}));
  CHECK_FALSE(desk.make_rows(iteration.iteration, 3, {1, 3}));  // late
  const auto refused = [&](int32_t chunk, const std::vector<int64_t>& rows, int64_t position_of_row0 = 0) {
    CHECK_THROWS_WITH_AS(desk.make_rows(iteration.iteration, chunk, rows, position_of_row0),
                         doctest::Contains("does not fit its lease"), Error);
  };
  refused(1, {0, 1});      // row 1 is there
  refused(1, {2, 0});      // not in order
  refused(1, {0, 0});      // twice
  refused(1, {0, 2, 3});   // more than a chunk has
  refused(1, {0, 4});      // of the next batch
  refused(1, {0, 2}, -4);  // of none
  refused(4, {0});         // more chunks than samples
  desk.iterations.serve(iteration.iteration);
  CHECK(desk.received<ClientBatch>().empty());
  CHECK(desk.make_rows(iteration.iteration, 0, {0}));
  CHECK(desk.make_rows(iteration.iteration, 2, {2}));
  desk.iterations.serve(iteration.iteration);
  const ClientBatch batch = desk.received<ClientBatch>().at(0);
  const BatchBufferLayout layout = batch_buffer_layout(desk.splits.at(1).fields, 4);
  const std::byte* data =
      desk.pools.at(batch.pool).data() + static_cast<size_t>(batch.batch_buffer) * layout.total_bytes;
  for (int64_t row = 0; row < 4; ++row) {
    int64_t index = 0;
    std::memcpy(&index, data + layout.indices + row * 8, 8);
    CHECK(index == 100 + row);
    CHECK(std::to_integer<int64_t>(data[layout.fields[0] + static_cast<size_t>(row) * 48]) == row + 1);
  }
}

TEST_CASE("images that stay on a GPU are told of by rows, where those do not follow each other") {
  Desk desk(2, 0, true);
  desk.iterations.begin(kClient, {1, 0, 0, {}});
  const ClientIteration iteration = desk.received<ClientIteration>().at(0);
  const int32_t exported = desk.share_memory();
  desk.iterations.ready({iteration.iteration, 3, true});
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.make_rows(iteration.iteration, 0, {0, 2, 3}, 0, 1));
  CHECK(desk.make_rows(iteration.iteration, 1, {1}, 0, 8));
  desk.iterations.serve(iteration.iteration);
  const ClientBatch batch = desk.received<ClientBatch>().at(0);
  CHECK(batch.buffer_ranges == std::vector<ClientBufferRange>{
                                   {exported, 0, 1, 64, 48}, {exported, 2, 2, 64 + 48, 96}, {exported, 1, 1, 512, 48}});
}

TEST_CASE("a program that holds all batches hears so once, and has the next when one is back") {
  Desk desk(1, 0);
  const ClientIteration iteration = desk.begin();
  std::vector<ClientBatch> held;
  for (int64_t step = 0; step < 3; ++step) held.push_back(desk.batch(iteration.iteration, step));
  desk.reserved();
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.received<ClientNotice>().at(0).held_iteration == iteration.iteration);
  desk.iterations.serve(iteration.iteration);
  CHECK(desk.out.for_clients.empty());
  CHECK(desk.out.notices.size() == 1);
  desk.iterations.release(kClient, {held[1].pool, held[1].batch_buffer});
  CHECK(desk.reserved() == Steps{3});
  CHECK(desk.make(iteration.iteration, 3));
  CHECK(desk.received<ClientBatch>().at(0).batch_buffer == held[1].batch_buffer);
}

TEST_CASE("the end and a failure are the answers to every further next()") {
  Desk desk;
  const ClientIteration last = desk.begin(6);
  CHECK(desk.batch(last.iteration, 6).samples == 2);
  const ClientIteration other = desk.begin();
  desk.iterations.next(kClient, {other.iteration});
  desk.iterations.failed({other.iteration, 3, "no loader is left", ""});
  CHECK(desk.received<ClientFailed>().at(0).error == "no loader is left");
  for (int again = 0; again < 2; ++again) {
    desk.iterations.next(kClient, {last.iteration});
    CHECK(desk.received<ClientEnd>().at(0).iteration == last.iteration);
    desk.iterations.next(kClient, {other.iteration});
    CHECK(desk.received<ClientFailed>().at(0).iteration == other.iteration);
  }
  desk.iterations.stop(kClient, {other.iteration});
  desk.iterations.next(kClient, {other.iteration});
  CHECK(desk.received<ClientFailed>().at(0).error == "this iteration has ended");
  CHECK_THROWS_AS(desk.iterations.begin(kClient, {1, 0, 8, {}}), Error);
}

TEST_CASE("a batch that cannot be dumped is a failure of its iteration, and the next iteration dumps it") {
  const TemporaryFolder folder;
  folder.write("dump", "no folder");
  const std::string blocked = folder.path("dump");
  Desk desk;
  desk.options.dump_folder = blocked;
  const ClientIteration iteration = desk.begin();
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.make(iteration.iteration, 0));
  for (int again = 0; again < 2; ++again) {
    const ClientFailed failed = desk.received<ClientFailed>().at(0);
    CHECK(failed.iteration == iteration.iteration);
    CHECK(failed.error.find("cannot make the folder '" + blocked + "/train_e0'") == 0);
    desk.iterations.next(kClient, {iteration.iteration});
  }
  CHECK(desk.statistics.figures().batches == 0);
  std::filesystem::remove(blocked);
  const ClientIteration other = desk.begin();
  CHECK(desk.batch(other.iteration, 0).samples == 4);
  CHECK(std::filesystem::exists(blocked + "/train_e0"));
}

TEST_CASE("iterations side by side have pools of their own; one that is over leaves its pool, but not what is held") {
  Desk desk;
  const ClientIteration first = desk.begin();
  const ClientIteration beside = desk.begin();
  CHECK(first.pool != beside.pool);
  const ClientBatch held = desk.batch(first.iteration, 0);
  desk.iterations.stop(kClient, {first.iteration});
  CHECK(desk.told<CloseLeaseStream>().at(0).lease_stream == first.iteration);
  CHECK_FALSE(desk.make(first.iteration, 1));
  desk.reserved();
  const ClientIteration next = desk.begin();
  CHECK(next.pool == first.pool);
  CHECK(next.iteration != first.iteration);
  CHECK_FALSE(next.with_memory);  // the client has it
  CHECK(desk.reserved() == Steps{0, 1});
  desk.iterations.next(kClient, {next.iteration});
  CHECK(desk.reserved().empty());  // the third batch buffer is held
  desk.iterations.release(kClient, {held.pool, held.batch_buffer});
  CHECK(desk.reserved() == Steps{2});
  CHECK(desk.iterations.open_ranges().size() == 2);
}

TEST_CASE("images that stay on a loader's GPU are told of, and go back to it with their batch buffer") {
  Desk desk(2, 0, true);
  const ClientIteration iteration = desk.begin();
  CHECK(desk.told<OpenLeaseStream>().at(0).gpu_reader == kClient);
  const int32_t exported = desk.share_memory();
  const ClientBatch first = desk.batch(iteration.iteration, 0, 11);
  REQUIRE(first.buffer_ranges.size() == 1);
  CHECK(first.buffer_ranges[0] == ClientBufferRange{exported, 0, 4, 64 * 11, 4 * 48});
  CHECK(desk.first_byte(first) == 0);
  CHECK(desk.given_back().empty());
  desk.iterations.release(kClient, {first.pool, first.batch_buffer});
  CHECK(desk.given_back() == std::vector<uint64_t>{11});
  desk.iterations.release(kClient, {first.pool, first.batch_buffer});
  CHECK(desk.given_back().empty());
  CHECK(desk.statistics.to_json({})["images_on_gpus"] == 4);
  // The same chunk again, from somebody who was taken for lost; and one for nobody.
  CHECK_FALSE(desk.make(iteration.iteration, 0, 12));
  CHECK_FALSE(desk.make(iteration.iteration + 1, 0, 13));
  CHECK(desk.given_back() == std::vector<uint64_t>{12, 13});
  // An iteration that is over: what was ready for it.
  CHECK(desk.make(iteration.iteration, 1, 14));
  CHECK(desk.make(iteration.iteration, 2, 15));
  CHECK(desk.given_back().empty());
  desk.iterations.stop(kClient, {iteration.iteration});
  CHECK(desk.given_back() == std::vector<uint64_t>{14, 15});
}

TEST_CASE(
    "where the client does not read them on a GPU, images are in the batch buffer, and the buffer range goes back at "
    "once") {
  Desk desk(2, 0, true);
  const ClientIteration iteration = desk.begin();
  uint64_t buffer_range = 1;
  const auto by_the_host = [&](int64_t step) {
    const ClientBatch batch = desk.batch(iteration.iteration, step, ++buffer_range);
    CHECK(batch.buffer_ranges.empty());
    CHECK(desk.first_byte(batch) == 9);
    CHECK(desk.given_back() == std::vector<uint64_t>{buffer_range});
    desk.iterations.release(kClient, {batch.pool, batch.batch_buffer});
    CHECK(desk.given_back().empty());
  };
  const int32_t exported = desk.share_memory();
  desk.exports.used(kClient, {exported, false});
  CHECK_FALSE(std::get<ExportUsed>(desk.out.for_ranks.at(0).second).used);
  desk.out.for_ranks.clear();
  by_the_host(0);
  by_the_host(1);
  desk.exports.used(kClient, {exported, true});
  desk.out.for_ranks.clear();
  const ClientBatch batch = desk.batch(iteration.iteration, 2, 60);
  CHECK(batch.buffer_ranges.size() == 1);
  CHECK(desk.first_byte(batch) == 0);
  // The batch buffer of a batch with a chunk of each kind has been used by both.
  desk.iterations.release(kClient, {batch.pool, batch.batch_buffer});
  desk.out.for_ranks.clear();
  desk.exports.loader_lost(kLoader);
  by_the_host(3);
}

TEST_CASE("images that are nowhere else: their GPU's hash counts, and a chunk that nobody can read is none") {
  Desk desk(2, 0, true);
  const ClientIteration iteration = desk.begin();
  const int32_t exported = desk.share_memory();
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.make(iteration.iteration, 0, 3, true));
  CHECK(desk.received<ClientBatch>().at(0).buffer_ranges.size() == 1);
  CHECK(desk.statistics.client_json(kClient, desk.iterations.open_ranges())["train"]["pixel_hash"] ==
        (Sum128{20, 24}).hex());
  // A client that has just given up reading them gets them all the same, as they were made before it said so.
  desk.exports.used(kClient, {exported, false});
  desk.out.for_ranks.clear();
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.make(iteration.iteration, 1, 4, true));
  CHECK(desk.received<ClientBatch>().at(0).buffer_ranges.size() == 1);
  CHECK(desk.given_back().empty());
  // Its loader was given up: another one makes the chunk.
  desk.exports.loader_lost(kLoader);
  CHECK_FALSE(desk.make(iteration.iteration, 2, 5, true));
  CHECK(desk.given_back() == std::vector<uint64_t>{5});
}

TEST_CASE("a job that dumps its batches has all images in their batch buffers") {
  const TemporaryFolder folder;
  Desk desk(2, 0, true);
  desk.options.dump_folder = folder.path();
  const ClientIteration iteration = desk.begin();
  CHECK(desk.told<OpenLeaseStream>().at(0).gpu_reader == 0);
  desk.exports.offered(kLoader, {0, 4096}, duplicate(SharedMemory::create("penstock-test", 4096).fd()));
  CHECK(desk.received<ClientExport>().empty());
  CHECK(desk.first_byte(desk.batch(iteration.iteration, 0, 5)) == 9);
  CHECK(desk.given_back() == std::vector<uint64_t>{5});
}

TEST_CASE("a client that goes takes its iterations, pools and splits along") {
  Desk desk;
  const ClientIteration iteration = desk.begin();
  const ClientBatch held = desk.batch(iteration.iteration, 0);
  desk.iterations.stop_all_of(kClient);
  CHECK(desk.splits.of(kClient) == std::vector<int32_t>{1});
  desk.iterations.split_closed(1);
  desk.splits.close(1);
  CHECK(desk.told<SplitClosed>().at(0).fingerprint == 5);
  CHECK(desk.splits.of(kClient).empty());
  desk.iterations.release(kClient, {held.pool, held.batch_buffer});  // of a pool that is gone: nothing
  CHECK(desk.iterations.open_ranges().empty());
  CHECK(desk.statistics.to_json({})["splits"]["train"]["ranges"].size() == 1);
  desk.splits.open(kClient, {split_json(), -1, -1});
  const OpenSplit again = desk.told<OpenSplit>().at(0);
  CHECK(again.split == 2);
  CHECK(again.opening == 1);
}

TEST_CASE(
    "images that were on a lost loader's GPU, linked to: what is not delivered is made again, by another lease "
    "stream") {
  Desk desk(2, 1, true);
  const ClientIteration iteration = desk.begin();
  desk.link_memory();
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.make(iteration.iteration, 0, 3, true));
  const ClientBatch delivered = desk.received<ClientBatch>().at(0);
  CHECK(desk.make(iteration.iteration, 1, 4, true));  // ready, and not delivered
  desk.reserved();
  desk.told<CursorAt>();
  desk.told<OpenLeaseStream>();

  bool by_loss = false;
  SUBCASE("the loader is lost") {
    by_loss = true;
    desk.exports.loader_lost(kLoader);
    desk.iterations.loader_lost(kLoader);
    CHECK(desk.given_back() == std::vector<uint64_t>{4});
  }
  SUBCASE("its link has ended, and a chunk comes that is nowhere else") {
    desk.exports.used(kClient, {1, false});
    desk.out.for_ranks.clear();
    CHECK_FALSE(desk.make(iteration.iteration, 2, 5, true));
    CHECK(desk.given_back() == std::vector<uint64_t>{4, 5});
  }
  CHECK(desk.told<CloseLeaseStream>().at(0).lease_stream == iteration.iteration);
  const OpenLeaseStream again = desk.told<OpenLeaseStream>().at(0);
  CHECK(again.first_step == 1);
  CHECK(again.again);  // no beginning, which other replicas would be compared with
  CHECK(again.lease_stream != iteration.iteration);
  CHECK(again.gpu_reader == kClient);
  desk.iterations.ready({again.lease_stream, 4});
  CHECK(desk.reserved() == Steps{1, 2});
  // The client knows the first number alone; chunks of that lease stream are nobody's any more.
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.told<CursorAt>().back().lease_stream == again.lease_stream);
  CHECK_FALSE(desk.make(iteration.iteration, 1));
  CHECK(desk.make(again.lease_stream, 1));
  const auto batches = desk.received<ClientBatch>();
  REQUIRE(batches.size() == 1);
  CHECK(batches[0].iteration == iteration.iteration);
  CHECK(batches[0].step == 1);
  CHECK(desk.first_byte(batches[0]) == 9);
  desk.iterations.failed({again.lease_stream, 3, "no loader is left", ""});
  desk.iterations.next(kClient, {iteration.iteration});
  CHECK(desk.received<ClientFailed>().at(0).iteration == iteration.iteration);
  desk.out.for_ranks.clear();
  desk.iterations.release(kClient, {delivered.pool, delivered.batch_buffer});
  CHECK(desk.given_back() == std::vector<uint64_t>{3});
  desk.iterations.stop(kClient, {iteration.iteration});
  CHECK(desk.told<CloseLeaseStream>().at(0).lease_stream == again.lease_stream);
  // Batches that came by the host, or of another loader, are not made again.
  if (by_loss) {
    const ClientIteration next = desk.begin();
    CHECK(desk.make(next.iteration, 0));
    desk.iterations.loader_lost(kLoader);
    CHECK(desk.told<CloseLeaseStream>().empty());
  }
}

TEST_CASE(
    "a client that hangs up while it holds a batch may read it still: its buffer ranges go back with its program") {
  Desk desk(2, 0, true);
  const ClientIteration iteration = desk.begin();
  (void)desk.share_memory();
  (void)desk.batch(iteration.iteration, 0, 11);
  CHECK(desk.make(iteration.iteration, 1, 12));  // it has not seen this one
  desk.iterations.stop_all_of(kClient);
  CHECK(desk.given_back() == std::vector<uint64_t>{12});
  desk.iterations.split_closed(1);
  CHECK(desk.given_back().empty());
  desk.exports.program_ended(0);  // as the clients of this desk have no processes
  CHECK(desk.given_back() == std::vector<uint64_t>{11});
}

TEST_CASE("images left on a GPU for a client that never asked for them") {
  Desk desk;
  const ClientIteration iteration = desk.begin();
  CHECK_THROWS_WITH_AS(desk.make(iteration.iteration, 0, 3, true), doctest::Contains("which nobody asked for"), Error);
}

TEST_CASE("records that say what cannot be are a peer's fault") {
  Desk desk(2, 0, true);
  const ClientIteration iteration = desk.begin();
  (void)desk.share_memory();
  ChunkHeader header;
  header.lease = {iteration.iteration, 0, 0, 1};
  header.fingerprint = 5;
  header.samples = 4;
  const FieldTable& fields = desk.splits.at(1).raw_fields;
  std::vector<SampleRecord> records(4);
  records[2].pixel_hash = Sum128{5, 6};  // hashed on a GPU, and on none
  const char* why = "does not fit";
  Message payload;
  SUBCASE("with its bytes") {
    payload.resize(chunk_layout(fields, 4).total_bytes);
    header.buffer_range = {0, 3, 64, 4 * 48};
  }
  SUBCASE("elsewhere, without a buffer range that says where") {
    records[2].on_gpu = true;
    payload.resize(payload_layout(fields, 4, 1).total_bytes);
    why = "says not where";
  }
  SUBCASE("in memory that nobody offered") {
    for (SampleRecord& one : records) one = SampleRecord{.on_gpu = true};
    payload.resize(chunk_layout(fields, 4).total_bytes);
    header.buffer_range = {1, 3, 64, 4 * 48};
    why = "does not export";
  }
  header.payload_bytes = payload.size();
  CHECK_THROWS_WITH_AS(desk.iterations.take(header, records, {kLoader, {}, payload, 0}), doctest::Contains(why), Error);
}

}  // namespace
}  // namespace penstock::iterations_test
