#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/handles.h"
#include "runtime/base/error.h"
#include "runtime/sample/substitutes.h"
#include "runtime/serving/preprocessor.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// The memory of a bytes-like object, which cannot be freed or resized while this is there. Made and dropped under the
// GIL.
class Buffer {
 public:
  Buffer(nb::handle object, size_t place) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      throw Error(ErrorKind::usage,
                  "image " + std::to_string(place) + " is a " + nb::type_name(object.type()).c_str() +
                      ", not the bytes of a file",
                  "give bytes, bytearray, memoryview, a contiguous uint8 array, or a path");
    }
    if (view_.ndim > 1 || view_.itemsize != 1) {
      const std::string what =
          std::to_string(view_.ndim) + " dimensions of " + std::to_string(view_.itemsize) + " bytes";
      PyBuffer_Release(&view_);
      throw Error(ErrorKind::usage, "image " + std::to_string(place) + " is an array of " + what,
                  "give the encoded file as bytes, or as a uint8 array of one dimension");
    }
  }
  Buffer(Buffer&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// Arguments that come as the program gave them, so that a wrong one is complained of by its name.
[[noreturn]] void refuse(const char* name, nb::handle value, const char* remedy) {
  PyErr_Clear();
  throw Error(ErrorKind::usage, std::string(name) + "=" + nb::repr(value).c_str(), remedy);
}
int64_t integer(const char* name, nb::handle value) {
  const nb::object number = nb::steal(PyBool_Check(value.ptr()) ? nullptr : PyNumber_Index(value.ptr()));
  const long long found = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : -1;
  if (!number.is_valid() || PyErr_Occurred() != nullptr) refuse(name, value, "say an integer of at most 64 bits");
  return found;
}
std::optional<std::vector<int64_t>> integers(const char* name, nb::handle values) {
  if (values.is_none()) return std::nullopt;
  std::vector<int64_t> out;
  for (const nb::handle value : values) out.push_back(integer(name, value));
  return out;
}
std::optional<bool> flag(const char* name, nb::handle value) {
  if (value.is_none()) return std::nullopt;
  if (!PyBool_Check(value.ptr())) refuse(name, value, "say True or False");
  return value.ptr() == Py_True;
}
std::optional<double> number(const char* name, nb::handle value) {
  if (value.is_none()) return std::nullopt;
  const double found = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred() != nullptr) refuse(name, value, "say a number");
  return found;
}

class PendingHandle {
 public:
  PendingHandle(std::vector<Buffer> buffers, PendingImages pending)
      : buffers_(std::move(buffers)), pending_(new PendingImages(std::move(pending))) {}

  std::pair<BatchArray, std::vector<std::string>> wait() {
    if (!batch_) {
      const Unlocked unlocked;
      batch_ = pending_->wait(&check_signals);
    }
    buffers_.clear();
    return {BatchArray{batch_->memory(), batch_->images()}, batch_->reasons()};
  }
  bool ready() const { return pending_->ready(); }

 private:
  std::vector<Buffer> buffers_;      // outlive the reading
  std::optional<ImageBatch> batch_;  // Ctrl-C may keep the program from getting it
  std::unique_ptr<PendingImages, DeleteUnlocked> pending_;
};

class PreprocessorHandle {
 public:
  explicit PreprocessorHandle(Preprocessor preprocessor) : preprocessor_(new Preprocessor(std::move(preprocessor))) {}
  Preprocessor& operator*() const {
    if (!preprocessor_) throw Error(ErrorKind::usage, "this Preprocessor was closed", "make a new one");
    return *preprocessor_;
  }
  Preprocessor* operator->() const { return &**this; }
  void close() { preprocessor_.reset(); }
  bool closed() const { return !preprocessor_; }

 private:
  std::unique_ptr<Preprocessor, DeleteUnlocked> preprocessor_;
};

Preprocessor open(const std::string& job, bool is_text, const std::string& name, const std::string& split,
                  std::vector<std::string> overrides, const std::optional<std::string>& dtype,
                  std::optional<bool> channels_last, bool raw_images, int threads, std::optional<double> cpu_fraction) {
  PreprocessorOptions options;
  options.cpu_fraction = cpu_fraction;
  options.overrides = std::move(overrides);
  options.dtype = image_dtype(dtype);
  options.channels_last = channels_last;
  options.raw_images = raw_images;
  options.threads = threads;
  const Unlocked unlocked;
  return is_text ? Preprocessor::from_text(job, name, split, options) : Preprocessor(job, split, options);
}

PendingHandle submit(PreprocessorHandle& self, const std::vector<nb::object>& images, nb::handle index_of_each,
                     nb::handle epoch_of_all, nb::handle occurrence_of_each) {
  const size_t n = images.size();
  const std::optional<std::vector<int64_t>> indices = integers("index", index_of_each);
  const std::optional<std::vector<int64_t>> occurrences = integers("occurrence", occurrence_of_each);
  const int64_t epoch = integer("epoch", epoch_of_all);
  if ((indices && indices->size() != n) || (occurrences && occurrences->size() != n)) {
    throw Error(ErrorKind::usage,
                std::to_string(n) + " images, but " +
                    std::to_string(indices && indices->size() != n ? indices->size() : occurrences->size()) +
                    " indices or occurrences",
                "give one for each image");
  }
  std::vector<Buffer> buffers;
  buffers.reserve(n);
  std::vector<EncodedImage> encoded(n);
  for (size_t i = 0; i < n; ++i) {
    buffers.emplace_back(images[i], i);
    encoded[i] = {buffers[i].bytes(), std::nullopt, epoch, occurrences ? (*occurrences)[i] : 0};
    if (indices) encoded[i].index = (*indices)[i];
  }
  PendingImages pending = self->submit(std::move(encoded));
  return {std::move(buffers), std::move(pending)};
}

}  // namespace

void register_preprocessor(nb::module_& module) {
  nb::class_<Substitutes>(module, "Substitutes", "Which samples are tried in the place of an unusable one.")
      .def(
          "__init__",
          [](Substitutes* self, uint64_t seed, int64_t epoch, int64_t index, int64_t dataset_size, double max_fraction,
             int64_t max_count) {
            new (self) Substitutes(seed, epoch, index, dataset_size, {max_fraction, max_count});
          },
          nb::arg("seed"), nb::arg("epoch"), nb::arg("index"), nb::arg("dataset_size"), nb::arg("max_fraction"),
          nb::arg("max_count"))
      .def("next", &Substitutes::next, "The next one; None: there are no more.")
      .def_prop_ro("given", &Substitutes::given);

  nb::class_<PendingHandle>(module, "PendingImages", "What submit() began.")
      .def("wait", &PendingHandle::wait, "(images, reasons), the same ones each time; waits with the GIL released.")
      .def_prop_ro("ready", &PendingHandle::ready);

  nb::class_<PreprocessorHandle>(module, "Preprocessor", "penstock::Preprocessor; see runtime/serving/preprocessor.h.")
      .def(
          "__init__",
          [](PreprocessorHandle* self, const std::string& job, bool is_text, const std::string& name,
             const std::string& split, std::vector<std::string> overrides, std::optional<std::string> dtype,
             nb::handle channels_last, bool raw_images, int threads, nb::handle cpu_fraction) {
            new (self) PreprocessorHandle(open(job, is_text, name, split, std::move(overrides), dtype,
                                               flag("channels_last", channels_last), raw_images, threads,
                                               number("cpu_fraction", cpu_fraction)));
          },
          nb::arg("job"), nb::kw_only(), nb::arg("is_text"), nb::arg("name"), nb::arg("split"), nb::arg("overrides"),
          nb::arg("dtype").none(), nb::arg("channels_last").none(), nb::arg("raw_images"), nb::arg("threads"),
          nb::arg("cpu_fraction").none())
      .def("submit", &submit, nb::arg("images"), nb::arg("indices").none(), nb::arg("epoch"),
           nb::arg("occurrences").none())
      .def("close", &PreprocessorHandle::close)
      .def_prop_ro("closed", &PreprocessorHandle::closed)
      .def("fingerprint", [](PreprocessorHandle& self) { return self->fingerprint(); })
      .def("spec", [](PreprocessorHandle& self) { return self->spec(); })
      .def("state", [](PreprocessorHandle& self) { return self->state(); })
      .def(
          "check", [](PreprocessorHandle& self, const std::string& state) { self->check(state); }, nb::arg("state"))
      .def_prop_ro("height", [](PreprocessorHandle& self) { return self->height(); })
      .def_prop_ro("width", [](PreprocessorHandle& self) { return self->width(); })
      .def_prop_ro("dtype", [](PreprocessorHandle& self) { return name_of(self->dtype()); })
      .def("finisher", [](PreprocessorHandle& self) { return self->finisher(); })
      .def_prop_ro("threads", [](PreprocessorHandle& self) { return self->threads(); })
      .def_prop_ro("gpus",
                   [](PreprocessorHandle& self) {
                     nb::list out;
                     for (const PreprocessorGpu& gpu : self->gpus()) {
                       nb::dict one;
                       one["name"] = gpu.name;
                       one["images"] = gpu.images;
                       one["failure"] = gpu.failure;
                       out.append(one);
                     }
                     return out;
                   })
      .def_prop_ro("no_gpu", [](PreprocessorHandle& self) { return self->no_gpu(); })
      .def_prop_ro("random_transforms", [](PreprocessorHandle& self) { return self->random_transforms(); });
}

}  // namespace penstock::python
