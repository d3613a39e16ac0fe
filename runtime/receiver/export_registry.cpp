#include "runtime/receiver/export_registry.h"

#include <algorithm>
#include <string>

#include "runtime/base/error.h"

namespace penstock {

void ExportRegistry::offered(PeerId loader, const ExportOffered& message, UniqueFd fd) {
  if (message.linked == static_cast<bool>(fd) || message.gpu < 0) {
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(loader) + " offered memory of GPU " + std::to_string(message.gpu) +
                    (message.linked ? " by a link, with a descriptor" : " without a descriptor"),
                "all ranks must run the same version of penstock");
  }
  gone_.erase(loader);  // it has joined again
  if (const auto before = find(loader, message.gpu); before != exports_.end()) lose(before);
  const int32_t number = next_++;
  Exported& exported = exports_[number];
  exported = {loader, message.gpu, message.bytes, std::move(fd), message.linked, false, {}, 0};
  for (const auto& [connection, program] : readers_) show(connection, number, exported);
}

// Finds what a living loader has exported.
ExportRegistry::Exports::iterator ExportRegistry::find(PeerId loader, int32_t gpu) {
  return std::find_if(exports_.begin(), exports_.end(), [&](const auto& item) {
    return item.second.loader == loader && item.second.gpu == gpu && !item.second.lost;
  });
}

void ExportRegistry::loader_lost(PeerId loader) {
  gone_.insert(loader);
  for (auto it = exports_.begin(); it != exports_.end();) {
    const auto exported = it++;
    if (exported->second.loader == loader && !exported->second.lost) lose(exported);
  }
}

void ExportRegistry::links_lost(PeerId loader) {
  gone_.insert(loader);
  for (auto it = exports_.begin(); it != exports_.end();) {
    const auto exported = it++;
    if (exported->second.loader == loader && exported->second.linked && !exported->second.lost) lose(exported);
  }
}

void ExportRegistry::lose(Exports::iterator exported) {
  exported->second.fd.reset();
  exported->second.lost = true;
  if (exported->second.linked) {
    for (const auto& [connection, program] : readers_)
      messenger_.to_client(connection, ClientExportGone{exported->first});
  }
  end_if_lost(exported);
}

void ExportRegistry::end_if_lost(Exports::iterator exported) {
  if (!exported->second.lost || exported->second.kept > 0) return;
  if (!exported->second.linked) {
    for (const auto& [connection, program] : readers_)
      messenger_.to_client(connection, ClientExportGone{exported->first});
  }
  exports_.erase(exported);
}

bool ExportRegistry::link_ended(PeerId loader, const ChunkBufferRange& buffer_range) const {
  return std::any_of(exports_.begin(), exports_.end(), [&](const auto& item) {
    const Exported& exported = item.second;
    return exported.loader == loader && exported.gpu == buffer_range.gpu && exported.linked && !exported.lost;
  });
}

bool ExportRegistry::readable(int32_t exported) const {
  const auto it = exports_.find(exported);
  return it != exports_.end() && !(it->second.linked && it->second.lost);
}

void ExportRegistry::read_by(int connection, int64_t program) {
  if (!readers_.emplace(connection, program).second) return;
  for (const auto& [number, exported] : exports_) {
    if (!exported.lost) show(connection, number, exported);
  }
}

// That descriptors are short costs speed, and no more.
void ExportRegistry::show(int connection, int32_t number, const Exported& exported) const {
  try {
    messenger_.to_client(connection, ClientExport{number, exported.bytes, exported.linked}, exported.fd.get());
  } catch (const Error& error) {
    if (exported.linked) throw;
    messenger_.notice("memory of a loader's GPU cannot be shown to a program, and images go by the host: " +
                      error.message());
  }
}

// What the client speaks of; nullptr: its loader was lost meanwhile.
const ExportRegistry::Exported* ExportRegistry::linked(int connection, int32_t number) const {
  const auto it = exports_.find(number);
  return it == exports_.end() || it->second.lost || !it->second.linked || readers_.count(connection) == 0 ? nullptr
                                                                                                          : &it->second;
}

void ExportRegistry::asked(int connection, const ClientLinkAsked& message) const {
  const Exported* const exported = linked(connection, message.exported);
  if (exported != nullptr) messenger_.to_rank(exported->loader, LinkAsked{exported->gpu, connection, message.identity});
}

void ExportRegistry::asked(int connection, const ClientBufferRangesAsked& message) const {
  const Exported* const exported = linked(connection, message.exported);
  if (exported != nullptr)
    messenger_.to_rank(exported->loader, BufferRangesAsked{exported->gpu, connection, message.runs});
}

void ExportRegistry::opened(PeerId loader, const LinkOpened& message) const {
  for (const auto& [number, exported] : exports_) {
    if (exported.loader != loader || exported.gpu != message.gpu || exported.lost || !exported.linked) continue;
    if (readers_.count(message.gpu_reader) == 0) continue;
    messenger_.to_client(message.gpu_reader, ClientLinkOpened{number, message.id, message.problem});
  }
}

void ExportRegistry::used(int connection, const ClientExportUsed& message) {
  const auto it = exports_.find(message.exported);
  if (it == exports_.end() || readers_.count(connection) == 0) return;  // of a loader that was lost meanwhile
  Exported& exported = it->second;
  const bool changed =
      message.used ? exported.used_by.insert(connection).second : exported.used_by.erase(connection) != 0;
  if (changed) messenger_.to_rank(exported.loader, ExportUsed{exported.gpu, connection, message.used});
}

void ExportRegistry::connection_gone(int connection) {
  if (readers_.erase(connection) == 0) return;
  for (auto& [number, exported] : exports_) {
    if (exported.used_by.erase(connection) == 0) continue;
    messenger_.to_rank(exported.loader, ExportUsed{exported.gpu, connection, false});
  }
}

void ExportRegistry::read_till_end(int connection, PeerId loader, const ChunkBufferRange& buffer_range,
                                   int32_t exported) {
  const auto reader = readers_.find(connection);
  const auto known = exports_.find(exported);
  if (reader == readers_.end() || known == exports_.end() || known->second.linked) {
    give_back(loader, buffer_range, exported);
  } else {
    held_.emplace(reader->second, Held{loader, buffer_range, exported});
  }
}

void ExportRegistry::program_ended(int64_t program) {
  const auto [from, to] = held_.equal_range(program);
  for (auto it = from; it != to; ++it) give_back(it->second.loader, it->second.buffer_range, it->second.exported);
  held_.erase(from, to);
}

std::optional<int32_t> ExportRegistry::keep(int connection, PeerId loader, const ChunkBufferRange& buffer_range,
                                            bool nowhere_else) {
  const auto it = find(loader, buffer_range.gpu);
  if (it == exports_.end()) {
    if (gone_.count(loader) != 0) return std::nullopt;  // it was given up, and lives
    throw Error(
        ErrorKind::peer_lost,
        "rank " + std::to_string(loader) + " sent a chunk with images in memory of a GPU that it does not export",
        "all ranks must run the same version of penstock");
  }
  if (!lies_within({buffer_range.at, buffer_range.bytes}, it->second.bytes)) {
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(loader) + " sent a chunk with images outside the memory that its GPU exports",
                "all ranks must run the same version of penstock");
  }
  const bool reads = it->second.used_by.count(connection) != 0 ||
                     (nowhere_else && !it->second.linked && readers_.count(connection) != 0);
  if (!reads) return std::nullopt;
  ++it->second.kept;
  return it->first;
}

void ExportRegistry::give_back(PeerId loader, const ChunkBufferRange& buffer_range, std::optional<int32_t> exported) {
  messenger_.to_rank(loader, BufferRangeReturned{buffer_range.gpu, buffer_range.id});
  const auto it = exported ? exports_.find(*exported) : exports_.end();
  if (it == exports_.end()) return;
  --it->second.kept;
  end_if_lost(it);
}

}  // namespace penstock
