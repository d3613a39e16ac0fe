// GPUs, and the libraries that go with them: nvJPEG as the CUDA component finds it, NCCL opened by name and asked for
// its version alone.
#include <dlfcn.h>

#include <cstdio>

#include "launch/findings.h"
#include "runtime/base/error.h"
#include "runtime/base/library_search.h"
#include "runtime/gpu/cuda_component.h"

namespace penstock {
namespace {

// A library that stays open while it is asked.
class OpenLibrary {
 public:
  explicit OpenLibrary(const std::string& file) : handle_(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  OpenLibrary(const OpenLibrary&) = delete;
  OpenLibrary& operator=(const OpenLibrary&) = delete;
  ~OpenLibrary() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  template <class Function>
  Function* function(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  void* handle_;
};

std::string dotted(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

// CUDA's way to write versions: 13020 is 13.2.
std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

// Its engines are asked for with a context on each GPU, for a moment: nothing else tells.
Finding find_nvjpeg(int gpus) {
  NvjpegFacts facts = nvjpeg_facts(-1);
  if (facts.name.empty()) return {"nvJPEG", facts.error + "; only loader.nvjpeg in jobs of arithmetic: fast wants it"};
  std::string text = facts.name + " (" + facts.file + ")";
  for (int number = 0; number < gpus; ++number) {
    facts = nvjpeg_facts(number);
    text += number == 0 ? ", engines: GPU " : ", GPU ";
    text += std::to_string(number) + " ";
    text += !facts.error.empty() ? "cannot use it (" + facts.error + ")" : std::to_string(facts.engines);
  }
  return {"nvJPEG", text};
}

// ncclResult_t ncclGetVersion(int* version): 22703 is 2.27.3.
Finding find_nccl() {
  for (const std::string& file : library_candidates(nccl_search())) {
    const OpenLibrary library(file);
    auto* const get = library.function<int(int*)>("ncclGetVersion");
    int version = 0;
    if (get == nullptr || get(&version) != 0) continue;
    return {"NCCL", dotted(version / 10000, version / 100 % 100, version % 100) + " (" + file + ")"};
  }
  return {"NCCL", "not found; only loader.gpu_links: nccl wants it"};
}

std::string gpu_text(const CudaGpuFacts& gpu) {
  if (gpu.memory_bytes == 0) return gpu.name;
  char memory[32];
  std::snprintf(memory, sizeof memory, "%.1f GB", static_cast<double>(gpu.memory_bytes) / 1e9);
  std::string text = gpu.name + ", " + memory + ", compute capability " + std::to_string(gpu.major) + "." +
                     std::to_string(gpu.minor) + ", at " + gpu.bus;
  if (!gpu.peers.empty()) text += ", reaches the memory of";
  for (const int peer : gpu.peers) text += " " + std::to_string(peer);
  return text;
}

// How many GPUs can be used.
int find_cuda(Findings& findings) {
  const CudaFacts facts = cuda_facts();
  const std::string component = "the component was built with CUDA " + cuda_version(facts.runtime);
  if (facts.driver == 0 || !facts.error.empty()) {
    findings.push_back({"CUDA", component + "; " + (facts.driver == 0 ? "no driver" : facts.error), FindingLevel::note,
                        "the CPUs decode; see nvidia-smi where there should be a GPU"});
    return 0;
  }
  findings.push_back({"CUDA", component + ", the driver knows " + cuda_version(facts.driver)});
  for (size_t number = 0; number < facts.gpus.size(); ++number) {
    findings.push_back({"GPU " + std::to_string(number), gpu_text(facts.gpus[number])});
  }
  return static_cast<int>(facts.gpus.size());
}

}  // namespace

void find_gpus(Findings& findings) {
  Finding nvjpeg{"nvJPEG", "not asked for, without the CUDA component"};
  try {
    const int gpus = find_cuda(findings);
    nvjpeg = find_nvjpeg(gpus);
  } catch (const Error& error) {
    findings.push_back({"CUDA", error.message(), FindingLevel::note, error.remedy()});
  }
  findings.push_back(nvjpeg);
  findings.push_back(find_nccl());
}

}  // namespace penstock
