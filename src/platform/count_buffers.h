// How much memory something would take, without taking it.
//
//   const BuffersWithoutMemory counting;
//   ROTA_ASSIGN_OR_RETURN(Workspace workspace, Workspace::allocate(...));
//   return workspace.bytes();
#pragma once

namespace rota {

// While one lives, a Buffer that this thread allocates has a size and no memory, and its data() is
// nullptr: what is made of such buffers can say how much it takes, and do nothing else.
class BuffersWithoutMemory {
 public:
  BuffersWithoutMemory();
  ~BuffersWithoutMemory();
  BuffersWithoutMemory(const BuffersWithoutMemory&) = delete;
  BuffersWithoutMemory& operator=(const BuffersWithoutMemory&) = delete;
};

}  // namespace rota
