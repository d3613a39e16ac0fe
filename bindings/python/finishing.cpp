#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bindings/python/handles.h"
#include "runtime/base/error.h"
#include "runtime/card/card_finisher.h"
#include "runtime/card/cards.h"

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

class CardHandle {
 public:
  CardHandle(const Finisher& finisher, int number, uintptr_t stream)
      : finisher_(finisher),
        card_(new CardFinisher(open_trainers_card(number), finisher, reinterpret_cast<void*>(stream))) {}

  void start(uintptr_t images, size_t bytes, int64_t samples, uintptr_t tensor) {
    check_bytes(finisher_, bytes, samples);
    card_->finish(reinterpret_cast<const uint8_t*>(images), samples, reinterpret_cast<void*>(tensor));
  }
  void wait() { card_->wait(); }
  nb::dict figures() const {
    constexpr double kSecondNs = 1e9;
    const CardFinisher::Figures& figures = card_->figures();
    nb::dict out;
    out["card"] = nb::str(card_->card().name.c_str());
    out["images"] = figures.samples;
    out["uploaded_bytes"] = figures.uploaded_bytes;
    out["card_memory_bytes"] = card_->memory_bytes();
    out["copy_s"] = static_cast<double>(figures.times.upload_ns + figures.times.copy_ns) / kSecondNs;
    out["finish_s"] = static_cast<double>(figures.times.augment_ns()) / kSecondNs;
    return out;
  }

 private:
  Finisher finisher_;
  std::unique_ptr<CardFinisher, DeleteUnlocked> card_;  // which waits for what it was told
};

}  // namespace

void register_finishing(nb::module_& module) {
  module.def("why_no_card", &why_no_card, nb::call_guard<Unlocked>(),
             "Why images cannot be finished on a card: empty where they can.");
  nb::class_<CardHandle>(module, "CardFinisher", "penstock::CardFinisher; see runtime/card/card_finisher.h.")
      .def("start", &CardHandle::start, nb::arg("images"), nb::arg("bytes"), nb::arg("samples"), nb::arg("tensor"),
           nb::call_guard<Unlocked>())
      .def("wait", &CardHandle::wait, nb::call_guard<Unlocked>())
      .def("figures", &CardHandle::figures);
  nb::class_<Finisher>(module, "Finisher",
                       "What makes of a raw image what a split's job says; runtime/augment/finish.h.")
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
          "card",
          [](const Finisher& finisher, int number, uintptr_t stream) {
            const Unlocked unlocked;
            return new CardHandle(finisher, number, stream);
          },
          nb::arg("number"), nb::arg("stream"), nb::rv_policy::take_ownership, "On a card, in this stream of it.");
}

}  // namespace penstock::python
