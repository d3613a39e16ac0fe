// The folder that `penstock pack` writes to: made where it is not there, and locked against a second writer.
//
//   const UniqueFd held = open_pack_folder(input, "/data/train.pack");   // until it is closed
//
// Failure: Error(usage) for a folder that the data lies in or that lies in the data, and for one that another process
//   packs to; FileError for the disk. Thread-safety: functions without state.
#pragma once

#include <string>

#include "launch/pack_input.h"
#include "runtime/base/memory.h"

namespace penstock {

UniqueFd open_pack_folder(const PackInput& input, const std::string& folder);

[[noreturn]] void refuse_pack_folder(const std::string& folder, const std::string& why, const std::string& remedy);

}  // namespace penstock
