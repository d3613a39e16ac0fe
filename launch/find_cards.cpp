// Cards, and the libraries that go with them. nvJPEG and NCCL are opened by name and asked for their version alone: neither
// is linked, and no context is made on any card.
#include <dlfcn.h>

#include <array>
#include <cstdio>

#include "launch/findings.h"
#include "runtime/base/error.h"
#include "runtime/card/cuda_component.h"

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

// nvjpegStatus_t nvjpegGetProperty(libraryPropertyType type, int* value): 0, 1, 2 are major, minor, patch.
Finding find_nvjpeg() {
  for (const char* file : {"libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so.11", "libnvjpeg.so"}) {
    const OpenLibrary library(file);
    auto* const property = library.function<int(int, int*)>("nvjpegGetProperty");
    if (property == nullptr) continue;
    std::array<int, 3> version{};
    for (int part = 0; part < 3; ++part) (void)property(part, &version[static_cast<size_t>(part)]);
    return {"nvJPEG", dotted(version[0], version[1], version[2]) + " (" + file + "); penstock does not use it yet"};
  }
  return {"nvJPEG", "not found; penstock does not use it yet"};
}

// ncclResult_t ncclGetVersion(int* version): 22703 is 2.27.3.
Finding find_nccl() {
  const OpenLibrary library("libnccl.so.2");
  auto* const get = library.function<int(int*)>("ncclGetVersion");
  int version = 0;
  if (get == nullptr || get(&version) != 0) return {"NCCL", "not found; penstock does not use it yet"};
  return {"NCCL", dotted(version / 10000, version / 100 % 100, version % 100) + "; penstock does not use it yet"};
}

std::string card_text(const CudaCardFacts& card) {
  if (card.memory_bytes == 0) return card.name;
  char memory[32];
  std::snprintf(memory, sizeof memory, "%.1f GB", static_cast<double>(card.memory_bytes) / 1e9);
  std::string text = card.name + ", " + memory + ", compute capability " + std::to_string(card.major) + "." +
                     std::to_string(card.minor) + ", at " + card.bus;
  if (!card.peers.empty()) text += ", reaches the memory of";
  for (const int peer : card.peers) text += " " + std::to_string(peer);
  return text;
}

void find_cuda(Findings& findings) {
  const CudaFacts facts = cuda_facts();
  const std::string component = "the component was built with CUDA " + cuda_version(facts.runtime);
  if (facts.driver == 0 || !facts.error.empty()) {
    findings.push_back({"CUDA", component + "; " + (facts.driver == 0 ? "no driver" : facts.error), FindingLevel::note,
                        "the CPUs decode; see nvidia-smi where there should be a card"});
    return;
  }
  findings.push_back({"CUDA", component + ", the driver knows " + cuda_version(facts.driver)});
  for (size_t number = 0; number < facts.cards.size(); ++number) {
    findings.push_back({"card " + std::to_string(number), card_text(facts.cards[number])});
  }
}

}  // namespace

void find_cards(Findings& findings) {
  try {
    find_cuda(findings);
  } catch (const Error& error) {
    findings.push_back({"CUDA", error.message(), FindingLevel::note, error.remedy()});
  }
  findings.push_back(find_nvjpeg());
  findings.push_back(find_nccl());
}

}  // namespace penstock
