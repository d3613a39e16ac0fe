// Where NVIDIA's libraries may be that are loaded at run time: the loader's own places, and PyPI's packages.
//
//   for (const std::string& file : library_candidates({.named = switches().nvjpeg, .names = {"libnvjpeg.so.13"},
//                                                      .in_packages = {"cu13/lib/libnvjpeg.so.13"}})) …dlopen(file)…
//
// In this order: the file that the user names, and then no other; the names, for the loader to look
//   for; and below the folder `nvidia` of the Python environment of this program: $VIRTUAL_ENV, the one that the
//   calling library is installed in, and what is above the program's own folder.
// Thread-safety: as getenv. Failure: none; what cannot be read is not there.
#pragma once

#include <string>
#include <vector>

namespace penstock {

struct LibrarySearch {
  std::string named;  // what the user says (base/switches.h); empty: nothing
  std::vector<std::string> names;
  std::vector<std::string> in_packages;  // below site-packages/nvidia; given only where they exist
};

std::vector<std::string> library_candidates(const LibrarySearch& search);

LibrarySearch nccl_search();

}  // namespace penstock
