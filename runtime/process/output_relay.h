// One output of the program on its way to ours, through the helper.
//
//   OutputRelay relay;
//   const int end = relay.open_for(STDOUT_FILENO);     // the program's, to be its stdout
//   pollfd item = relay.wanted();                      // either to read from it or to write to ours
//   if (poll(&item, 1, …) > 0) relay.move();
//
//   empty, wants to read --move(): got bytes--> full, wants to write --move(): all written--> empty …
//     '--end of file--> closed                     '--our reader is gone--> from now on what is read is dropped
//
// Why not the launcher's pipe itself: when mpirun goes first, its end of the pipe goes too, and a program that writes a
//   line while it saves its checkpoint would die of SIGPIPE. Why a pty where ours is a terminal: its lines come as they
//   are printed.
// Never blocks: it reads only with nothing left to write, and writes only what a writable pipe surely takes (PIPE_BUF).
// Thread-safety: one thread. Ownership: its reading end; the program's end is the caller's, `to` is nobody's to close.
// Failure: open_for() gives -1, and then the program writes to ours directly. SIGPIPE must be ignored or blocked.
#pragma once

#include <poll.h>

#include <string>

namespace penstock {

class OutputRelay {
 public:
  int open_for(int to);
  void close_now();
  pollfd wanted() const;  // no descriptor: nothing is open
  void move();            // after poll() said that the wanted descriptor is ready

 private:
  int from_ = -1;
  int to_ = -1;
  std::string pending_;
  bool reader_gone_ = false;
};

}  // namespace penstock
