// The floor of the executor's benchmark: operations called in C++ without boxing, as libtorch's own code calls them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/view_ops.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace {
template <typename F>
void chain(const at::Tensor* start, long count, F f) {
  at::NoGradGuard guard;
  at::Tensor x = *start;
  for (long i = 0; i < count; ++i) x = f(x);
}
}  // namespace

extern "C" {
void run_relu(const at::Tensor* x, long n) {
  chain(x, n, [](const at::Tensor& t) { return at::_ops::relu::call(t); });
}
void run_mul(const at::Tensor* x, long n) {
  chain(x, n, [](const at::Tensor& t) { return at::_ops::mul_Tensor::call(t, t); });
}
void run_add(const at::Tensor* x, long n) {
  chain(x, n, [](const at::Tensor& t) { return at::_ops::add_Tensor::call(t, t, 1); });
}
void run_mm(const at::Tensor* x, long n) {
  chain(x, n, [](const at::Tensor& t) { return at::_ops::mm::call(t, t); });
}
void run_view(const at::Tensor* x, long n) {
  chain(x, n, [](const at::Tensor& t) { return at::_ops::view::call(t, {{8, 8}}); });
}
// What the executor calls for a view, called from C++.
void run_metadata(const at::Tensor* x, long n) {
  const int64_t sizes[] = {8, 8}, strides[] = {8, 1};
  AtenTensorHandle last = nullptr;
  aoti_torch_new_tensor_handle(reinterpret_cast<AtenTensorHandle>(const_cast<at::Tensor*>(x)), &last);
  for (long i = 0; i < n; ++i) {
    AtenTensorHandle next = nullptr;
    aoti_torch__reinterpret_tensor(last, 2, sizes, strides, 0, &next);
    aoti_torch_delete_tensor_object(last);
    last = next;
  }
  aoti_torch_delete_tensor_object(last);
}
// What the executor calls for an operation of `operands` tensors, called from C++: the last one gives the handle away.
void run_dispatched(const at::Tensor* x, long n, const char* name, const char* overload, long operands) {
  at::NoGradGuard guard;
  AtenTensorHandle last = nullptr;
  aoti_torch_new_tensor_handle(reinterpret_cast<AtenTensorHandle>(const_cast<at::Tensor*>(x)), &last);
  for (long i = 0; i < n; ++i) {
    StableIValue stack[8] = {};
    for (long operand = 0; operand + 1 < operands; ++operand) {
      AtenTensorHandle shared = nullptr;
      aoti_torch_new_tensor_handle(last, &shared);
      stack[operand] = reinterpret_cast<StableIValue>(shared);
    }
    stack[operands - 1] = reinterpret_cast<StableIValue>(last);
    aoti_torch_call_dispatcher(name, overload, stack);
    last = reinterpret_cast<AtenTensorHandle>(stack[0]);
  }
  aoti_torch_delete_tensor_object(last);
}
void run_norm(const at::Tensor* x, long n) {
  chain(x, n, [](const at::Tensor& t) {
    return std::get<0>(at::_ops::native_layer_norm::call(t, {{8}}, std::nullopt, std::nullopt, 1e-5));
  });
}
void run_sum(const at::Tensor* x, long n) {
  at::NoGradGuard guard;
  for (long i = 0; i < n; ++i) at::_ops::sum_dim_IntList::call(*x, {{0}}, true, std::nullopt);
}
}
