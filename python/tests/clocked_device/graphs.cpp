#include "graphs.h"

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/DeviceType.h>

#include <algorithm>
#include <cstring>

#include "clocks.h"

namespace clocked {
namespace {

struct Kept {
  std::shared_ptr<Block> block;
  std::vector<char> bytes;
};

struct Recording {
  std::vector<std::function<void()>> launches;
  std::vector<Kept> before;
  std::vector<at::Tensor> made;
  std::string spoilt;
};

Recording* now = nullptr;
int64_t captured = 0, replayed = 0;

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs&) {}

  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {
    TORCH_CHECK(now == nullptr, "a capture begins in another one");
    TORCH_CHECK(is_beside(), "a capture begins on the default stream");
    recording_ = {};
    now = &recording_;
  }

  void capture_end() override {
    now = nullptr;
    for (const auto& one : recording_.before) std::memcpy(one.block->data, one.bytes.data(), one.bytes.size());
    for (const auto& one : recording_.made) {
      if (auto block = block_of(one)) std::memset(block->data, 0xff, block->size);
    }
    recording_.before.clear();
    TORCH_CHECK(recording_.spoilt.empty(), "the capture failed: ", recording_.spoilt);
    ++captured;
  }

  void instantiate() override {}
  void replay() override {
    ++replayed;
    for (const auto& launch : recording_.launches) launch();
  }
  void reset() override { recording_ = {}; }
  at::MempoolId_t pool() const override { return {0, 1}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

 private:
  static bool is_beside() {
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
      if (current_stream(device).id() != 0) return true;
    }
    return false;
  }

  Recording recording_;
};

std::unique_ptr<at::GraphImplInterface> make_graph(at::GraphImplArgs arguments) {
  return std::make_unique<Graph>(arguments);
}

}  // namespace

bool capturing() {
  return now != nullptr;
}

void forbid(const std::string& what) {
  if (now == nullptr) return;
  now->spoilt = what;
  TORCH_CHECK(false, what, " while work is captured");
}

void keep(const at::TensorBase& tensor) {
  auto block = block_of(tensor);
  if (now == nullptr || !block) return;
  auto same = [&](const Kept& one) { return one.block == block; };
  if (std::any_of(now->before.begin(), now->before.end(), same)) return;
  const char* data = static_cast<const char*>(block->data);
  now->before.push_back({block, std::vector<char>(data, data + block->size)});
}

at::Tensor pinned_down(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  impl->_set_conj(tensor.is_conj());
  impl->_set_neg(tensor.is_neg());
  return made;
}

void record(std::function<void()> again, const std::vector<at::Tensor>& made) {
  now->launches.push_back(std::move(again));
  now->made.insert(now->made.end(), made.begin(), made.end());
}

void register_graphs() {
  at::GraphImplRegistry()->Register(c10::DeviceTypeName(kType, false), &make_graph);
}

int64_t captures() {
  return captured;
}

int64_t replays() {
  return replayed;
}

}  // namespace clocked
