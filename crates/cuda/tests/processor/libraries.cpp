// NVRTC and the driver of CUDA for tests: programs are compiled by the compiler of this machine, and run on its processor.
//
// It is compiled with UNISONO_PROCESSOR, the folder of these sources, and is one library in place of both.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "threads.h"

#include "processor.h"

namespace {

struct Program {
  std::string source, log, image;
};

struct Function {
  std::string name;
  void* address = nullptr;
  std::vector<bool> written;  // for each parameter
  struct Module* module = nullptr;
};

struct Module {
  void* library = nullptr;
  std::map<std::string, Function> functions;
};

Processor state;
unsigned int order = 0;
uint64_t launches = 0;
std::string fault;
// Who wants to know of launches: on which stream, by which function, over which addresses, each read or written.
void (*observer)(void* stream, const char* name, unsigned int count, void** addresses, const bool* written) = nullptr;

std::string text_of(const std::string& file) {
  std::string text;
  if (FILE* in = std::fopen(file.c_str(), "rb")) {
    char part[1 << 16];
    for (size_t count; (count = std::fread(part, 1, sizeof part, in)) > 0;) text.append(part, count);
    std::fclose(in);
  }
  return text;
}

void write_to(const std::string& file, const std::string& text) {
  if (FILE* out = std::fopen(file.c_str(), "wb")) {
    std::fwrite(text.data(), 1, text.size(), out);
    std::fclose(out);
  }
}

int compile(Program& program) {
  char name[] = "/tmp/unisono-processor-XXXXXX";
  if (mkdtemp(name) == nullptr) return 1;
  const std::string folder = name, source = folder + "/program.cpp", made = folder + "/program.so", log = folder + "/log";
  write_to(source, "#include \"device.h\"\n" + program.source);
  const std::string flags = " -std=c++20 -O0 -fPIC -shared -w -ffp-contract=off -fno-strict-aliasing -I" UNISONO_PROCESSOR;
  const int status = std::system(("c++" + flags + " " + source + " -o " + made + " 2> " + log).c_str());
  program.log = text_of(log);
  // The size of the library, the library, and the source, which says what functions read and write.
  const std::string library = text_of(made);
  const uint64_t size = library.size();
  program.image = std::string(reinterpret_cast<const char*>(&size), sizeof size) + library + program.source + '\0';
  for (const auto& file : {source, made, log}) unlink(file.c_str());
  rmdir(name);
  return status == 0 ? 0 : 6;
}

void find_functions(Module& module, const std::string& source) {
  const std::string before = "__global__ void __launch_bounds__(";
  for (size_t at = source.find(before); at != std::string::npos; at = source.find(before, at + 1)) {
    const size_t name = source.find(' ', at + before.size()) + 1, open = source.find('(', name), close = source.find(')', open);
    Function made{source.substr(name, open - name), nullptr, {}, &module};
    made.address = dlsym(module.library, made.name.c_str());
    for (size_t start = open + 1; start < close;) {
      const size_t end = std::min(source.find(',', start), close);
      made.written.push_back(source.substr(start, end - start).find("const ") == std::string::npos);
      start = end + 1;
    }
    module.functions[made.name] = made;
  }
}

bool load(Module*& made, const char* image) {
  uint64_t size = 0;
  std::memcpy(&size, image, sizeof size);
  char name[] = "/tmp/unisono-processor-XXXXXX";
  const int file = mkstemp(name);
  if (file < 0 || write(file, image + sizeof size, size) != static_cast<ssize_t>(size)) return false;
  close(file);
  made = new Module{dlopen(name, RTLD_NOW | RTLD_LOCAL), {}};
  unlink(name);
  if (made->library == nullptr) return false;
  find_functions(*made, image + sizeof size + size);
  return true;
}

// A function of so many addresses, which registers and the stack hold alike for any number of them up to this one.
void call(void* function, const std::vector<void*>& a) {
  using F = void (*)(
      void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*,
      void*, void*, void*, void*, void*, void*, void*, void*);
  auto at = [&](size_t index) { return index < a.size() ? a[index] : nullptr; };
  reinterpret_cast<F>(function)(
      at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10), at(11), at(12), at(13), at(14),
      at(15), at(16), at(17), at(18), at(19), at(20), at(21), at(22), at(23));
}
constexpr size_t kMostParameters = 24;

}  // namespace

extern "C" {

// NVRTC.
int nvrtcVersion(int* major, int* minor) {
  *major = *minor = 0;
  return 0;
}
const char* nvrtcGetErrorString(int code) { return code == 6 ? "NVRTC_ERROR_COMPILATION" : "an error of the compiler"; }
int nvrtcCreateProgram(Program** made, const char* source, const char*, int, const char* const*, const char* const*) {
  *made = new Program{source, "", ""};
  return 0;
}
int nvrtcCompileProgram(Program* program, int, const char* const*) { return compile(*program); }
int nvrtcGetProgramLogSize(Program* program, size_t* size) {
  *size = program->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* size) {
  *size = program->image.size();
  return 0;
}
int nvrtcGetCUBIN(Program* program, char* image) {
  std::memcpy(image, program->image.data(), program->image.size());
  return 0;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  return 0;
}

// The driver.
int cuInit(unsigned int) { return 0; }
int cuGetErrorString(int, const char** text) {
  *text = fault.c_str();
  return 0;
}
int cuDeviceGet(int* device, int number) {
  *device = number;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
  return 0;
}
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void** context) {
  *context = nullptr;
  return 0;
}
int cuModuleLoadData(Module** made, const char* image) { return load(*made, image) ? 0 : 200; }
int cuModuleUnload(Module* module) {
  dlclose(module->library);
  delete module;
  return 0;
}
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  auto found = module->functions.find(name);
  if (found == module->functions.end()) return 500;
  *function = &found->second;
  return 0;
}
int cuLaunchKernel(
    Function* function, unsigned int blocks, unsigned int, unsigned int, unsigned int threads, unsigned int, unsigned int,
    unsigned int, void* stream, void** parameters, void**) {
  const size_t count = function->written.size();
  if (count > kMostParameters) return 1;
  std::vector<void*> values(count);
  std::vector<char> written(function->written.begin(), function->written.end());
  for (size_t index = 0; index < count; ++index) values[index] = *static_cast<void**>(parameters[index]);
  static std::mutex one_by_one;
  std::lock_guard guard(one_by_one);
  ++launches;
  if (observer != nullptr) {
    static_assert(sizeof(bool) == sizeof(char));
    observer(stream, function->name.c_str(), static_cast<unsigned int>(count), values.data(), reinterpret_cast<bool*>(written.data()));
  }
  *static_cast<Processor**>(dlsym(function->module->library, "processor")) = &state;
  fault = run_grid(state, blocks, threads, order, [&] { call(function->address, values); });
  return fault.empty() ? 0 : 719;
}

// What tests ask for.
void processor_set_order(unsigned int chosen) { order = chosen; }
uint64_t processor_launches() { return launches; }
void processor_observe(decltype(observer) chosen) { observer = chosen; }
}
