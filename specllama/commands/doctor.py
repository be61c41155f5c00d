"""`specllama doctor`: checks this machine and this installation.

llama.cpp is examined in a child process, because a library that was built for another processor
crashes its process.
"""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from specllama import __version__
from specllama.engine.catalog.hub_cache import cached_models
from specllama.engine.catalog.locations import hub_cache, shown_size, url_cache
from specllama.engine.host import Processor, this_processor
from specllama.engine.options import OptionError
from specllama.engine.shipped import model_path
from specllama.engine.wire.build_report import BuildError, BuildReport, ask
from specllama.handlers.options import parse
from specllama.listen import ListenError, Listeners

FLAGS = {
    "SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX2": "avx2", "FMA": "fma", "F16C": "f16c",
    "BMI2": "bmi2", "AVX_VNNI": "avx_vnni", "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8",
    "NEON": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp", "MATMUL_INT8": "i8mm",
    "SVE": "sve", "SVE2": "sve2", "SME": "sme",
}  # fmt: skip
"""ggml's features, and Linux' names of the instruction sets that they need."""

FEW_FILES = 1024
"""A limit of open files below this is too low for a server: each connection takes one."""
REBUILD = "pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python=={}"

Status = Literal["ok", "remark", "fault"]


class Check(msgspec.Struct, frozen=True):
    """One check and its result. A `fault` prevents specllama from working; a `remark` is a possible
    improvement. `data` has the content of `text` for programs."""

    name: str
    status: Status
    text: str
    data: dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Prints the results. Returns 0, or 1 if there is a fault."""
    parser = argparse.ArgumentParser(
        prog="specllama doctor",
        description="Checks this machine and this installation.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    checks = []
    for check in examine(os.environ):
        checks.append(check)
        if not given.json:
            mark = "" if check.status == "ok" else f"{check.status.upper()}: "
            print(f"{check.name + ':':<18}{mark}{check.text}", flush=True)
    works = all(check.status != "fault" for check in checks)
    if given.json:
        print(json.dumps({"ok": works, "checks": msgspec.to_builtins(checks)}, indent=2))
    return 0 if works else 1


def examine(
    environ: Mapping[str, str],
    processor: Processor | None = None,
    ask_build: Callable[[], BuildReport] = ask,
) -> Iterator[Check]:
    """Yields the checks one by one. `processor` and `ask_build` are replaced by tests."""
    processor = processor or this_processor()
    yield versions()
    yield of_processor(processor)
    try:
        report = ask_build()
    except BuildError as error:
        yield unusable(str(error))
    else:
        yield libraries(report)
        yield instruction_sets(report, processor)
        yield kernels(report)
        yield devices(report)
    yield memory()
    yield model()
    yield cache(environ)
    yield port(environ)
    yield open_files()


def bindings() -> str:
    """Returns the version of llama-cpp-python."""
    return importlib.metadata.version("llama-cpp-python")


def versions() -> Check:
    data = {
        "specllama": __version__,
        "llama-cpp-python": bindings(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
    }
    text = "specllama {specllama}, llama-cpp-python {llama-cpp-python}, {python}, {platform}"
    return Check("versions", "ok", text.format_map(data), data)


def of_processor(processor: Processor) -> Check:
    can_tell = hasattr(os, "sched_getaffinity")
    n = len(os.sched_getaffinity(0)) if can_tell else os.cpu_count() or 1
    name = processor.name or platform.processor() or platform.machine()
    data = {"name": name, "cpus": n, "flags": sorted(processor.flags)}
    return Check("processor", "ok", f"{name}; CPUs: {n}", data)


# ---- llama.cpp ---------------------------------------------------------------------------


def unusable(error: str) -> Check:
    text = (
        f"it can't be loaded ({error}). If the error is an illegal instruction, it was built for "
        f"another processor; reinstall it with: {REBUILD.format(bindings())}"
    )
    return Check("llama.cpp", "fault", text, {"error": error})


def libraries(report: BuildReport) -> Check:
    """Returns the folders of llama.cpp's libraries. Two copies of one library are a fault."""
    data = {"files": report.libraries, "conflict": report.conflict}
    if report.conflict:
        return Check("libraries", "fault", report.conflict, data)
    folders = sorted({str(Path(path).parent) for path in report.libraries})
    text = f"from {' and '.join(folders)}" if folders else "their folder is unknown on this system"
    return Check("libraries", "ok", text, data)


def instruction_sets(report: BuildReport, processor: Processor) -> Check:
    """Compares llama.cpp's instruction sets with those of the processor."""
    name = "instruction sets"
    used = [feature for feature in FLAGS if report.features.get(feature, "0") != "0"]
    data: dict[str, Any] = {"library": report.library, "features": report.features}
    if not processor.flags:
        return Check(name, "ok", ", ".join(used) or "no known ones", data)
    missing = [feature for feature in used if FLAGS[feature] not in processor.flags]
    unused = [f for f, flag in FLAGS.items() if flag in processor.flags and f not in used]
    data |= {"missing": missing, "unused": unused}
    again = f"build it for this processor with: {REBUILD.format(bindings())}"
    if report.devices:
        again += "; to keep the devices, set the CMAKE_ARGS in docs/gpu.md"
    if missing:
        text = f"llama.cpp needs {', '.join(missing)}, which this processor doesn't have; {again}"
        return Check(name, "fault", text, data)
    text = ", ".join(used)
    if unused:
        text += f"; llama.cpp would be faster with {', '.join(unused)}; {again}"
        return Check(name, "remark", text, data)
    return Check(name, "ok", text, data)


def kernels(report: BuildReport) -> Check:
    data = {
        "tried": report.tried,
        "measure": report.measure,
        "reason": report.reason,
        "error": report.error,
    }
    if report.error:
        return Check("kernels", "fault", report.error, data)
    if report.remark:
        return Check("kernels", "remark", report.remark, data)
    tried = f"the kernels for {', '.join(report.tried)} compute correctly"
    text = tried if report.tried else "no kernels need a test"
    return Check("kernels", "ok", text, data)


def devices(report: BuildReport) -> Check:
    lines = [
        f"{d.name}: {d.description} ({shown_size(d.free)} of {shown_size(d.total)} free)"
        for d in report.devices
    ]
    data = {"devices": msgspec.to_builtins(report.devices)}
    return Check("devices", "ok", "; ".join(lines) or "none: everything runs on the CPU", data)


# ---- the machine -------------------------------------------------------------------------


def memory(meminfo: Path = Path("/proc/meminfo")) -> Check:
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text("ascii").splitlines())
        data = {
            name: int(fields[key].split()[0]) << 10  # from KiB
            for name, key in (("total", "MemTotal"), ("available", "MemAvailable"))
        }
    except (OSError, KeyError, ValueError):  # not on Linux
        return Check("memory", "ok", "unknown on this system", {})
    text = f"{shown_size(data['available'])} of {shown_size(data['total'])} available"
    return Check("memory", "ok", text, data)


def model() -> Check:
    path = model_path()
    data: dict[str, Any] = {"path": str(path)}
    try:
        data["size"] = path.stat().st_size
    except OSError as error:
        return Check("shipped model", "fault", f"{path}: {error.strerror}", data)
    return Check("shipped model", "ok", f"{path} ({shown_size(data['size'])})", data)


def cache(environ: Mapping[str, str]) -> Check:
    try:
        hub, plain = hub_cache(environ), url_cache(environ)
    except RuntimeError as error:
        return Check("model cache", "remark", f"there is no directory for it: {error}", {})
    models = cached_models(hub)
    files = [file for file in plain.rglob("*.gguf") if file.is_file()]
    # With LLAMA_CACHE both caches are one folder. The Hub's models are in folders of their own.
    others = [f for f in files if not f.relative_to(plain).parts[0].startswith("models--")]
    size = sum(m.size for m in models) + sum(file.stat().st_size for file in others)
    n = len(models) + len(others)
    data = {"directory": str(hub), "urls": str(plain), "models": n, "size": size}
    return Check("model cache", "ok", f"{hub}: {n} models, {shown_size(size)}", data)


def port(environ: Mapping[str, str]) -> Check:
    """Checks the port that `specllama` would listen on without options."""
    try:
        options = parse([], environ)
    except OptionError as error:
        return Check("environment", "fault", str(error), {})
    data = {"hosts": options.http.hosts(), "port": options.port()}
    try:
        with Listeners(options.http.hosts(), options.port()) as listeners:
            text = f"{', '.join(listeners.urls('http', options.http.api_prefix))} is free"
    except ListenError as error:
        return Check("port", "fault", f"{error}; choose another one with --port", data)
    return Check("port", "ok", text, data)


def open_files() -> Check:
    try:
        import resource
    except ImportError:  # not on Windows
        return Check("open files", "ok", "this system has no such limit", {})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    data = {
        "soft": None if soft == unlimited else soft,
        "hard": None if hard == unlimited else hard,
    }
    text = "no limit" if soft == unlimited else f"at most {soft}; each connection needs one"
    if soft != unlimited and soft < FEW_FILES:
        return Check("open files", "remark", f"{text}; raise the limit with ulimit -n", data)
    return Check("open files", "ok", text, data)
