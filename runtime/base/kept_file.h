// Files that processes of this user keep in memory (memfd_create(2)), found on this node by their names.
//
//   UniqueFd list = open_kept_file("/memfd:penstock-rows-5ac9ecf912d4f503", 10'000'000);
//
// A program that gives a list too large for the job's text keeps it under a name that its contents decide (_memory_file.py).
//   Equal programs on several nodes keep equal files, and the ranks of each node read one of their own node: nothing
//   has to be deleted, whatever happens to whom.
// Invariant: what is opened has that name, is this user's, and is complete: it is sealed against writing when all of it is
//   there.
// Thread-safety: functions without state. Failure: FileError(ENOENT) where no process keeps it for `wait_us`: another
//   program of the job may still be on its way to where it makes it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/memory.h"

namespace penstock {

bool is_kept_file(const std::string& path);  // "/memfd:…", as the kernel names it
UniqueFd open_kept_file(const std::string& path, int64_t wait_us);

}  // namespace penstock
