// What the compiled module's files share: a batch's array as Python sees it, and how each class is registered.
//
// Ownership: a BatchArray holds what owns its memory, a Batch or an ImageBatch, so whatever is made from it (a NumPy
//   array, a DLPack capsule, a torch tensor) keeps that memory, wherever and in whatever thread it is dropped in the
//   end.
// The GIL is released in every call that may wait, and where the last of a loader goes, be it a tensor of its last
// batch.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/client/data_loader.h"
#include "runtime/client/gpu_images.h"
#include "runtime/ranks/joined_rank.h"

namespace penstock::python {

struct BatchArray {
  std::shared_ptr<const void> owner;
  TensorView view;
};

struct ExportedMemoryHandle {
  std::shared_ptr<const ExportedGpuMemory> memory;
};

struct JoinedRankHandle {
  explicit JoinedRankHandle(std::shared_ptr<JoinedRank> joined) : rank(std::move(joined)) {}
  std::shared_ptr<JoinedRank> rank;
};

// Both guards for threads that wait for the GIL while the interpreter ends: up to Python 3.13 it then unwinds them with
// pthread_exit, which C++ destructors turn into an abort of the whole process. Such a thread stays where it is instead,
// as from 3.14 on; the process ends around it.
template <class Call>
auto or_stay(const Call& call) {
  try {
    return call();
  } catch (...) {
    for (;;) ::pause();
  }
}
class Unlocked {  // nanobind::gil_scoped_release
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    or_stay([this] { PyEval_RestoreThread(state_); });
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// The interpreter has begun to end: no other thread gets the GIL any more.
inline bool interpreter_ends() noexcept {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

class Locked {  // nanobind::gil_scoped_acquire
 public:
  Locked() : state_(or_stay([] { return PyGILState_Ensure(); })) {}
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  PyGILState_STATE state_;
};

// "float16" to the dtype; Error(usage) where images cannot have it.
std::optional<DType> image_dtype(const std::optional<std::string>& name);

// Ctrl-C, and whatever else the program's signal handlers throw. Only Python's main thread runs those.
void check_signals();

// For what is dropped in any thread, with the GIL or without, as tensors are; also when the interpreter is gone.
template <class Call>
void without_gil(const Call& call) {
  if (PyGILState_GetThisThreadState() != nullptr && PyGILState_Check() == 1) {
    const Unlocked unlocked;
    call();
  } else {
    call();
  }
}

// Joining threads and closing sockets may wait for threads that want the GIL.
struct DeleteUnlocked {
  template <class T>
  void operator()(T* object) const {
    const Unlocked unlocked;
    delete object;
  }
};

void register_batch(nanobind::module_& module);
void register_loader(nanobind::module_& module);
void register_finishing(nanobind::module_& module);
void register_samplers(nanobind::module_& module);
void register_listing(nanobind::module_& module);
void register_preprocessor(nanobind::module_& module);
void register_planning(nanobind::module_& module);
void register_joined(nanobind::module_& module);

}  // namespace penstock::python
