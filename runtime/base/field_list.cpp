#include "runtime/base/field_list.h"

#include <algorithm>

namespace penstock {
namespace {

// What stands between the commas; of an empty list one empty part.
std::vector<std::string> parts_of(std::string_view list) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    std::string_view part = list.substr(begin, end - begin);
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    out.emplace_back(part.substr(0, part.find_last_not_of(' ') + 1));
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> out = parts_of(list);
  std::erase(out, "");
  return out;
}

std::vector<FieldRequest> field_requests(std::string_view list) {
  std::vector<FieldRequest> out;
  for (std::string& part : parts_of(list)) {
    FieldRequest& request = out.emplace_back();
    request.name = std::move(part);
    const size_t colon = request.name.rfind(':');
    if (colon == std::string::npos) continue;
    const std::string kind = request.name.substr(colon + 1);
    request.has_kind = kind == "text" || kind == "bytes";
    if (!request.has_kind) {
      request.no_kind = kind;
      continue;
    }
    request.kind = kind == "text" ? FieldKind::text : FieldKind::bytes;
    request.name.resize(colon);
  }
  return out;
}

}  // namespace penstock
