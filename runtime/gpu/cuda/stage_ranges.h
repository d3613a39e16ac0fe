// Ranges for NVIDIA's profilers (Nsight Systems) around what a stream is told: domain "penstock", a name per stage.
//
//   { const StageRange range("upload"); check(cudaMemcpyAsync(...)); }
//
// The names: upload, download, wait, and those of the stages (gpu/batch_layout.h). A range is the host's: it lasts as
//   long as the call that hands the work over ("wait": until the GPU has done it all); the profiler shows beside it
//   what the GPU did for it.
// Header-only NVTX 3 of the CUDA toolkit, where that has it; else nothing. Without a profiler a range costs a test of a
//   pointer.
// Thread-safety: as NVTX, any. Failure: none.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define PENSTOCK_NVTX 1
#endif

namespace penstock {

class StageRange {
 public:
#ifdef PENSTOCK_NVTX
  explicit StageRange(const char* name) {
    nvtxEventAttributes_t range{};
    range.version = NVTX_VERSION;
    range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = name;
    nvtxDomainRangePushEx(domain(), &range);
  }
  ~StageRange() {
    nvtxDomainRangePop(domain());
  }
#else
  explicit StageRange(const char*) {}
#endif
  StageRange(const StageRange&) = delete;
  StageRange& operator=(const StageRange&) = delete;

 private:
#ifdef PENSTOCK_NVTX
  static nvtxDomainHandle_t domain() {
    static nvtxDomainHandle_t const made = nvtxDomainCreateA("penstock");
    return made;
  }
#endif
};

}  // namespace penstock
