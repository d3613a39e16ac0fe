#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

std::string check_python(const ParamMap& params, std::string& culprit) {
  culprit = "function";
  if (is_python_name(text_param(params, "function"))) return {};
  return "expected 'package.module:name', found '" + text_param(params, "function") + "'";
}

}  // namespace

// The user's own code on whole pixels. What runs it (worker processes) is the business of whoever calls
// Pipeline::apply; here it is a name, and a wall: everything before it is done before it runs. Draws: none of ours; the
// code gets a generator of its own (bindings/python/penstock/_worker.py has the key and the counter).
TransformInfo python_info() {
  return {.name = "Python",
          .doc = "a Python function: uint8 [height, width, 3] and a numpy Generator in, an array of the same shape out",
          .params = {{.name = "function", .kind = ParamKind::text, .doc = "'package.module:name'"},
                     {.name = "version",
                      .kind = ParamKind::text,
                      .default_value = std::string(),
                      .doc = "any text: change it with the code, and runs of the two are told apart"}},
          .check = check_python,
          .make = [](const ParamMap& params) { return PythonFunction{text_param(params, "function")}; }};
}

}  // namespace penstock
