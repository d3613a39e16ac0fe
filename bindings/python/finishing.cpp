#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/handles.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/gpu/gpu_finisher.h"
#include "runtime/gpu/gpus.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// Addresses are integers here: the tensors behind them are torch's, on a device or in page-locked memory.
void check_bytes(const Finisher& finisher, size_t bytes, int64_t samples) {
  const size_t each = 3 * finisher.pixels_per_image() * static_cast<size_t>(finisher.images_per_sample());
  if (samples < 0 || bytes != static_cast<size_t>(samples) * each) {
    throw Error(ErrorKind::usage, std::to_string(bytes) + " bytes are not " + std::to_string(samples) +
                                      " raw images of " + std::to_string(each) + " bytes");
  }
}

class GpuHandle {
 public:
  GpuHandle(const Finisher& finisher, int number, uintptr_t stream)
      : finisher_(finisher),
        gpu_(open_trainers_gpu(number)),
        work_(new GpuFinisher(gpu_, finisher, reinterpret_cast<void*>(stream))) {}
  ~GpuHandle() {
    const Unlocked unlocked;
    work_.reset();  // first: it waits for what it was told
    links_.clear();
  }
  GpuHandle(const GpuHandle&) = delete;
  GpuHandle& operator=(const GpuHandle&) = delete;

  // `elsewhere`: samples whose images are in other GPUs' memory, in order.
  void start(uintptr_t images, size_t bytes, int64_t samples, uintptr_t tensor,
             const std::vector<GpuImages>& elsewhere) {
    work_->finish(parts_of(images, bytes, samples, elsewhere), reinterpret_cast<void*>(tensor));
  }
  // What start() with the same arguments will receive by links: of each memory, in order, place and bytes.
  using Receives = std::vector<std::pair<ExportedMemoryHandle, std::vector<MemoryRange>>>;
  Receives receives(size_t bytes, int64_t samples, const std::vector<GpuImages>& elsewhere) {
    Receives wanted;
    for (const LinkRun& run : work_->runs(parts_of(0, bytes, samples, elsewhere))) {
      const auto memory = memory_of(run.link);
      const auto its = [&](const auto& item) { return item.first.memory == memory; };
      auto known = std::find_if(wanted.begin(), wanted.end(), its);
      if (known == wanted.end()) known = wanted.insert(known, {ExportedMemoryHandle{memory}, {}});
      known->second.push_back(run.run);
    }
    return wanted;
  }
  void open(const ExportedMemoryHandle& memory) { (void)exported_of(memory.memory); }
  void join(const ExportedMemoryHandle& memory) {
    links_[memory.memory] = gpu_->link(memory.memory->link_id, LinkEnd::receiver);
  }
  // Nothing: it is joining still; empty: it has joined; else why not.
  std::optional<std::string> joined(const ExportedMemoryHandle& memory) {
    const GpuLink& link = link_of(memory.memory);
    if (link.state() == LinkState::joining) return std::nullopt;
    return link.failure();
  }
  std::string identity() const { return gpu_->identity(); }
  std::string why_no_links() const { return gpu_->why_no_links(); }
  void wait() { work_->wait(); }
  nb::dict figures() const {
    constexpr double kSecondNs = 1e9;
    const GpuFinisher::Figures& figures = work_->figures();
    nb::dict out;
    out["gpu"] = nb::str(work_->gpu().name.c_str());
    out["images"] = figures.samples;
    out["uploaded_bytes"] = figures.uploaded_bytes;
    out["copied_bytes"] = figures.copied_bytes;
    out["linked_bytes"] = figures.linked_bytes;
    out["gpu_memory_bytes"] = work_->memory_bytes();
    out["copy_s"] = static_cast<double>(figures.times.upload_ns + figures.times.copy_ns) / kSecondNs;
    out["finish_s"] = static_cast<double>(figures.times.augment_ns()) / kSecondNs;
    return out;
  }

 private:
  std::vector<RawImages> parts_of(uintptr_t images, size_t bytes, int64_t samples,
                                  const std::vector<GpuImages>& elsewhere) {
    check_bytes(finisher_, bytes, samples);
    const auto* const here = reinterpret_cast<const uint8_t*>(images);
    const size_t each = samples > 0 ? bytes / static_cast<size_t>(samples) : 0;
    std::vector<RawImages> parts;
    int64_t at = 0;
    for (const GpuImages& part : elsewhere) {
      if (part.first < at || part.samples > samples - part.first) throw Error(ErrorKind::usage, "images of no sample");
      check_bytes(finisher_, part.bytes, part.samples);
      if (part.first > at) parts.push_back({here + static_cast<size_t>(at) * each, part.first - at});
      if (part.memory->linked) {
        parts.push_back({.samples = part.samples, .link = &link_of(part.memory), .at = part.at});
      } else {
        parts.push_back({images_in(exported_of(part.memory), part.at, part.bytes), part.samples, true});
      }
      at = part.first + part.samples;
    }
    if (at < samples) parts.push_back({here + static_cast<size_t>(at) * each, samples - at});
    return parts;
  }
  GpuLink& link_of(const std::shared_ptr<const ExportedGpuMemory>& memory) {
    std::erase_if(links_, [](const auto& item) { return item.first.expired(); });
    const auto known = links_.find(memory);
    if (known == links_.end()) throw Error(ErrorKind::usage, "memory of a loader's GPU that no link was joined for");
    return *known->second;
  }
  std::shared_ptr<const ExportedGpuMemory> memory_of(const GpuLink* link) const {
    const auto its = [link](const auto& item) { return item.second.get() == link; };
    return std::find_if(links_.begin(), links_.end(), its)->first.lock();
  }
  // What nobody has any more is let go of: of a lost loader, behind the last batch that had images there.
  const ExportedMemory& exported_of(const std::shared_ptr<const ExportedGpuMemory>& memory) {
    std::erase_if(exports_, [](const auto& item) { return item.first.expired(); });
    const auto known = exports_.find(memory);
    if (known != exports_.end()) return *known->second;
    return *exports_.emplace(memory, gpu_->open_exported(duplicate(memory->fd), memory->bytes)).first->second;
  }

  Finisher finisher_;
  std::shared_ptr<Gpu> gpu_;
  std::map<std::weak_ptr<const ExportedGpuMemory>, std::unique_ptr<ExportedMemory>, std::owner_less<>> exports_;
  std::map<std::weak_ptr<const ExportedGpuMemory>, std::unique_ptr<GpuLink>, std::owner_less<>> links_;
  std::unique_ptr<GpuFinisher> work_;
};

}  // namespace

void register_finishing(nb::module_& module) {
  module.def("why_no_gpu", &why_no_gpu, nb::call_guard<Unlocked>(),
             "Why images cannot be finished on a GPU: empty where they can.");
  nb::class_<GpuHandle>(module, "GpuFinisher", "penstock::GpuFinisher; see runtime/gpu/gpu_finisher.h.")
      .def("start", &GpuHandle::start, nb::arg("images"), nb::arg("bytes"), nb::arg("samples"), nb::arg("tensor"),
           nb::arg("elsewhere") = std::vector<GpuImages>(), nb::call_guard<Unlocked>())
      .def("open", &GpuHandle::open, nb::arg("memory"), nb::call_guard<Unlocked>(),
           "Memory that a loader's GPU exports; start() would do it, too. RunError where this GPU does not reach it.")
      .def("join", &GpuHandle::join, nb::arg("memory"), nb::call_guard<Unlocked>(), "Begins to; waits for nothing.")
      .def("joined", &GpuHandle::joined, nb::arg("memory"), nb::call_guard<Unlocked>(),
           "None while it is joining; empty when it has; else why not.")
      .def(
          "receives",
          [](GpuHandle& self, size_t bytes, int64_t samples, const std::vector<GpuImages>& elsewhere) {
            nb::list out;
            for (const auto& [memory, runs] : self.receives(bytes, samples, elsewhere)) {
              nb::list places;
              for (const MemoryRange& run : runs) places.append(nb::make_tuple(run.at, run.bytes));
              out.append(nb::make_tuple(memory, places));
            }
            return out;
          },
          nb::arg("bytes"), nb::arg("samples"), nb::arg("elsewhere"),
          "[(memory, [(at, bytes), ...]), ...] that start() will receive by links.")
      .def("identity", &GpuHandle::identity)
      .def("why_no_links", &GpuHandle::why_no_links)
      .def("wait", &GpuHandle::wait, nb::call_guard<Unlocked>())
      .def("figures", &GpuHandle::figures);
  nb::class_<Finisher>(module, "Finisher",
                       "What makes of a raw image what a split's job says; runtime/pixels/finish.h.")
      .def_prop_ro("dtype", [](const Finisher& finisher) { return name_of(finisher.spec().dtype); })
      .def_prop_ro(
          "channels_last",
          [](const Finisher& finisher) { return finisher.spec().memory_format == MemoryFormat::channels_last; })
      .def(
          "run",
          [](const Finisher& finisher, uintptr_t images, size_t bytes, int64_t samples, uintptr_t tensor) {
            check_bytes(finisher, bytes, samples);
            const size_t each = samples > 0 ? bytes / static_cast<size_t>(samples) : 0;
            for (size_t i = 0; i < static_cast<size_t>(samples); ++i) {
              finisher.run(reinterpret_cast<const uint8_t*>(images) + i * each,
                           reinterpret_cast<std::byte*>(tensor) + i * finisher.bytes_per_sample());
            }
          },
          nb::arg("images"), nb::arg("bytes"), nb::arg("samples"), nb::arg("tensor"), nb::call_guard<Unlocked>(),
          "On this CPU.")
      .def(
          "gpu",
          [](const Finisher& finisher, int number, uintptr_t stream) {
            const Unlocked unlocked;
            return new GpuHandle(finisher, number, stream);
          },
          nb::arg("number"), nb::arg("stream"), nb::rv_policy::take_ownership, "On a GPU, in this stream of it.");
}

}  // namespace penstock::python
