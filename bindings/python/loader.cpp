#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>

#include "bindings/python/handles.h"
#include "runtime/base/error.h"
#include "runtime/client/state_file.h"
#include "runtime/datasets/python_workers.h"
#include "runtime/datasets/split_folders.h"
#include "runtime/job/job.h"
#include "runtime/pixels/finish.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// A Python callable that C++ may drop in any thread: its reference goes back under the GIL.
class Callback {
 public:
  explicit Callback(nb::object call)
      : call_(new nb::object(std::move(call)), [](nb::object* object) {
          const Locked gil;
          delete object;
        }) {}
  void operator()(const std::string& text) const {
    const Locked gil;
    if (!call_->is_none()) (*call_)(text);
  }

 private:
  std::shared_ptr<nb::object> call_;
};

std::unique_ptr<DataLoader> open(const std::string& job, bool is_text, const std::string& name,
                                 const std::string& split, std::vector<std::string> overrides,
                                 std::optional<int> num_replicas, std::optional<int> rank, bool places_are_ranks,
                                 std::optional<std::string> dtype, std::optional<bool> channels_last, bool raw_images,
                                 bool gpu_images, std::optional<bool> attach, double timeout_s, nb::object on_warning,
                                 const JoinedRankHandle* receiver) {
  DataLoaderOptions options;
  options.overrides = std::move(overrides);
  options.num_replicas = num_replicas;
  options.rank = rank;
  options.places_are_ranks = places_are_ranks;
  options.dtype = image_dtype(dtype);
  options.channels_last = channels_last;
  options.raw_images = raw_images;
  options.gpu_images = gpu_images;
  options.attach = attach;
  options.timeout_s = timeout_s;
  if (receiver != nullptr) options.receiver = receiver->rank;
  options.on_warning = Callback(std::move(on_warning));
  options.while_waiting = &check_signals;
  options.ending = [](const std::function<void()>& end) { without_gil(end); };
  const Unlocked unlocked;
  if (is_text) return std::make_unique<DataLoader>(DataLoader::from_text(job, name, split, options));
  return std::make_unique<DataLoader>(job, split, options);
}

class LoaderHandle {
 public:
  explicit LoaderHandle(std::unique_ptr<DataLoader> loader) : loader_(loader.release(), DeleteUnlocked{}) {}
  DataLoader& operator*() const {
    if (!loader_) throw Error(ErrorKind::usage, "this DataLoader was closed", "make a new one");
    return *loader_;
  }
  DataLoader* operator->() const { return &**this; }
  // For calls that let go of the GIL: another thread may close() meanwhile. Taken with the GIL, and given back with it.
  std::shared_ptr<DataLoader> hold() const {
    (void)**this;
    return loader_;
  }
  template <class Call>
  auto unlocked(const Call& call) const {
    const auto loader = hold();
    const Unlocked gil;
    return call(*loader);
  }
  void close() {
    if (loader_) loader_->end_waits();
    loader_.reset();
  }
  bool closed() const { return !loader_; }

 private:
  std::shared_ptr<DataLoader> loader_;
};

class BatchStreamHandle {
 public:
  explicit BatchStreamHandle(BatchStream stream) : stream_(new BatchStream(std::move(stream))) {}
  std::optional<Batch> next() {
    const Unlocked unlocked;
    Batch batch = stream_->next();
    if (!batch) return std::nullopt;
    return batch;
  }

 private:
  std::unique_ptr<BatchStream, DeleteUnlocked> stream_;
};

}  // namespace

std::optional<DType> image_dtype(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  for (const DType dtype : {DType::uint8, DType::float32, DType::float16, DType::bfloat16}) {
    if (*name == name_of(dtype)) return dtype;
  }
  throw Error(ErrorKind::usage, "images cannot be of dtype '" + *name + "'",
              "choose uint8, float32, float16 or bfloat16");
}

void check_signals() {
  if (::gettid() != ::getpid()) return;
  const Locked gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void register_loader(nb::module_& module) {
  module.def(
      "split_names",
      [](const std::string& job, bool is_text, const std::vector<std::string>& overrides) {
        std::vector<std::string> names;
        const Job read = is_text ? load_job_text(job, "<job>", overrides) : load_job(job, overrides);
        for (const auto& [name, split] : read.splits) names.push_back(name);
        return names;
      },
      nb::arg("job"), nb::kw_only(), nb::arg("is_text"), nb::arg("overrides"));
  module.def(
      "serve_python_here",
      [](nb::object serve) {
        // For as long as the process lives, as threads of the library may ask at any time.
        set_python_here([call = serve.release().ptr()](const std::string& name, UniqueFd socket) {
          // A thread that waits for an interpreter that has gone stays, and the loader's end waits for it.
          if (interpreter_ends()) return false;
          const Locked gil;
          const nb::object taken = nb::handle(call)(name, socket.get());
          if (!nb::cast<bool>(taken)) return false;
          (void)socket.release();
          return true;
        });
      },
      nb::arg("serve"),
      "serve(name, descriptor) takes requests for the dataset `here:name`, for whoever waits for a batch, and owns the "
      "descriptor; False: there is none of that name.");
  // A disk may take its time, in which the program's other threads go on.
  module.def("save_state", &save_state, nb::arg("path"), nb::arg("json"), nb::call_guard<Unlocked>());
  module.def("load_state", &load_state, nb::arg("path"), nb::call_guard<Unlocked>());
  module.def(
      "splits_as_classes", [](const std::string& folder) { return splits_as_classes(folder); }, nb::arg("folder"));
  nb::class_<ExportedMemoryHandle>(module, "ExportedGpuMemory",
                                   "penstock::ExportedGpuMemory; see runtime/client/gpu_images.h.")
      .def_prop_ro("nbytes", [](const ExportedMemoryHandle& self) { return self.memory->bytes; })
      .def_prop_ro("linked", [](const ExportedMemoryHandle& self) { return self.memory->linked; })
      .def_prop_ro(
          "opened", [](const ExportedMemoryHandle& self) { return !self.memory->link_id.empty(); },
          "Where linked: the loader's end is, and join() may be.")
      .def_prop_ro("problem", [](const ExportedMemoryHandle& self) { return self.memory->problem; })
      .def("__eq__", [](const ExportedMemoryHandle& self,
                        const ExportedMemoryHandle& other) { return self.memory == other.memory; })
      .def("__hash__", [](const ExportedMemoryHandle& self) { return std::hash<const void*>()(self.memory.get()); });
  nb::class_<BatchStreamHandle>(module, "BatchStream", "One iteration over a split.")
      .def("next", &BatchStreamHandle::next, "The next Batch, or None at the end. Waits with the GIL released.");

  nb::class_<LoaderHandle>(module, "Loader", "penstock::DataLoader; see runtime/client/data_loader.h.")
      .def(
          "__init__",
          [](LoaderHandle* self, const std::string& job, bool is_text, const std::string& name,
             const std::string& split, std::vector<std::string> overrides, std::optional<int> num_replicas,
             std::optional<int> rank, bool places_are_ranks, std::optional<std::string> dtype,
             std::optional<bool> channels_last, bool raw_images, bool gpu_images, std::optional<bool> attach,
             double timeout_s, nb::object on_warning, const JoinedRankHandle* receiver) {
            new (self) LoaderHandle(open(job, is_text, name, split, std::move(overrides), num_replicas, rank,
                                         places_are_ranks, std::move(dtype), channels_last, raw_images, gpu_images,
                                         attach, timeout_s, std::move(on_warning), receiver));
          },
          nb::arg("job"), nb::kw_only(), nb::arg("is_text"), nb::arg("name"), nb::arg("split"), nb::arg("overrides"),
          nb::arg("num_replicas").none(), nb::arg("rank").none(), nb::arg("places_are_ranks"), nb::arg("dtype").none(),
          nb::arg("channels_last").none(), nb::arg("raw_images"), nb::arg("gpu_images") = false,
          nb::arg("attach").none(), nb::arg("timeout_s") = 0.0, nb::arg("on_warning").none(),
          nb::arg("receiver").none() = nb::none())
      .def("close", &LoaderHandle::close)
      .def_prop_ro("closed", &LoaderHandle::closed)
      .def(
          "start_at",
          [](LoaderHandle& self, int64_t epoch, int64_t step, std::vector<int64_t> order) {
            return BatchStreamHandle(
                self.unlocked([&](DataLoader& loader) { return loader.start_at(epoch, step, std::move(order)); }));
          },
          nb::arg("epoch"), nb::arg("step"), nb::arg("order") = std::vector<int64_t>())
      .def(
          "state",
          [](LoaderHandle& self, int64_t epoch, int64_t step, int64_t order_samples) {
            return self->state(epoch, step, order_samples);
          },
          nb::arg("epoch"), nb::arg("step"), nb::arg("order_samples") = 0)
      .def(
          "resume",
          [](LoaderHandle& self, const std::string& state, int64_t order_samples) {
            const Cursor cursor =
                self.unlocked([&](DataLoader& loader) { return loader.resume(state, order_samples); });
            return std::pair(cursor.epoch, cursor.step);
          },
          nb::arg("state"), nb::arg("order_samples") = 0)
      .def("spec", [](LoaderHandle& self) { return self->spec(); })
      .def("report_json",
           [](LoaderHandle& self) { return self.unlocked([](DataLoader& loader) { return loader.report_json(); }); })
      .def("fields", [](LoaderHandle& self) { return self->fields(); })
      .def(
          "is_image",
          [](LoaderHandle& self, const std::string& field) { return self->kind(field) == FieldKind::image; },
          nb::arg("field"))
      .def_prop_ro("raw_images", [](LoaderHandle& self) { return self->raw_images(); })
      .def("finisher", [](LoaderHandle& self) { return self->finisher(); })
      .def(
          "offered_memory",
          [](LoaderHandle& self) {
            std::vector<ExportedMemoryHandle> offered;
            self.unlocked([&](DataLoader& loader) {
              for (auto& memory : OfferedGpuMemory(loader).take()) offered.push_back({std::move(memory)});
            });
            return offered;
          },
          "Of loaders' GPUs, each once.")
      .def(
          "use_memory",
          [](LoaderHandle& self, const ExportedMemoryHandle& memory) {
            self.unlocked([&](DataLoader& loader) { OfferedGpuMemory(loader).use(*memory.memory); });
          },
          nb::arg("memory"))
      .def(
          "ask_for_link",
          [](LoaderHandle& self, const ExportedMemoryHandle& memory, const std::string& identity) {
            self.unlocked([&](DataLoader& loader) { OfferedGpuMemory(loader).ask_for_link(*memory.memory, identity); });
          },
          nb::arg("memory"), nb::arg("identity"))
      .def(
          "ask_for_images",
          [](LoaderHandle& self, const ExportedMemoryHandle& memory,
             const std::vector<std::pair<uint64_t, uint64_t>>& places) {
            std::vector<MemoryRange> runs;
            for (const auto& [at, bytes] : places) runs.push_back({at, bytes});
            self.unlocked(
                [&](DataLoader& loader) { OfferedGpuMemory(loader).ask_for_images(*memory.memory, std::move(runs)); });
          },
          nb::arg("memory"), nb::arg("places"))
      .def("use_no_memory",
           [](LoaderHandle& self) { self.unlocked([](DataLoader& loader) { OfferedGpuMemory(loader).use_none(); }); })
      .def_prop_ro("size", [](LoaderHandle& self) { return self->size(); })
      .def_prop_ro("batch_size", [](LoaderHandle& self) { return self->batch_size(); })
      .def_prop_ro("hold", [](LoaderHandle& self) { return self->hold(); })
      .def_prop_ro("num_samples", [](LoaderHandle& self) { return self->num_samples(); })
      .def_prop_ro("dataset_size", [](LoaderHandle& self) { return self->dataset_size(); })
      .def_prop_ro("num_replicas", [](LoaderHandle& self) { return self->num_replicas(); })
      .def_prop_ro("ranks_per_replica", [](LoaderHandle& self) { return self->ranks_per_replica(); })
      .def_prop_ro("rank", [](LoaderHandle& self) { return self->rank(); })
      .def_prop_ro("class_names",
                   [](LoaderHandle& self) {
                     nb::list out;  // of folders' names, which may be any bytes: as os.listdir shows them
                     for (const std::string& name : self->class_names()) {
                       out.append(nb::steal(
                           PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "surrogateescape")));
                     }
                     return out;
                   })
      .def_prop_ro("embedded", [](LoaderHandle& self) { return self->embedded(); });
}

}  // namespace penstock::python
