// What is decided before anything starts: launcher, roles, cores, variables. All pure, but for reading the topology.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "runtime/base/error.h"
#include "runtime/process/descriptor_limit.h"
#include "runtime/process/environment.h"
#include "runtime/process/launcher.h"
#include "runtime/process/placement.h"

using namespace penstock;

namespace {

template <class Assign>
std::string refusal_of(ErrorKind kind, const Assign& assign) {
  try {
    assign();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    CHECK_FALSE(error.remedy().empty());
    return error.what();
  }
  return "no error";
}

std::string error_of(const std::vector<RankInfo>& ranks, int trainers, ErrorKind kind) {
  return refusal_of(kind, [&] { assign_roles(ranks, trainers); });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE(
    "descriptors: a soft limit is raised as far as needed, a hard one is an error, and a higher one is left alone") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(before.rlim_max >= 100);
  const rlimit few{64, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto soft = [] {
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    return now.rlim_cur;
  };
  allow_descriptors(40, "this job");
  CHECK(soft() == 64);
  allow_descriptors(90, "this job");
  CHECK(soft() == 90);
  if (before.rlim_max < 1'000'000'000) {
    const std::string said = refusal_of(ErrorKind::runtime, [] { allow_descriptors(2'000'000'000, "this job"); });
    CHECK(contains(said, "this job needs 2000000000 open files"));
    CHECK(contains(said, "ulimit -n"));
    CHECK(soft() == 90);
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("the launcher, by its variables") {
  CHECK(detect_launcher({}).kind == LauncherKind::none);
  CHECK_FALSE(detect_launcher({{"RANK", "1"}, {"WORLD_SIZE", "4"}}).many_tasks());

  const auto mpirun = detect_launcher({{"OMPI_COMM_WORLD_SIZE", "6"},
                                       {"OMPI_COMM_WORLD_RANK", "4"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                       {"PMIX_RANK", "4"},
                                       {"SLURM_PROCID", "0"}});
  CHECK(mpirun.kind == LauncherKind::open_mpi);
  CHECK(mpirun.world_size == 6);
  CHECK(mpirun.rank == 4);
  CHECK(mpirun.local_rank == 1);
  CHECK(mpirun.many_tasks());
  CHECK_FALSE(detect_launcher({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}).many_tasks());

  const auto mpich = detect_launcher({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  CHECK(mpich.kind == LauncherKind::pmi);
  CHECK(mpich.rank == 1);

  const auto srun = detect_launcher({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "3"}});
  CHECK(srun.kind == LauncherKind::slurm);
  CHECK(srun.world_size == 8);
  CHECK(srun.local_rank == 3);
  // In a batch script, before any srun: one process.
  CHECK_FALSE(detect_launcher({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}).many_tasks());
  CHECK_FALSE(detect_launcher({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}).many_tasks());
  CHECK(detect_launcher({{"PMIX_RANK", "0"}}).many_tasks());  // how many, it does not say
  CHECK(detect_launcher({{"OMPI_COMM_WORLD_SIZE", "six"}}).kind == LauncherKind::none);
}

// What Open MPI 4.1 sets in a process that nobody launched, when that calls MPI_Init.
TEST_CASE("a world of one process is no launcher's, nor are the processes that it starts") {
  using Variables = std::map<std::string, std::string>;
  const Variables began{{"HOME", "/root"}, {"PATH", "/bin"}};
  const Variables later{{"HOME", "/root"}, {"PATH", "/bin:/opt"}, {"PMIX_NAMESPACE", "1"}, {"PMIX_RANK", "0"}};
  const std::string first("HOME=/root\0PATH=/bin\0", 21);
  CHECK(detect_launcher(later).many_tasks());
  CHECK_FALSE(detect_launcher(without_later_pmix(later, first)).many_tasks());
  CHECK(without_later_pmix(later, first) == Variables{{"HOME", "/root"}, {"PATH", "/bin:/opt"}});
  Variables inherited = later;
  inherited["OMPI_MCA_ess"] = "singleton";
  CHECK_FALSE(detect_launcher(inherited).many_tasks());
  inherited["OMPI_COMM_WORLD_SIZE"] = "2";  // mpirun's words stand above it
  CHECK(detect_launcher(inherited).many_tasks());
  // A task that a PMIx launcher started stays one, ...
  CHECK(without_later_pmix(later, first + std::string("PMIX_RANK=0\0PMIX_NAMESPACE=1\0", 29)) == later);
  // ... also where nobody can say any more what the process began with.
  for (const std::string& title :
       {std::string(), std::string(21, '\0'), std::string("python train.py --lr=1\0\0\0", 25),
        std::string("train.py\0PATH=/bin\0", 19), std::string("ps=1\0PATH=/bin\0", 15)}) {
    CAPTURE(title);
    CHECK(without_later_pmix(later, title) == later);
  }
}

TEST_CASE("trainers come first on each node, and rank 0 is trainer 0") {
  // mpirun --map-by slot over two nodes of three.
  const auto members = assign_roles({{"a", 0}, {"a", 1}, {"a", 2}, {"b", 0}, {"b", 1}, {"b", 2}}, 2);
  REQUIRE(members.size() == 6);
  std::string roles;
  for (const Member& m : members) roles += (m.role == Role::trainer ? "t" : "l") + std::to_string(m.number) + " ";
  CHECK(roles == "t0 t1 l0 t2 t3 l1 ");
  CHECK(members[4].local_number == 1);
  CHECK(members[4].local_trainers == 2);
  CHECK(members[4].local_loaders == 1);
  CHECK(members[5].local_number == 0);
  // --map-by node: ranks dealt round.
  const auto dealt = assign_roles({{"a", 0}, {"b", 0}, {"a", 1}, {"b", 1}}, 1);
  CHECK(dealt[1].role == Role::trainer);
  CHECK(dealt[1].number == 1);
  CHECK(dealt[2].role == Role::loader);
}

TEST_CASE("ranks that cannot hold the job are refused with what to start") {
  CHECK(contains(error_of({{"a", 0}, {"a", 1}}, 2, ErrorKind::config), "none would load"));
  CHECK(contains(error_of({{"a", 0}, {"a", 1}}, 2, ErrorKind::config), "mpirun -n 3"));
  CHECK(contains(error_of({{"a", 0}, {"a", 1}, {"a", 2}, {"b", 0}}, 2, ErrorKind::config), "host 'b' has 1 rank,"));
  CHECK(contains(error_of({{"a", 0}}, 0, ErrorKind::config), "roles.trainers is 0"));
  CHECK(contains(error_of({{"a", 0}, {"a", 0}}, 1, ErrorKind::runtime), "local ranks of host 'a'"));
  // One node without a loader is fine when another has one.
  CHECK(assign_roles({{"a", 0}, {"a", 1}, {"b", 0}}, 1).size() == 3);
}

TEST_CASE("roles that the ranks say: nodes that load alone, local numbers by host and role") {
  const auto t = Role::trainer;
  const auto l = Role::loader;
  const auto members = roles_as_said({{"a", 0, 0, t}, {"a", 1, 0, t}, {"b", 0, 3, l}, {"a", 2, 0, l}, {"b", 1, 3, l}});
  std::string roles;
  for (const Member& m : members) roles += (m.role == Role::trainer ? "t" : "l") + std::to_string(m.number) + " ";
  CHECK(roles == "t0 t1 l0 l1 l2 ");
  CHECK(members[1].local_number == 1);
  CHECK(members[1].local_trainers == 2);
  CHECK(members[2].local_trainers == 0);
  CHECK(members[2].local_loaders == 2);
  CHECK(members[3].local_number == 0);  // the first loader of its host, though its local rank is 2
  CHECK(members[4].local_number == 1);
  CHECK(hosts_with(members, t) == "a:2");
  CHECK(hosts_with(members, l) == "b:2,a:3");
  CHECK(master_address(members) == "127.0.0.1");  // all programs run on one host
  // Where a loader is rank 0 the roles are told all the same, for the message that puts the line in order.
  CHECK(roles_as_said({{"b", 0, 0, l}, {"a", 0, 1, t}})[0].role == l);

  const auto refused = [](const std::vector<RankInfo>& ranks) {
    return refusal_of(ErrorKind::usage, [&] { roles_as_said(ranks); });
  };
  CHECK(contains(refused({{"a", 0, 0, t}, {"b", 0, 1, {}}}), "rank 1 (host b) has no --role"));
  CHECK(contains(refused({{"a", 0, 0, t}, {"b", 0, 1, t}}), "none of the 2 ranks loads"));
  CHECK(contains(refused({{"a", 0, 0, l}}), "none of the 1 rank trains"));
}

TEST_CASE("nodes of one name are kept apart, and MASTER_ADDR stays a name that can be looked up") {
  const auto two = assign_roles({{"a", 0, 0}, {"a", 1, 0}, {"a", 0, 2}, {"a", 1, 2}, {"b", 0, 4}, {"b", 1, 4}}, 1);
  CHECK(two[1].host == "a#0");
  CHECK(two[2].host == "a#2");
  CHECK(two[2].role == Role::trainer);
  CHECK(two[3].local_trainers == 1);
  CHECK(two[4].host == "b");
  CHECK(master_address(two) == "a");
  CHECK(master_address(assign_roles({{"a", 0, 0}, {"a", 1, 0}, {"b", 0, 2}, {"b", 1, 2}}, 1)) == "a");
  CHECK(master_address(assign_roles({{"a", 0, 0}, {"a", 1, 0}}, 1)) == "127.0.0.1");
  CHECK(contains(error_of({{"a", 0, 0}, {"a", 1, 0}, {"a", 0, 2}}, 2, ErrorKind::config), "host 'a#2' has 1 rank,"));
}

TEST_CASE("cores: apart when there are enough, together when not") {
  const std::vector<Core> cores{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}};
  const auto apart = share_cores(cores, {{Role::trainer}, {Role::trainer}, {Role::loader, 2}, {Role::loader, 2}});
  CHECK(apart[0] == std::vector<int>{0, 1, 8, 9});
  CHECK(apart[2] == std::vector<int>{2, 3, 10, 11});  // beside trainer 0
  CHECK(apart[1] == std::vector<int>{4, 5, 12, 13});
  CHECK(apart[3] == std::vector<int>{6, 7, 14, 15});
  const auto together = share_cores({{0}, {1}}, {{Role::trainer}, {Role::loader, 2}});
  CHECK(together[0] == std::vector<int>{0, 1});
  CHECK(together[1] == together[0]);
}

TEST_CASE("cores: any mix is either disjoint and complete, or everyone has all") {
  const unsigned seed = std::random_device{}();
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  int apart = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<Core> cores(1 + random() % 16);
    for (size_t i = 0; i < cores.size(); ++i) cores[i] = {static_cast<int>(i), static_cast<int>(i + 100)};
    std::vector<CoreNeed> needs(random() % 3, CoreNeed{Role::trainer, 1});
    size_t wanted = needs.size();
    for (size_t loaders = 1 + random() % 4; loaders > 0; --loaders) {
      needs.push_back({Role::loader, static_cast<int>(1 + random() % 4)});
      wanted += static_cast<size_t>(needs.back().threads);
    }
    const auto shares = share_cores(cores, needs);
    std::multiset<int> used;
    for (size_t i = 0; i < needs.size(); ++i) {
      REQUIRE_FALSE(shares[i].empty());
      if (wanted <= cores.size() && needs[i].role == Role::loader) {
        CHECK(shares[i].size() == 2 * static_cast<size_t>(needs[i].threads));
      }
      used.insert(shares[i].begin(), shares[i].end());
    }
    const size_t different = std::set<int>(used.begin(), used.end()).size();
    if (wanted <= cores.size()) {
      ++apart;
      CHECK(different == used.size());
      if (needs[0].role == Role::trainer) CHECK(different == 2 * cores.size());
    } else {
      CHECK(used.size() == 2 * cores.size() * needs.size());
    }
  }
  CHECK(apart > 20);
}

TEST_CASE("the allowed cores are those the kernel lets us run on") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  const auto count = [](const std::vector<Core>& cores) {
    size_t n = 0;
    for (const Core& core : cores) n += core.size();
    return n;
  };
  CHECK(count(allowed_cores(false)) == static_cast<size_t>(CPU_COUNT(&before)));
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  const auto bound = allowed_cores(false);
  const auto launchers = allowed_cores(true);  // the parent's, as if it were mpirun's daemon that bound us
  sched_setaffinity(0, sizeof before, &before);
  CHECK(bound == std::vector<Core>{{first}});
  CHECK(count(launchers) >= count(bound));
}

TEST_CASE("lists and the table") {
  CHECK(cpu_list_text({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
  CHECK(cpu_list_text({}) == "");
  const auto members = assign_roles({{"node-a", 0}, {"node-a", 1}}, 1);
  CHECK(placement_table(members, {{4711, "0-1"}, {1234567, "2-3"}}) ==
        "host    rank      pid  role        cores\n"
        "node-a     0     4711  trainer 0   0-1\n"
        "node-a     1  1234567  loader 0    2-3\n");
}

TEST_CASE("a program sees its place among the trainers and no launcher") {
  TrainerPlace place;
  place.rank = 3;
  place.world_size = 4;
  place.local_rank = 1;
  place.local_world_size = 2;
  place.master_addr = "node-a";
  place.master_port = 1234;
  place.receiver = "@penstock/0/job/1";
  place.token = "secret";
  place.job = "job.yaml";
  const std::vector<std::string> inherited{"PATH=/bin",       "OMPI_COMM_WORLD_RANK=7",
                                           "PMIX_RANK=7",     "PMI_RANK=7",
                                           "PRTE_X=1",        "SLURM_PROCID=7",
                                           "SLURM_LOCALID=1", "SLURM_NODEID=1",
                                           "SLURM_NTASKS=9",  "SLURM_NTASKS_PER_NODE=9",
                                           "SLURM_STEP_ID=1", "SLURM_STEPID=1",
                                           "SLURM_JOB_ID=42", "SLURM_JOB_NODELIST=a",
                                           "RANK=99",         "CUDA_VISIBLE_DEVICES=5",
                                           "EMPTY=",          "odd",
                                           "OMPI=kept"};
  const auto got = trainer_environment(inherited, place);
  const std::vector<std::string> expected{"PATH=/bin",
                                          "SLURM_JOB_ID=42",
                                          "SLURM_JOB_NODELIST=a",
                                          "CUDA_VISIBLE_DEVICES=5",
                                          "EMPTY=",
                                          "odd",
                                          "OMPI=kept",
                                          "RANK=3",
                                          "WORLD_SIZE=4",
                                          "LOCAL_RANK=1",
                                          "LOCAL_WORLD_SIZE=2",
                                          "MASTER_ADDR=node-a",
                                          "MASTER_PORT=1234",
                                          "PENSTOCK_RECEIVER=@penstock/0/job/1",
                                          "PENSTOCK_TOKEN=secret",
                                          "PENSTOCK_JOB=job.yaml"};
  CHECK(got == expected);
}
