"""Datasheet figures of GPUs, for predictions before anything was measured on a device.

Source: the vendors' public datasheets and architecture white papers, written down from memory of them and not
re-read here. Peaks are dense (no sparsity) at boost clock, in TFLOP/s; bandwidths in GB/s; memory in GiB as
sold. The five types of the measured layers (K40, K80, M60, P100, GTX 1080 Ti) and the V100 carry the figures
published with those measurements, on which the shipped predictor was trained.

``unsure`` names figures that differ between sources or depend on the board's power limit; a prediction
states it. A "GPU" is one device as a framework sees it: one half of a K80 or M60 board.
"""

from __future__ import annotations

from coadapt.errors import UnknownNameError
from coadapt.model._base import Fact

_GB = 1e9
_GIB = 2**30


class Gpu(Fact, frozen=True):
    """Datasheet figures of one device."""

    name: str
    memory_gib: float
    bandwidth_gb_s: float
    fp32_tflops: float
    #: On matrix units, where there are any; 0: no such mode, it runs at the fp32 rate.
    tf32_tflops: float = 0.0
    fp16_tflops: float = 0.0
    bf16_tflops: float = 0.0
    cores: int = 0
    clock_mhz: float = 0.0
    #: To the other GPUs of a node, one direction, all links of a GPU together.
    link_gb_s: float = 12.0
    link: str = "PCIe 3"
    unsure: tuple[str, ...] = ()

    def peak_flops(self, precision: str) -> float:
        """Peak rate in FLOP/s; a precision the device has no mode for runs as fp32."""
        named = {"tf32": self.tf32_tflops, "fp16": self.fp16_tflops, "bf16": self.bf16_tflops}
        return (named.get(precision, 0.0) or self.fp32_tflops) * 1e12

    @property
    def bandwidth_bytes_s(self) -> float:
        """Bandwidth of the device's memory."""
        return self.bandwidth_gb_s * _GB

    @property
    def link_bytes_s(self) -> float:
        """Bandwidth of the link to a neighbour in the node."""
        return self.link_gb_s * _GB

    @property
    def memory_bytes(self) -> float:
        """Size of the device's memory."""
        return self.memory_gib * _GIB


def _gpu(
    name: str,
    memory: float,
    bandwidth: float,
    fp32: float,
    tf32: float,
    fp16: float,
    bf16: float,
    cores: int,
    clock: float,
    link_gb_s: float,
    link: str,
    *unsure: str,
) -> Gpu:
    return Gpu(
        name=name,
        memory_gib=memory,
        bandwidth_gb_s=bandwidth,
        fp32_tflops=fp32,
        tf32_tflops=tf32,
        fp16_tflops=fp16,
        bf16_tflops=bf16,
        cores=cores,
        clock_mhz=clock,
        link_gb_s=link_gb_s,
        link=link,
        unsure=unsure,
    )


# name, GiB, GB/s, TFLOP/s fp32, tf32, fp16, bf16, cores, MHz, link GB/s, link, unsure
# fmt: off
_TABLE = (
    _gpu("k40", 12, 288, 4.291, 0, 0, 0, 2880, 875, 12, "PCIe 3"),
    _gpu("k80", 12, 240, 5.591, 0, 0, 0, 2496, 875, 12, "PCIe 3", "datasheet fp32 peak of the board with two devices, at base clock"),
    _gpu("m60", 8, 160, 7.365, 0, 0, 0, 2048, 1178, 12, "PCIe 3", "datasheet fp32 peak of the board; one of its two devices has half of it"),
    _gpu("gtx1080ti", 11, 484, 10.609, 0, 0, 0, 3584, 1582, 12, "PCIe 3"),
    _gpu("p100", 16, 732, 8.071, 0, 16.1, 0, 3584, 1303, 12, "PCIe 3", "fp32 peak at base clock; at boost clock 9.3 (PCIe) or 10.6 (SXM) TFLOP/s"),
    _gpu("v100", 16, 900, 14.9, 0, 119.2, 0, 5120, 1455, 150, "NVLink 2", "some cards have 32 GiB of memory; PCIe cards have no NVLink"),
    _gpu("p4", 8, 192, 5.5, 0, 0, 0, 2560, 1063, 12, "PCIe 3"),
    _gpu("t4", 16, 320, 8.1, 0, 65, 0, 2560, 1590, 12, "PCIe 3", "datasheet peak rates; sustained rates are lower at 70 W"),
    _gpu("rtx2080ti", 11, 616, 13.45, 0, 53.8, 0, 4352, 1545, 12, "PCIe 3", "datasheet fp16 peak with 32-bit accumulation"),
    _gpu("quadrortx6000", 24, 672, 16.3, 0, 130.5, 0, 4608, 1770, 12, "PCIe 3"),
    _gpu("titanv", 12, 653, 14.9, 0, 110, 0, 5120, 1455, 12, "PCIe 3"),
    _gpu("a100", 40, 1555, 19.5, 156, 312, 312, 6912, 1410, 300, "NVLink 3", "some cards have 80 GiB of memory"),
    _gpu("a100-80gb", 80, 2039, 19.5, 156, 312, 312, 6912, 1410, 300, "NVLink 3", "PCIe cards have 1935 GB/s of memory bandwidth"),
    _gpu("a30", 24, 933, 10.3, 82, 165, 165, 3584, 1440, 100, "NVLink 3"),
    _gpu("a10", 24, 600, 31.2, 62.5, 125, 125, 9216, 1695, 24, "PCIe 4", "datasheet peak rates; sustained rates are lower at 150 W"),
    _gpu("a10g", 24, 600, 31.5, 35, 70, 70, 9216, 1710, 24, "PCIe 4", "matrix peak rates by the cloud provider, half of those of the a10"),
    _gpu("a16", 16, 200, 4.5, 9, 18, 18, 1280, 1755, 24, "PCIe 4"),
    _gpu("a40", 48, 696, 37.4, 74.8, 149.7, 149.7, 10752, 1740, 56, "NVLink bridge"),
    _gpu("rtxa4000", 16, 448, 19.2, 38.3, 76.7, 76.7, 6144, 1560, 24, "PCIe 4", "matrix peak rates differ between sources"),
    _gpu("rtxa5000", 24, 768, 27.8, 55.6, 111.1, 111.1, 8192, 1695, 56, "NVLink bridge", "matrix peak rates differ between sources"),
    _gpu("rtxa6000", 48, 768, 38.7, 77.4, 154.8, 154.8, 10752, 1800, 56, "NVLink bridge"),
    _gpu("rtx3060", 12, 360, 12.7, 25.5, 51, 51, 3584, 1777, 24, "PCIe 4", "matrix peak rates differ between sources"),
    _gpu("rtx3080", 10, 760, 29.8, 29.8, 59.5, 59.5, 8704, 1710, 24, "PCIe 4", "datasheet fp16 peak with 32-bit accumulation"),
    _gpu("rtx3090", 24, 936, 35.6, 35.6, 71, 71, 10496, 1695, 56, "NVLink bridge", "datasheet fp16 peak with 32-bit accumulation"),
    _gpu("rtx4070", 12, 504, 29.1, 29.1, 58.3, 58.3, 5888, 2475, 24, "PCIe 4", "matrix peak rates differ between sources"),
    _gpu("rtx4080", 16, 717, 48.7, 48.7, 97.5, 97.5, 9728, 2505, 24, "PCIe 4", "matrix peak rates differ between sources"),
    _gpu("rtx4090", 24, 1008, 82.6, 82.6, 165.2, 165.2, 16384, 2520, 24, "PCIe 4", "datasheet fp16 peak with 32-bit accumulation"),
    _gpu("rtx5090", 32, 1792, 104.8, 104.8, 209.5, 209.5, 21760, 2407, 50, "PCIe 5", "matrix peak rates differ between sources"),
    _gpu("rtx6000ada", 48, 960, 91.1, 182, 364, 364, 18176, 2505, 24, "PCIe 4"),
    _gpu("l4", 24, 300, 30.3, 60, 121, 121, 7424, 2040, 24, "PCIe 4", "datasheet peak rates; sustained rates are far lower at 72 W"),
    _gpu("l40", 48, 864, 90.5, 90.5, 181, 181, 18176, 2490, 24, "PCIe 4"),
    _gpu("l40s", 48, 864, 91.6, 183, 362, 362, 18176, 2520, 24, "PCIe 4"),
    _gpu("h100", 80, 3350, 66.9, 494.7, 989.4, 989.4, 16896, 1830, 450, "NVLink 4", "figures of the SXM module; the PCIe card has 2000 GB/s and 51 TFLOP/s"),
    _gpu("h100-pcie", 80, 2000, 51.2, 378, 756, 756, 14592, 1755, 300, "NVLink bridge"),
    _gpu("h200", 141, 4800, 66.9, 494.7, 989.4, 989.4, 16896, 1830, 450, "NVLink 4"),
    _gpu("b200", 180, 8000, 75, 1100, 2250, 2250, 18944, 1965, 900, "NVLink 5", "memory, cores and clock differ between sources", "peak rates depend on the power limit"),
    _gpu("mi250x", 64, 1638, 23.9, 0, 191.5, 191.5, 7040, 1700, 100, "Infinity Fabric", "figures of one of the two devices of a module"),
    _gpu("mi300x", 192, 5300, 163.4, 653.7, 1307.4, 1307.4, 19456, 2100, 448, "Infinity Fabric", "datasheet fp32 peak of packed instructions"),
)
# fmt: on

#: One thread of a current x86 core with 256-bit vectors: an order of magnitude, for ``profile layers`` to correct.
CPU = Gpu(
    name="cpu",
    memory_gib=16,
    bandwidth_gb_s=10,
    fp32_tflops=0.08,
    cores=1,
    clock_mhz=3000,
    link_gb_s=5,
    link="memory",
    unsure=("figures of a typical core; measure this machine with 'coadapt profile layers'",),
)
GPUS = {gpu.name: gpu for gpu in _TABLE}
_ALIASES = {
    "1080ti": "gtx1080ti", "2080ti": "rtx2080ti", "rtx": "rtx2080ti", "3090": "rtx3090", "4090": "rtx4090",
    "a100-40gb": "a100", "a100-sxm4-40gb": "a100", "a100-sxm4-80gb": "a100-80gb", "h100-sxm": "h100",
    "v100-sxm2": "v100", "tesla-v100": "v100", "a6000": "rtxa6000", "l40-s": "l40s",
}  # fmt: skip


def find_gpu(name: str) -> Gpu:
    """Returns the GPU called ``name`` in common spellings ("V100", "RTX 2080 Ti"), or the CPU for "cpu"; UnknownGpuError
    otherwise.
    """
    plain = name.strip().lower().replace(" ", "").replace("_", "-").removeprefix("nvidia").lstrip("-")
    for each in (plain, plain.replace("-", "")):
        if each == "cpu":
            return CPU
        found = GPUS.get(_ALIASES.get(each, each))
        if found is not None:
            return found
    raise UnknownGpuError(name, (*GPUS, "cpu"))


class UnknownGpuError(UnknownNameError):
    """A GPU of which no datasheet is known: the remedy is to measure it."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__("GPU", name.strip().lower(), known)
        remedy = (
            "for one that is not listed: the nearest one that is, and layers measured on yours "
            "by 'coadapt profile layers -o FILE' (--layer-times FILE)"
        )
        self.args = (f"{self.args[0]}; {remedy}",)
