// Blocks of threads on one thread of the processor.
#pragma once

#include <functional>
#include <string>

struct Processor;

// Runs `kernel` for every thread of a grid. Threads of a block take turns where they wait for each other; `order` says who goes first: 0 is
// by number, another one is some other order. What is wrong with how they wait, or nothing.
std::string run_grid(
    Processor& state, unsigned int blocks, unsigned int threads, unsigned int order, const std::function<void()>& kernel);
