// What a data set holds, for programs that look at it as at torchvision's: penstock/datasets.py makes of it len(), classes,
// samples, targets and [i].
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/handles.h"
#include "runtime/base/error.h"
#include "runtime/datasets/source.h"
#include "runtime/job/job.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// Keys and classes are names of files and folders, which may be no UTF-8: as os.fsdecode() has them.
nb::object file_name(const std::string& text) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

struct Listing {
  std::unique_ptr<Source> source;
  std::string folder;  // of class folders, which keys are relative to; empty: of others

  nb::list keys() const {
    nb::list keys;
    for (int64_t i = 0; i < source->size(); ++i) keys.append(file_name(source->key(i)));
    return keys;
  }

  nb::list class_names() const {
    nb::list names;
    for (const std::string& name : source->class_names()) names.append(file_name(name));
    return names;
  }

  std::vector<int64_t> labels() const {
    const Unlocked unlocked;
    std::vector<int64_t> labels(static_cast<size_t>(source->size()));
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = source->label(static_cast<int64_t>(i));
    return labels;
  }

  nb::tuple sample(int64_t index) const {
    SourceSample sample;
    {
      const Unlocked unlocked;
      DrawKey key;
      key.index = static_cast<uint64_t>(index);
      const SampleStatus status = source->load(key, sample);
      if (!status.ok()) {
        throw Error(ErrorKind::dataset, "unusable sample '" + source->key(index) + "' (index " + std::to_string(index) +
                                            "): " + status.reason);
      }
    }
    const nb::bytes image(sample.image.data(), sample.image.size());
    return nb::make_tuple(image, sample.width, sample.height, sample.label);
  }
};

}  // namespace

void register_listing(nb::module_& module) {
  nb::class_<Listing>(module, "Listing",
                      "The samples of a job's split, without a loader; see runtime/datasets/source.h.")
      .def(
          "__init__",
          [](Listing* self, const std::string& job, bool is_text, const std::string& split,
             const std::vector<std::string>& overrides) {
            const Unlocked unlocked;
            const Job read = is_text ? load_job_text(job, "<job>", overrides) : load_job(job, overrides);
            const ResolvedSplit resolved = resolve_split(read, split);
            const std::string& folder = resolved.split.dataset.folder;
            new (self) Listing{make_source(resolved.split.dataset, resolved.limits), folder};
          },
          nb::arg("job"), nb::kw_only(), nb::arg("is_text"), nb::arg("split"), nb::arg("overrides"))
      .def_prop_ro("size", [](const Listing& self) { return self.source->size(); })
      .def_prop_ro("class_names", &Listing::class_names)
      .def_prop_ro("folder", [](const Listing& self) { return file_name(self.folder); })
      .def("keys", &Listing::keys)
      .def("labels", &Listing::labels)
      .def("sample", &Listing::sample, nb::arg("index"),
           "(image, width, height, label): an image file's bytes, or RGB pixels where width is not 0.");
}

}  // namespace penstock::python
