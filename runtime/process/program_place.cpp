#include "runtime/process/program_place.h"

#include <charconv>

#include "runtime/base/error.h"
#include "runtime/process/launcher.h"

namespace penstock {
namespace {

std::optional<int> number_of(const std::map<std::string, std::string>& environment, const char* name) {
  const auto it = environment.find(name);
  if (it == environment.end() || it->second.empty()) return std::nullopt;
  const std::string& text = it->second;
  int value = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Error(ErrorKind::usage, std::string(name) + " is '" + text + "', not a number from 0",
                "unset it, or start the program with torchrun");
  }
  return value;
}

}  // namespace

ProgramPlace program_place(const std::map<std::string, std::string>& environment) {
  ProgramPlace place{number_of(environment, "RANK"), number_of(environment, "WORLD_SIZE"),
                     number_of(environment, "LOCAL_RANK")};
  if (place.rank || place.world_size || place.local_rank) return place;
  const LauncherInfo launcher = detect_launcher(environment);
  if (launcher.kind == LauncherKind::none) return place;
  if (launcher.world_size > 0) place.world_size = launcher.world_size;
  place.rank = launcher.rank;
  place.local_rank = launcher.local_rank;
  return place;
}

}  // namespace penstock
