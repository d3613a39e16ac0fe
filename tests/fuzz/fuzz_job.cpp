// The job file; and what an accepted one becomes on its way to other ranks, which must read back to the same.
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/job/job.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if ((data[0] & 1) != 0) {
      (void)split_from_json(text);
      return 0;
    }
    const Job job = parse_job(text, "/j/job.yaml");
    for (const auto& [name, split] : job.splits) {
      std::string canonical;
      try {
        canonical = canonical_json(resolve_split(job, name));
      } catch (const Error&) {
        continue;  // text that is not UTF-8
      }
      if (canonical_json(split_from_json(canonical)) != canonical) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
