// Graphs of the test device: what is launched while one is captured is not done then, and done again, at the same addresses, at each replay.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace clocked {

bool capturing();

// What a capture does not allow, such as waiting, spoils it.
void forbid(const std::string& what);

// What memory holds before a kernel of a capture writes it; the end of the capture puts it back.
void keep(const at::TensorBase& tensor);

// A tensor of the same memory, whatever becomes of the one that is given.
at::Tensor pinned_down(const at::Tensor& tensor);

// Adds a launch to what is captured, with the tensors that it makes, which hold nothing until the first replay.
void record(std::function<void()> again, const std::vector<at::Tensor>& made);

// Makes PyTorch find graphs of the device, under the name that it has now.
void register_graphs();

int64_t captures();
int64_t replays();

}  // namespace clocked
