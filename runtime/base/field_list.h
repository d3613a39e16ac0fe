// Lists in one line, as job files and data sets have them: "depth, caption:text".
//
//   names_in("a, b,");                                   // "a", "b"
//   for (const FieldRequest& asked : field_requests("depth, caption:text")) ...
//
// Blanks around a name do not count. What is wrong in a list (an empty name, a kind that is none) is in the requests,
// for whoever can say where it stands; names_in() passes over empty names.
// Thread-safety: pure functions. Failure: none.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/fields.h"

namespace penstock {

std::vector<std::string> names_in(std::string_view list);

struct FieldRequest {
  std::string name;
  FieldKind kind = FieldKind::tensor;
  bool has_kind = false;                 // the list gives the kind
  std::optional<std::string> no_kind{};  // what stands behind the name's last ':' and is no kind
};
std::vector<FieldRequest> field_requests(std::string_view list);

}  // namespace penstock
