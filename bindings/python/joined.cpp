#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/handles.h"
#include "runtime/base/error.h"
#include "runtime/ranks/joined_rank.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

std::optional<Role> role_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "trainer") return Role::trainer;
  if (*name == "loader") return Role::loader;
  throw Error(ErrorKind::usage, "role='" + *name + "'", "say \"trainer\" or \"loader\", on every rank, or nothing");
}

std::shared_ptr<JoinedRank> join(int communicator, const std::string& job, std::vector<std::string> overrides,
                                 const std::optional<std::string>& role) {
  const JoinOptions options{std::move(overrides), role_of(role)};
  const Unlocked unlocked;
  return {new JoinedRank(communicator, job, options), [](JoinedRank* rank) { without_gil([rank] { delete rank; }); }};
}

}  // namespace

void register_joined(nb::module_& module) {
  nb::class_<JoinedRank>(module, "JoinedRank", "penstock::JoinedRank; see runtime/ranks/joined_rank.h.")
      .def_prop_ro("loads", &JoinedRank::loads)
      .def_prop_ro("number", &JoinedRank::number)
      .def_prop_ro("trainers", &JoinedRank::trainers)
      .def_prop_ro("local_number", &JoinedRank::local_number)
      .def_prop_ro("communicator", &JoinedRank::trainers_communicator)
      .def("serve", &JoinedRank::serve, nb::call_guard<Unlocked>())
      .def("leave", &JoinedRank::leave, nb::arg("well"), nb::call_guard<Unlocked>());
  module.def("join", &join, nb::arg("communicator"), nb::arg("job"), nb::arg("overrides"), nb::arg("role").none());
}

}  // namespace penstock::python
