// "did you mean ...?": the known name that a mistyped one was most likely meant to be.
//
//   suggest("batchsize", {"batch_size", "tail"});     // "batch_size"
//   did_you_mean("batchsize", names);                 // "did you mean 'batch_size'?", or "" when nothing is close
//   list_of({"auto", "inproc", "shm"}, "or");         // "auto, inproc or shm"
//
// Closeness: edits (insertions, deletions, changes, swaps of neighbours), letter case and '_' or '-' counting nothing;
// at most a third of the name may differ, unless it is part of a known name. Names longer than 64 bytes are never close
// to anything, so hostile files cost nothing. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

size_t edit_distance(std::string_view a, std::string_view b);
std::string suggest(std::string_view name, const std::vector<std::string>& known);  // empty: nothing is close
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);
std::string list_of(const std::vector<std::string>& names, std::string_view conjunction);

}  // namespace penstock
