// File names written short: "shard-{000..012}.tar", "{train,extra}-*.tfrecord".
//
//   expand_braces("a-{08..11}.tar");               // a-08.tar a-09.tar a-10.tar a-11.tar
//   find_files("/data/train-*-of-00128", files);    // braces, then * and ? in the last part of the path, sorted
//
// Braces as in a shell: ranges of numbers (padded with zeros where either end is, downwards too, with a step:
//   {0..8..2}) and lists, several in one pattern, not nested. Braces of another form are an Error, because a shell
//   would take them as they are and the file would be looked for in vain.
// '*' and '?' never match a leading '.'.
// Order is part of the contract: braces in the order they are written, matches sorted by bytes.
// Failure: Error(dataset) naming the pattern; at most 100,000 names.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace penstock {

std::vector<std::string> expand_braces(const std::string& pattern);
std::vector<std::string> find_files(const std::string& pattern, FileSystem& files);

// "/data" of "/data/000.tar"; "." where there is none.
std::string folder_of(const std::string& path);

}  // namespace penstock
