// What clients hear of the splits that they open, and what people hear of the programs that come and go.
#include "runtime/receiver/open_splits.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/job/job.h"
#include "tests/support/fake_receiver_messenger.h"

namespace penstock::open_splits_test {
namespace {

constexpr int kClient = 7;

std::string split_json() {
  const Job job = parse_job(
      "splits:\n  train:\n    mode: train\n    dataset: {folder: /data}\n    pipeline: [{CenterCrop: {size: 4}}]\n"
      "    batch_size: 4\n",
      "job.yaml");
  return canonical_json(resolve_split(job, "train"));
}

struct Desk {
  template <class T>
  T asked() const {
    return std::get<T>(out.for_coordinator.back());
  }
  template <class T>
  T answered() const {
    CHECK(out.for_clients.back().first == kClient);
    return std::get<T>(out.for_clients.back().second);
  }

  ReceiverOptions options;
  ClientConnections clients;
  FakeReceiverMessenger out;
  OpenSplits splits{options, clients, out};
};

TEST_CASE(
    "a client hears what became of its split: opened, refused by the coordinator, or by its own receiver at once") {
  Desk desk;
  desk.splits.open(kClient, {split_json(), -1, -1});
  const OpenSplit first = desk.asked<OpenSplit>();
  CHECK(desk.out.for_clients.empty());
  SplitOpened opened;
  opened.fingerprint = 5;
  opened.dataset_size = 26;
  opened.split = first.split;
  desk.splits.opened(opened);
  CHECK(desk.answered<ClientOpened>().dataset_size == 26);
  desk.splits.opened(opened);  // said twice
  CHECK(desk.out.for_clients.size() == 1);

  desk.splits.open(kClient, {split_json(), -1, -1});
  const OpenSplit second = desk.asked<OpenSplit>();
  CHECK(second.split != first.split);
  SplitRefused refused;
  refused.error = "no such folder";
  refused.split = second.split;
  desk.splits.refused(refused);
  CHECK(desk.answered<ClientRefused>().error == "no such folder");
  CHECK(desk.splits.of(kClient) == std::vector<int32_t>{first.split});

  desk.splits.open(kClient, {"no split", -1, -1});
  CHECK(desk.out.for_coordinator.size() == 2);
  CHECK(desk.out.for_clients.size() == 3);
  (void)desk.answered<ClientRefused>();
}

TEST_CASE("serving: people hear of programs that attach and go, until all are sent away") {
  Desk desk;
  desk.options.serving = true;
  desk.splits.open(kClient, {split_json(), -1, -1});
  CHECK(desk.out.notices == std::vector<std::string>{"a program attached"});  // it has no process here
  bool ending = false;
  SUBCASE("it goes by itself") {}
  SUBCASE("serving ends") {
    ending = true;
    desk.splits.serving_ends();
  }
  desk.splits.program_changed(0, 4711, false, 0);
  CHECK(desk.asked<ProgramsAt>().living == 0);
  CHECK(desk.out.notices.size() == (ending ? 1 : 2));
  if (!ending) CHECK(desk.out.notices[1] == "process 4711 is gone");
}

}  // namespace
}  // namespace penstock::open_splits_test
