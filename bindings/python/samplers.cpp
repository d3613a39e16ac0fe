// The orders of sampler/, as lists: penstock/samplers.py makes torch's classes of them.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <vector>

#include "bindings/python/handles.h"
#include "runtime/base/hash.h"
#include "sampler/draws.h"
#include "sampler/samplers.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using Order = std::vector<int64_t>;
using Weights = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A shuffle of millions takes a while; the list is made of it afterwards, under the GIL.
template <class Make>
Order unlocked(Make make) {
  const Unlocked unlocked;
  return make();
}

Order distributed_order(int64_t size, int64_t num_replicas, int64_t rank, bool shuffle, uint64_t seed, bool drop_last,
                        int64_t epoch) {
  return unlocked([&] {
    DistributedSampler sampler(size, num_replicas, rank, shuffle, seed, drop_last);
    sampler.set_epoch(epoch);
    Order order;
    order.reserve(static_cast<size_t>(sampler.size()));
    for (const int64_t index : sampler) order.push_back(index);
    return order;
  });
}

}  // namespace

void register_samplers(nb::module_& module) {
  module.def("distributed_order", &distributed_order, nb::arg("size"), nb::arg("num_replicas"), nb::arg("rank"),
             nb::arg("shuffle"), nb::arg("seed"), nb::arg("drop_last"), nb::arg("epoch"));
  module.def(
      "random_order",
      [](int64_t size, bool replacement, int64_t num_samples, uint64_t seed) {
        return unlocked([&] {
          return replacement ? draw_with_replacement(size, num_samples, seed)
                             : draw_permutations(size, num_samples, seed);
        });
      },
      nb::arg("size"), nb::arg("replacement"), nb::arg("num_samples"), nb::arg("seed"));
  module.def(
      "weighted_order",
      [](const Weights& weights, int64_t num_samples, uint64_t seed) {
        const std::span<const double> values(weights.data(), weights.size());
        return unlocked([&] { return draw_weighted(values, num_samples, seed); });
      },
      nb::arg("weights"), nb::arg("num_samples"), nb::arg("seed"));
  module.def(
      "order_digest", [](const Order& order) { return hash128(std::as_bytes(std::span<const int64_t>(order))).hex(); },
      nb::arg("order"), "XXH3-128 of the indices as int64.");
}

}  // namespace penstock::python
