#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>

#include "bindings/python/dlpack.h"
#include "bindings/python/handles.h"
#include "runtime/base/error.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

dlpack::DataType dlpack_type(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::uint8: return {dlpack::kUInt, bits, 1};
    case DType::int32:
    case DType::int64: return {dlpack::kInt, bits, 1};
    case DType::bfloat16: return {dlpack::kBfloat, bits, 1};
    default: return {dlpack::kFloat, bits, 1};
  }
}

// What a capsule's consumer owns: the structure it reads, the arrays that this points to, and the batch (or the copy).
template <class Managed>
struct Capsule {
  Managed managed{};
  BatchArray array;
  std::unique_ptr<std::byte[]> copy;

  static void destroy(Managed* managed) { delete static_cast<Capsule*>(managed->manager_ctx); }
};

template <class Managed>
nb::object make_capsule(const BatchArray& array, const char* name, bool copy) {
  auto owner = std::make_unique<Capsule<Managed>>();
  owner->array = array;
  if (copy) {
    // A field fills its memory without gaps, whatever the order of its dimensions.
    const auto bytes = static_cast<size_t>(array.view.elements()) * size_of(array.view.dtype);
    owner->copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memcpy(owner->copy.get(), array.view.data, bytes);
    owner->array.view.data = owner->copy.get();
    owner->array.owner.reset();
  }
  Managed& managed = owner->managed;
  managed.tensor.data = owner->array.view.data;
  managed.tensor.device = {dlpack::kCpu, 0};
  managed.tensor.ndim = static_cast<int32_t>(owner->array.view.shape.size());
  managed.tensor.dtype = dlpack_type(owner->array.view.dtype);
  managed.tensor.shape = owner->array.view.shape.data();
  managed.tensor.strides = owner->array.view.strides.data();
  managed.manager_ctx = owner.get();
  managed.deleter = &Capsule<Managed>::destroy;
  if constexpr (requires { managed.version; }) {
    managed.version = {1, 0};
    if (copy) managed.flags = dlpack::kFlagCopied;
  }
  PyObject* capsule = PyCapsule_New(&managed, name, [](PyObject* self) {
    // A consumer that took the tensor has renamed the capsule, and calls the deleter itself.
    const char* now = PyCapsule_GetName(self);
    if (now == nullptr || std::strncmp(now, "used_", 5) == 0) return;
    auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(self, now));
    if (unused != nullptr) unused->deleter(unused);
  });
  if (capsule == nullptr) throw nb::python_error();
  (void)owner.release();
  return nb::steal(capsule);
}

std::tuple<int, int> pair_of(const nb::object& value, const char* what) {
  std::tuple<int, int> pair;
  if (!nb::try_cast(value, pair))
    throw nb::type_error((std::string("__dlpack__: ") + what + " is a pair of integers").c_str());
  return pair;
}

nb::object to_dlpack(const BatchArray& array, const nb::object& stream, const nb::object& max_version,
                     const nb::object& dl_device, const nb::object& copy) {
  // Array API: on the CPU there is no stream to wait for, and only None may be given.
  if (!stream.is_none()) {
    throw Error(ErrorKind::usage, "__dlpack__: stream must be None for memory of the host");
  }
  if (!dl_device.is_none() && pair_of(dl_device, "dl_device") != std::tuple(dlpack::kCpu, 0)) {
    PyErr_SetString(PyExc_BufferError,
                    "__dlpack__: a batch lies in memory of the host; copy it to another device yourself");
    throw nb::python_error();
  }
  const bool copied = !copy.is_none() && PyObject_IsTrue(copy.ptr()) == 1;
  if (!max_version.is_none() && pair_of(max_version, "max_version") >= std::tuple(1, 0)) {
    return make_capsule<dlpack::ManagedTensorVersioned>(array, "dltensor_versioned", copied);
  }
  return make_capsule<dlpack::ManagedTensor>(array, "dltensor", copied);
}

nb::dlpack::dtype nanobind_type(DType dtype) {
  const dlpack::DataType type = dlpack_type(dtype);
  return {type.code, type.bits, type.lanes};
}

// Zero-copy and writable; its base keeps the batch.
nb::object to_numpy(const BatchArray& array) {
  if (array.view.dtype == DType::bfloat16) {
    throw Error(ErrorKind::usage, "NumPy has no bfloat16", "use output=\"torch\", or another dtype");
  }
  auto keeper = std::make_unique<std::shared_ptr<const void>>(array.owner);
  const nb::capsule owner(keeper.get(),
                          [](void* kept) noexcept { delete static_cast<std::shared_ptr<const void>*>(kept); });
  (void)keeper.release();
  std::vector<size_t> shape(array.view.shape.begin(), array.view.shape.end());
  return nb::cast(nb::ndarray<nb::numpy>(array.view.data, shape.size(), shape.data(), owner, array.view.strides.data(),
                                         nanobind_type(array.view.dtype)));
}

// One Python object a sample: nothing of it points into the batch.
nb::list list_of(const Batch& batch, const std::string& field, bool text) {
  nb::list values;
  for (int64_t i = 0; i < batch.size(); ++i) {
    const std::string_view value = batch.value(field, i);
    if (text) {
      values.append(nb::str(value.data(), value.size()));
    } else {
      values.append(nb::bytes(value.data(), value.size()));
    }
  }
  return values;
}

std::shared_ptr<const void> owner_of(const Batch& batch) {
  return std::make_shared<Batch>(batch);
}

template <class T>
BatchArray vector_of(const Batch& batch, const T* data, DType dtype) {
  return {owner_of(batch), {const_cast<T*>(data), dtype, {batch.size()}, {1}}};
}

}  // namespace

void register_batch(nb::module_& module) {
  nb::class_<GpuImages>(module, "GpuImages", "penstock::GpuImages: images of a batch in memory of a loader's GPU.")
      .def_ro("first", &GpuImages::first)
      .def_ro("samples", &GpuImages::samples)
      .def_ro("nbytes", &GpuImages::bytes);
  nb::class_<BatchArray>(module, "Array",
                         "One field of a batch: memory that is shared, not copied. torch.from_dlpack(array) and\n"
                         "array.numpy() give tensors that keep the batch's memory and may be written to.")
      .def_prop_ro("shape", [](const BatchArray& a) { return nb::tuple(nb::cast(a.view.shape)); })
      .def_prop_ro(
          "strides", [](const BatchArray& a) { return nb::tuple(nb::cast(a.view.strides)); }, "In elements.")
      .def_prop_ro("dtype", [](const BatchArray& a) { return name_of(a.view.dtype); })
      .def_prop_ro("nbytes",
                   [](const BatchArray& a) { return a.view.elements() * static_cast<int64_t>(size_of(a.view.dtype)); })
      .def("numpy", &to_numpy, "A NumPy array of the same memory. bfloat16: UsageError.")
      .def("__dlpack__", &to_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
           nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           "A capsule for any DLPack consumer (array API standard). The batch lies in memory of the host: stream must "
           "be\n"
           "None. copy=True gives memory of its own. BufferError for another device.")
      .def("__dlpack_device__", [](const BatchArray&) { return nb::make_tuple(dlpack::kCpu, 0); });

  nb::class_<Batch>(module, "Batch", "A batch and the memory it owns by reference count.")
      .def("__len__", [](const Batch& b) { return b.size(); })
      .def_prop_ro("epoch", &Batch::epoch)
      .def_prop_ro("step", &Batch::step)
      .def_prop_ro("num_valid", &Batch::num_valid)
      .def_prop_ro("held", &Batch::held)
      .def_prop_ro("arithmetic", [](const Batch& b) { return name_of(b.arithmetic()); })
      .def("fields", &Batch::fields)
      .def("gpu_images", &OfferedGpuMemory::images_of)
      .def(
          "__getitem__",
          [](const Batch& b, const std::string& field) {
            const FieldKind kind = b.kind(field);
            if (kind == FieldKind::text || kind == FieldKind::bytes) {
              return nb::object(list_of(b, field, kind == FieldKind::text));
            }
            return nb::cast(BatchArray{owner_of(b), b[field]});
          },
          "An Array; a list of str or bytes where the field is one of text or bytes.")
      .def_prop_ro("indices", [](const Batch& b) { return vector_of(b, b.indices(), DType::int64); })
      .def_prop_ro("valid", [](const Batch& b) { return vector_of(b, b.valid(), DType::uint8); })
      .def_prop_ro("substituted", [](const Batch& b) { return vector_of(b, b.substituted(), DType::uint8); });
}

}  // namespace penstock::python
