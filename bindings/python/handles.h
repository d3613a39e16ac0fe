// What the compiled module's files share: a batch's array as Python sees it, and how each class is registered.
//
// Ownership: a BatchArray holds its Batch, so whatever is made from it (a NumPy array, a DLPack capsule, a torch tensor)
//   keeps the batch's memory, wherever and in whatever thread it is dropped in the end.
// The GIL is released in every call that may wait or that takes a lock of the loader's.
#pragma once

#include <nanobind/nanobind.h>

#include "runtime/trainer/data_loader.h"

namespace penstock::python {

struct BatchArray {
  Batch batch;
  TensorView view;
};

void register_batch(nanobind::module_& module);
void register_loader(nanobind::module_& module);
void register_samplers(nanobind::module_& module);

}  // namespace penstock::python
