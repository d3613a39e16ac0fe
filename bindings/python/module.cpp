// penstock._penstock: the compiled part of the Python package. What users see is made of it in penstock/*.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "bindings/python/handles.h"
#include "runtime/base/error.h"
#include "runtime/datasets/python_workers.h"

namespace nb = nanobind;

namespace {

// Names of files, and what stands in them, may be no UTF-8.
nb::object readable(const std::string& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// penstock.errors has the classes; the kind chooses one.
void translate(const std::exception_ptr& problem, void*) {
  try {
    std::rethrow_exception(problem);
  } catch (const penstock::Error& error) {
    try {
      const nb::object raise = nb::module_::import_("penstock.errors").attr("make");
      const nb::object made = raise(error.exit_code(), readable(error.message()), readable(error.remedy()));
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
    } catch (const nb::python_error& failed) {
      nb::python_error copy(failed);
      copy.restore();
    }
  }
}

}  // namespace

NB_MODULE(_penstock, module) {
  module.doc() = "The compiled part of penstock; use the package's own names.";
  // At exit nanobind lists what still lives, which daemon threads may keep by right; the tests want to know.
  const char* wanted = std::getenv("PENSTOCK_LEAK_WARNINGS");
  nb::set_leak_warnings(wanted != nullptr && wanted[0] == '1');
  nb::register_exception_translator(&translate);
  // Workers of a job file have what this program has. Empty or None where Python is part of another program.
  if (const nb::object own = nb::module_::import_("sys").attr("executable"); nb::isinstance<nb::str>(own)) {
    if (auto path = nb::cast<std::string>(own); !path.empty()) penstock::set_usual_interpreter(std::move(path));
  }
  penstock::python::register_batch(module);
  penstock::python::register_finishing(module);
  penstock::python::register_joined(module);  // before what takes one
  penstock::python::register_loader(module);
  penstock::python::register_samplers(module);
  penstock::python::register_listing(module);
  penstock::python::register_preprocessor(module);
  penstock::python::register_planning(module);
}
