#pragma once

// What a thread asks of who runs it.
struct Processor {
  unsigned int thread, block, threads, blocks;
  void (*wait)();                            // for all threads of the block
  float (*exchange)(float own, int from);    // with another thread of the warp
};
