#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
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

std::unique_ptr<JoinedRankHandle> join(int communicator, const std::string& job, std::vector<std::string> overrides,
                                       const std::optional<std::string>& role) {
  const JoinOptions options{std::move(overrides), role_of(role), &check_signals};
  const Unlocked unlocked;
  // The last of its loaders may go in any thread, and it may wait then.
  return std::make_unique<JoinedRankHandle>(std::shared_ptr<JoinedRank>(
      new JoinedRank(communicator, job, options), [](JoinedRank* rank) { without_gil([rank] { delete rank; }); }));
}

}  // namespace

void register_joined(nb::module_& module) {
  using Handle = JoinedRankHandle;
  nb::class_<Handle>(module, "JoinedRank", "penstock::JoinedRank; see runtime/ranks/joined_rank.h.")
      .def_prop_ro("loads", [](Handle& self) { return self.rank->loads(); })
      .def_prop_ro("number", [](Handle& self) { return self.rank->number(); })
      .def_prop_ro("trainers", [](Handle& self) { return self.rank->trainers(); })
      .def_prop_ro("local_number", [](Handle& self) { return self.rank->local_number(); })
      .def_prop_ro("job_file", [](Handle& self) { return self.rank->job_file(); })
      .def_prop_ro("communicator", [](Handle& self) { return self.rank->trainers_communicator(); })
      .def("serve",
           [](Handle& self) {
             const Unlocked unlocked;
             self.rank->serve();
           })
      .def(
          "leave",
          [](Handle& self, bool well) {
            const Unlocked unlocked;
            return self.rank->leave(well);
          },
          nb::arg("well"));
  module.def("join", &join, nb::arg("communicator"), nb::arg("job"), nb::arg("overrides"), nb::arg("role").none());
}

}  // namespace penstock::python
