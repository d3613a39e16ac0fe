// The memory layout of DLPack's structures, version 1.0 (dmlc/dlpack, include/dlpack/dlpack.h): the ABI that
// __dlpack__ capsules carry. Both kinds of capsule: "dltensor" for consumers that ask for no version, as torch 1.x,
// and "dltensor_versioned" for those that do.
//
//   auto* managed = new dlpack::ManagedTensor{tensor, keeper, deleter};     // behind a capsule "dltensor"
//
// Thread-safety: plain structures. Ownership: whoever consumes the capsule calls `deleter`, once, and that lets go of what
// manager_ctx stands for. Failure: none.
#pragma once

#include <cstdint>

namespace penstock::dlpack {

struct Device {
  int32_t device_type;
  int32_t device_id;
};
struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};
struct ManagedTensor {
  Tensor tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};
struct Version {
  uint32_t major;
  uint32_t minor;
};
struct ManagedTensorVersioned {
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

inline constexpr int32_t kCpu = 1;
inline constexpr uint8_t kInt = 0;
inline constexpr uint8_t kUInt = 1;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kBfloat = 4;
inline constexpr uint64_t kFlagCopied = 2;

}  // namespace penstock::dlpack
