// Memory and order on the test device: which kernel used which memory on which stream, and what was waited for.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace clocked {

constexpr c10::DeviceIndex kDevices = 4;
constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// A vector clock: how many launches of each stream, by its number, are known to be over.
using Clock = std::vector<uint64_t>;

// A launch that used a block.
struct Use {
  size_t stream = 0;
  uint64_t time = 0;
  std::string by;
};

// A piece of device memory, which lies on the host.
struct Block {
  Block(c10::Stream owner, void* data, size_t size, c10::Storage host);
  Block(const Block&) = delete;
  ~Block();

  c10::Stream owner;  // the current stream when it was allocated, for which it is given out again
  void* data;
  size_t size;
  c10::Storage host;  // whose memory it is; its own where that is empty
  Use written;
  std::vector<Use> read;         // since it was written
  std::vector<size_t> recorded;  // streams that the allocator waits for (`record_stream`)
};

// The data pointer of a new storage, filled with the bits of NaN. A storage of the host gives its memory to it as it is.
c10::DataPtr allocate(c10::Stream stream, size_t size);
c10::DataPtr adopt(c10::Stream stream, const Use& made_by, const c10::Storage& host);

// The block that a data pointer or a tensor has, if it has any memory.
std::shared_ptr<Block> block_of(const c10::DataPtr& pointer);
std::shared_ptr<Block> block_of(const at::TensorBase& tensor);

// The block that an address lies in; fails where there is none.
std::shared_ptr<Block> block_at(const void* address);

// A storage of the host over the memory of one of the device; it keeps the memory, and the block is free regardless.
c10::Storage on_host(const c10::Storage& storage);
at::TensorBase on_host(const at::TensorBase& tensor, const c10::Storage& host);

// One kernel, on one stream: each access that is not ordered after earlier ones fails with the names of both.
class Launch {
 public:
  Launch(c10::Stream stream, std::string name);
  void reads(const at::TensorBase& tensor);
  void writes(const at::TensorBase& tensor);
  void reads(const std::shared_ptr<Block>& block);
  void writes(const std::shared_ptr<Block>& block);
  const Use& use() const { return use_; }

 private:
  c10::Stream stream_;
  Use use_;
};

// Streams: the current ones are a thread's own.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream(c10::DeviceIndex device);

// What is over when all that has been issued to a stream is; and a stream that goes on only after that.
Clock issued_to(c10::Stream stream);
Clock issued_to(c10::DeviceIndex device);
void wait(c10::Stream stream, const Clock& clock);

// The host goes on only after that. Under a name it is counted; without one it has merely seen that it is over.
void host_waits(const Clock& clock, const char* counted_as);

void record_stream(const c10::DataPtr& pointer, c10::Stream stream);

struct Memory {
  size_t now = 0, peak = 0;
};
Memory& memory(c10::DeviceIndex device);

// How often the host has waited, by what for; and what was found to be unordered.
std::map<std::string, int64_t> waits();
std::vector<std::string> faults();
void forget();

}  // namespace clocked
