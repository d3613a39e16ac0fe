// How a program finds its receiver: the job's name, its place among the trainers.
#include "runtime/client/attach.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/client/data_loader.h"
#include "runtime/client/embedded_place.h"
#include "tests/support/tiny_dataset.h"

namespace penstock {
namespace {

Job job_at(const std::string& path, const std::string& name = "") {
  Job job;
  job.path = path;
  job.name = name;
  return job;
}

TEST_CASE("a job's name: as it says, or from its path") {
  CHECK(serving_name(job_at("/x/job.yaml", "mine-1.2_b")) == "mine-1.2_b");
  const std::string derived = serving_name(job_at("/nowhere/my job.yaml"));
  CHECK(derived.rfind("my_job-", 0) == 0);
  CHECK(derived.size() == 7 + 12);
  CHECK(derived == serving_name(job_at("/nowhere/../nowhere/./my job.yaml")));
  CHECK(derived != serving_name(job_at("/elsewhere/my job.yaml")));
  CHECK(serving_name(job_at("/n/" + std::string(200, 'x') + ".yaml")).size() <= 64);
  // Any name fits a socket's address.
  CHECK_FALSE(try_connect_abstract(serving_socket(std::string(64, 'x'), 4095)));
  for (const char* bad : {"a/b", "a b", "caf\xc3\xa9", "a@b"}) {
    CHECK_THROWS_AS((void)serving_name(job_at("/x", bad)), Error);
  }
  CHECK_THROWS_AS((void)serving_name(job_at("/x", std::string(65, 'x'))), Error);
  CHECK_THROWS_AS((void)serving_name(job_at("")), Error);
}

TEST_CASE("a program's place: torchrun's variables, or the launcher's") {
  const ProgramPlace torchrun =
      program_place({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"SLURM_PROCID", "3"}});
  CHECK(torchrun.rank == 5);
  CHECK(torchrun.world_size == 8);
  CHECK(torchrun.local_rank == 1);
  const ProgramPlace srun =
      program_place({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "1"}});
  CHECK(srun.rank == 3);
  CHECK(srun.world_size == 4);
  CHECK(srun.local_rank == 1);
  const ProgramPlace nothing = program_place({});
  CHECK_FALSE((nothing.rank || nothing.world_size || nothing.local_rank));
  for (const char* bad : {"x", "-1", "1x", "99999999999"}) CHECK_THROWS_AS((void)program_place({{"RANK", bad}}), Error);
}

TEST_CASE("a program that loads for itself: its arguments, then RANK and WORLD_SIZE; a launcher alone is refused") {
  Job job;
  job.roles.ranks_per_replica = 2;
  const auto place = [&](const DataLoaderOptions& options, const std::map<std::string, std::string>& environment) {
    const EmbeddedOptions embedded = embedded_place(job, options, environment);
    return std::pair{embedded.replicas, embedded.replica};
  };
  const std::map<std::string, std::string> torchrun{{"RANK", "5"}, {"WORLD_SIZE", "8"}};
  const std::map<std::string, std::string> mpirun{{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}};
  DataLoaderOptions told;
  told.num_replicas = 3;
  told.rank = 1;
  CHECK(place({}, {}) == std::pair{1, 0});
  CHECK(place({}, torchrun) == std::pair{4, 2});  // two ranks make a replica
  CHECK(place(told, torchrun) == std::pair{3, 1});
  CHECK(place(told, mpirun) == std::pair{3, 1});
  told.places_are_ranks = true;
  told.num_replicas = 4;
  CHECK(place(told, {}) == std::pair{2, 0});
  told.rank = 4;
  CHECK_THROWS_AS((void)place(told, {}), Error);
  CHECK_THROWS_AS((void)place({}, mpirun), Error);
  CHECK_THROWS_AS((void)place({}, {{"WORLD_SIZE", "2"}}), Error);
  CHECK_THROWS_AS((void)place({}, {{"WORLD_SIZE", "2"}, {"RANK", "2"}}), Error);
  CHECK(place({}, {{"WORLD_SIZE", "1"}}) == std::pair{1, 0});
}

TEST_CASE("attaching where nobody serves ends in trainer.timeout_s, by option as by the environment") {
  const TinyDataset data(10);
  DataLoaderOptions options;
  options.overrides = {"trainer.timeout_s=0.1", "name=nobody" + std::to_string(::getpid())};
  for (const bool by_option : {true, false}) {
    options.attach.reset();
    if (by_option) options.attach = true;
    if (!by_option) ::setenv(kAttachVariable, "1", 1);
    try {
      const DataLoader loader(data.job(), "train", options);
      FAIL("it attached to nobody");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::peer_lost);
      CHECK(error.message().find("nobody serves job 'nobody") != std::string::npos);
      CHECK(error.remedy().find("penstock serve") != std::string::npos);
    }
  }
  // Nobody waits in silence, nor against their will.
  options.overrides[0] = "trainer.timeout_s=3.9";
  std::vector<std::string> received;
  options.on_warning = [&](const std::string& text) { received.push_back(text); };
  CHECK_THROWS_AS(DataLoader(data.job(), "train", options), Error);
  REQUIRE(received.size() == 1);
  CHECK(received[0].find("yet; waiting for `penstock serve " + data.job() + "`, 3.9 s at most") != std::string::npos);
  options.while_waiting = [] { throw 130; };
  CHECK_THROWS_AS(DataLoader(data.job(), "train", options), int);
  options.while_waiting = nullptr;

  options.attach = false;     // comes before the environment
  options.overrides.clear();  // an embedded loader needs its time
  CHECK(DataLoader(data.job(), "train", options).embedded());
  ::unsetenv(kAttachVariable);
}

}  // namespace
}  // namespace penstock
