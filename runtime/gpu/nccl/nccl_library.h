// NCCL's functions, loaded at run time: nothing links libnccl, so the component works where there is none.
//
//   const NcclLibrary& nccl = nccl_library();          // Error(runtime): none, where it looked, what to do
//   ncclResult_t result = nccl.GetUniqueId(&id);
//   std::string name = nccl.name();                    // "NCCL 2.28.9"
//
// Looked for in this order: $PENSTOCK_NCCL (a file); the libnccl.so.2 that the process has already, as torch brings
//   one, and two in a process are two sets of everything; what the loader finds; PyPI's nvidia-nccl-cu13 and -cu12
//   (nvidia/nccl/lib) of the Python environment of this program (runtime/base/library_search.h). 2.14 is the oldest
//   that has communicators whose calls do not block.
// Types are the header's (nccl.h), so a table that does not fit does not compile. Ownership: stays loaded.
//   Thread-safety: any thread.
#pragma once

#include <nccl.h>

#include <string>

namespace penstock {

// One line a function: a name without its prefix. What is looked for is also what exists.
#define PENSTOCK_NCCL_FUNCTIONS(X) \
  X(GetVersion)                    \
  X(GetUniqueId)                   \
  X(GetErrorString)                \
  X(GetLastError)                  \
  X(CommInitRankConfig)            \
  X(CommGetAsyncError)             \
  X(CommAbort)                     \
  X(Send)                          \
  X(Recv)

struct NcclLibrary {
#define PENSTOCK_NCCL_MEMBER(name) decltype(&::nccl##name) name = nullptr;
  PENSTOCK_NCCL_FUNCTIONS(PENSTOCK_NCCL_MEMBER)
#undef PENSTOCK_NCCL_MEMBER
  std::string file;  // as it was opened
  std::string name() const;
};

const NcclLibrary& nccl_library();

// False, and why.
bool load_nccl(const std::string& file, NcclLibrary& library, std::string& why_not);

}  // namespace penstock
