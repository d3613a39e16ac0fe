// What the compiled module's files share: a batch's array as Python sees it, and how each class is registered.
//
// Ownership: a BatchArray holds what owns its memory, a Batch or an ImageBatch, so whatever is made from it (a NumPy array, a DLPack capsule, a torch tensor)
//   keeps that memory, wherever and in whatever thread it is dropped in the end.
// The GIL is released in every call that may wait or that takes a lock of the loader's.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>

#include "runtime/trainer/data_loader.h"

namespace penstock::python {

struct BatchArray {
  std::shared_ptr<const void> owner;
  TensorView view;
};

// "float16" to the dtype; Error(usage) where images cannot have it.
std::optional<DType> image_dtype(const std::optional<std::string>& name);

// Ctrl-C, and whatever else the program's signal handlers throw. Only Python's main thread runs those.
void check_signals();

// Joining threads and closing sockets may wait for threads that want the GIL.
struct DeleteUnlocked {
  template <class T>
  void operator()(T* object) const {
    const nanobind::gil_scoped_release unlocked;
    delete object;
  }
};

void register_batch(nanobind::module_& module);
void register_loader(nanobind::module_& module);
void register_preprocessor(nanobind::module_& module);

}  // namespace penstock::python
