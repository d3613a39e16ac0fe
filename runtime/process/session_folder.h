// The private folder of one job on one node, for the files of others (Open MPI's vader_segment.*, sm_segment.*, ompi.*)
// and who may remove it: whoever holds it last.
//
//   const std::string path = new_session_folder_name();       // penstock launch: $TMPDIR/penstock-Xy12Ab
//   SessionFolder held(path);                                  // every process of the job that outlives its rank
//   ... the destructor removes the folder when nobody else holds it
//
// Purpose: after a kill of mpirun, launcher and ranks at once Open MPI cannot clean up. Each holder keeps a shared
//   flock on the folder; locks vanish with their process however it dies, so the last one out sees an exclusive lock
//   granted, and removes.
//   Until the helpers of ranks are there nobody but the launcher holds it, and mpirun has files in it already. So the
//   launcher has a keeper, a process of its own session that sees to the folder where the launcher was killed:
//
//   FolderKeeper keeper(path, 20);   // before the folder is made, so that it is never without one
//   ... keeper.dismiss();            // we are about to remove it ourselves
//
// Safety: only a real folder of this user, mode 0700, named penstock-*, is ever touched; no link is followed.
// Thread-safety: one owner. Failure: a folder that cannot be held or removed is left alone; nothing throws except
//   new_session_folder_name() (Error runtime where the kernel has no random bytes).
#pragma once

#include <sys/types.h>

#include <string>

namespace penstock {

// The variable that tells the processes of a job, on every node, which folder it is.
inline constexpr const char* kSessionFolderVariable = "PENSTOCK_SESSION_FOLDER";

std::string session_folder_parent();    // $TMPDIR, else /tmp
std::string new_session_folder_name();  // parent/penstock-RANDOM, not made: the first daemon of the MPI makes it, 0700

class SessionFolder {
 public:
  explicit SessionFolder(const std::string& path);  // empty, missing or not ours: holds nothing
  ~SessionFolder() { release(); }
  SessionFolder(const SessionFolder&) = delete;
  SessionFolder& operator=(const SessionFolder&) = delete;

  bool held() const noexcept { return fd_ >= 0; }
  // Waits until no other process holds it; false when `limit_s` was over first. True at once when nothing is held.
  bool wait_until_alone(double limit_s) noexcept;
  // Lets go, and removes the folder with all it holds if no other process holds it. True when it was removed.
  bool release() noexcept;

 private:
  std::string path_;
  int fd_ = -1;
};

class FolderKeeper {
 public:
  // Forks: before there are threads. `limit_s` is how long it waits for others that hold the folder.
  FolderKeeper(const std::string& path, double limit_s) noexcept;
  ~FolderKeeper() { dismiss(); }
  FolderKeeper(const FolderKeeper&) = delete;
  FolderKeeper& operator=(const FolderKeeper&) = delete;

  void dismiss() noexcept;

 private:
  int lifeline_ = -1;
  pid_t pid_ = -1;
};

}  // namespace penstock
