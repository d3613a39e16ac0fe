// Words as execve and posix_spawn take them: pointers to them and a null behind the last. A view: the words stay the
// caller's, and must neither change nor move while it is used.
#pragma once

#include <string>
#include <vector>

namespace penstock {

inline std::vector<char*> exec_list(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));  // the interface lacks a const
  list.push_back(nullptr);
  return list;
}

}  // namespace penstock
