#include "runtime/client/embedded_place.h"

#include <charconv>

#include "runtime/base/error.h"
#include "runtime/process/launcher.h"

namespace penstock {
namespace {

struct Place {
  int replicas = 1;
  int rank = 0;

  bool exists() const noexcept { return replicas >= 1 && rank >= 0 && rank < replicas; }
};

// -1 for whatever is no number from 0 on.
int number_of(const std::string& text) {
  int value = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size() ? value : -1;
}

std::string value_of(const std::map<std::string, std::string>& environment, const char* name) {
  const auto it = environment.find(name);
  return it == environment.end() ? "" : it->second;
}

EmbeddedOptions of_replica(const Place& place) {
  EmbeddedOptions options;
  options.replicas = place.replicas;
  options.replica = place.rank;
  return options;
}
EmbeddedOptions of_rank(const Job& job, const Place& place) {
  return of_replica({replicas_of(job, place.replicas), place.rank / job.roles.ranks_per_replica});
}

EmbeddedOptions as_told(const Job& job, const DataLoaderOptions& options) {
  const Place place{options.num_replicas.value_or(1), options.rank.value_or(0)};
  if (!place.exists()) {
    throw Error(
        ErrorKind::usage,
        "rank " + std::to_string(place.rank) + " of " + std::to_string(place.replicas) + " replicas does not exist",
        "give both num_replicas and rank, with 0 <= rank < num_replicas");
  }
  return options.places_are_ranks ? of_rank(job, place) : of_replica(place);
}

}  // namespace

EmbeddedOptions embedded_place(const Job& job, const DataLoaderOptions& options,
                               const std::map<std::string, std::string>& environment) {
  if (options.num_replicas || options.rank) return as_told(job, options);
  const std::string rank = value_of(environment, "RANK");
  const std::string world = value_of(environment, "WORLD_SIZE");
  if (!rank.empty() && !world.empty()) {
    const Place place{number_of(world), number_of(rank)};
    if (!place.exists()) {
      throw Error(ErrorKind::usage, "RANK=" + rank + " and WORLD_SIZE=" + world + " do not fit together",
                  "unset them, or start the program with torchrun or `penstock run`");
    }
    return of_rank(job, place);
  }
  if (rank.empty() && !world.empty() && number_of(world) > 1) {
    throw Error(ErrorKind::usage, "WORLD_SIZE=" + world + " without RANK: every trainer would get the same data",
                "set RANK as well, or unset WORLD_SIZE, or pass num_replicas and rank");
  }
  const LauncherInfo launcher = detect_launcher(environment);
  if (launcher.many_tasks()) {
    throw Error(ErrorKind::usage,
                std::string("this program was started by ") + launcher_name(launcher.kind) +
                    " with several tasks, but nothing says which trainer it is: every task would get the same data",
                "start it with `mpirun ... penstock run job.yaml -- PROGRAM`, or set RANK and WORLD_SIZE, or pass "
                "num_replicas and rank");
  }
  return {};
}

}  // namespace penstock
