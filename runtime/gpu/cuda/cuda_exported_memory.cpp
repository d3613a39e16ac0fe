#include "runtime/gpu/cuda/cuda_exported_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

namespace penstock {
namespace {

void* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  if (code == cudaSuccess && found == cudaDriverEntryPointSuccess && function != nullptr) return function;
  (void)cudaGetLastError();
  throw Error(ErrorKind::runtime, std::string("the driver has no ") + name + ", by which GPUs export memory",
              "install a newer driver");
}

// What of the driver is needed here.
struct Driver {
  template <class Function>
  static Function* find(Function* /*like*/, const char* name) {
    return reinterpret_cast<Function*>(driver_function(name));
  }
  decltype(&cuGetErrorString) error_string = find(&cuGetErrorString, "cuGetErrorString");
  decltype(&cuMemGetAllocationGranularity) granularity =
      find(&cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity");
  decltype(&cuMemCreate) create = find(&cuMemCreate, "cuMemCreate");
  decltype(&cuMemRelease) release = find(&cuMemRelease, "cuMemRelease");
  decltype(&cuMemExportToShareableHandle) to_descriptor =
      find(&cuMemExportToShareableHandle, "cuMemExportToShareableHandle");
  decltype(&cuMemImportFromShareableHandle) from_descriptor =
      find(&cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle");
  decltype(&cuMemAddressReserve) reserve = find(&cuMemAddressReserve, "cuMemAddressReserve");
  decltype(&cuMemAddressFree) free_address = find(&cuMemAddressFree, "cuMemAddressFree");
  decltype(&cuMemMap) map = find(&cuMemMap, "cuMemMap");
  decltype(&cuMemUnmap) unmap = find(&cuMemUnmap, "cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = find(&cuMemSetAccess, "cuMemSetAccess");
};

const Driver& driver() {
  static const Driver functions;  // a failure is no value: the next call asks again
  return functions;
}

void check(CUresult code, const GpuInfo& gpu, const char* what) {
  if (code == CUDA_SUCCESS) return;
  const char* why = nullptr;
  if (driver().error_string(code, &why) != CUDA_SUCCESS || why == nullptr) why = "an unknown error";
  const std::string message = "GPU " + std::to_string(gpu.number) + " (" + gpu.name + "): " + what + ": " + why;
  if (code == CUDA_ERROR_OUT_OF_MEMORY) throw GpuError(GpuFault::out_of_memory, message);
  throw Error(ErrorKind::runtime, message);
}

CUmemAllocationProp properties_of(const GpuInfo& gpu) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = gpu.number;
  return properties;
}

// An allocation by its handle, which a mapping outlives.
class Handle {
 public:
  explicit Handle(CUmemGenericAllocationHandle handle) : handle_(handle) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { (void)driver().release(handle_); }
  CUmemGenericAllocationHandle get() const noexcept { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_;
};

class CudaExportedMemory final : public ExportedMemory {
 public:
  CudaExportedMemory(const GpuInfo& gpu, Hanging hanging, const Handle& memory, size_t bytes)
      : hanging_(std::move(hanging)), bytes_(bytes) {
    check(driver().reserve(&at_, bytes, 0, 0, 0), gpu, "reserving addresses for shared memory");
    try {
      check(driver().map(at_, bytes, 0, memory.get(), 0), gpu, "mapping shared memory");
      mapped_ = true;
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = gpu.number;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;  // what the driver's manual promises for GPUs
      check(driver().set_access(at_, bytes, &access, 1), gpu, "reaching shared memory");
    } catch (...) {
      end();
      throw;
    }
  }
  ~CudaExportedMemory() override {
    if (!*hanging_) end();
  }
  CudaExportedMemory(const CudaExportedMemory&) = delete;
  CudaExportedMemory& operator=(const CudaExportedMemory&) = delete;

  void keep(UniqueFd fd) { fd_ = std::move(fd); }
  std::byte* data() const noexcept override { return reinterpret_cast<std::byte*>(at_); }
  size_t bytes() const noexcept override { return bytes_; }
  int fd() const noexcept override { return fd_.get(); }

 private:
  void end() noexcept {
    if (mapped_) (void)driver().unmap(at_, bytes_);
    (void)driver().free_address(at_, bytes_);
  }

  Hanging hanging_;
  size_t bytes_;
  CUdeviceptr at_ = 0;
  bool mapped_ = false;
  UniqueFd fd_;
};

}  // namespace

std::unique_ptr<ExportedMemory> make_cuda_exported_memory(const GpuInfo& gpu, Hanging hanging, size_t bytes) {
  const CUmemAllocationProp properties = properties_of(gpu);
  size_t page = 0;
  check(driver().granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), gpu,
        "asking how memory can be shared");
  const size_t whole = (bytes + page - 1) / page * page;
  CUmemGenericAllocationHandle created{};
  check(driver().create(&created, whole, &properties, 0), gpu, "allocating memory to share");
  const Handle memory(created);
  auto exported = std::make_unique<CudaExportedMemory>(gpu, std::move(hanging), memory, whole);
  int fd = -1;
  check(driver().to_descriptor(&fd, memory.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), gpu, "sharing memory");
  exported->keep(UniqueFd(fd));
  return exported;
}

std::unique_ptr<ExportedMemory> open_cuda_exported_memory(const GpuInfo& gpu, Hanging hanging, UniqueFd fd,
                                                          size_t bytes) {
  CUmemGenericAllocationHandle imported{};
  auto* const descriptor = reinterpret_cast<void*>(static_cast<uintptr_t>(fd.get()));
  check(driver().from_descriptor(&imported, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), gpu,
        "opening shared memory");
  const Handle memory(imported);
  return std::make_unique<CudaExportedMemory>(gpu, std::move(hanging), memory, bytes);
}

}  // namespace penstock
