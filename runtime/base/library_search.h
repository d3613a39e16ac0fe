// Where libraries may be that are loaded at run time: the loader's own places, and where PyPI's packages put them.
//
//   for (const std::string& file : library_candidates({.named = switches().nvjpeg, .names = {"libnvjpeg.so.13"},
//                                                      .in_packages = {"cu13/lib/libnvjpeg.so.13"}})) …dlopen(file)…
//
// In this order:
//   the file that the user names, and then no other;
//   what lies in a folder of $LD_LIBRARY_PATH, or in `lib` of the Python environment that is active ($VIRTUAL_ENV);
//   the names, for the loader to look for;
//   what lies in `lib` of the environment that the calling library is installed in, or that is the program's;
//   what lies below the packages' folder `nvidia` in any of these environments.
// Thread-safety: as getenv. Failure: none; what cannot be read is not there.
#pragma once

#include <string>
#include <vector>

namespace penstock {

struct LibrarySearch {
  std::string named;  // what the user says (base/switches.h); empty: nothing
  std::vector<std::string> names;
  std::vector<std::string> in_packages;     // below site-packages/nvidia; given only where they exist
  std::vector<std::string> in_environment;  // in lib; likewise
};

std::vector<std::string> library_candidates(const LibrarySearch& search);

LibrarySearch nccl_search();

}  // namespace penstock
