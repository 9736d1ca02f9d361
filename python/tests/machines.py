"""Cluster descriptions of machines that are not there."""

from __future__ import annotations


def machine(
    *, memory_bandwidth: float, flops: float, latency_ns: float, bandwidth: float, operation_ns: float = 0.0
) -> str:
    """The description of a machine with the same link for every collective; bandwidths in bytes per second."""
    link = f"{{ latency_ns = {latency_ns:g}, bandwidth = {bandwidth:g} }}"
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    return f"""version = 1
[device]
name = "a machine that is not there"
memory_bytes = 1000000000
memory_bandwidth = {memory_bandwidth:g}
operation_ns = {operation_ns:g}
[device.matmul_flops]
f32 = {flops:g}
[links]
""" + "".join(f"{kind} = {link}\n" for kind in kinds)


#: Computing is dear and sending is not, so that plans cut what can be cut.
DEAR_COMPUTING = machine(memory_bandwidth=1e12, flops=1e9, latency_ns=1.0, bandwidth=1e12)
