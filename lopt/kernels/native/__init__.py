"""Native CPU code for elementwise functions, called through the XLA FFI.

`build` compiles the library with the system's C++ compiler (``CXX`` or ``c++``) into
the user's cache folder, once per machine. Without a library, on platforms other than
Linux on x86-64, or with ``LOPT_NATIVE=0``, all code falls back to XLA. That is slower
and gives the same results up to rounding.
"""

import contextlib
import ctypes
import hashlib
import math
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lopt.cache_directory import cache_folder, check_private, make_private
from lopt.kernels.native.program import Program

_SOURCE = Path(__file__).with_name("elementwise.cc")
_HEADERS = sorted(_SOURCE.parent.glob("*.h"))
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast"),
    *("-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-w"),
)
_TARGET, _SYMBOL = "lopt_elementwise", "LoptElementwise"
_SECONDS = 120


class _State:
    """State of this process: the lock serializes threads of an evaluation."""

    lock = threading.Lock()
    is_registered = False
    has_failed = False
    is_enabled = True


def is_available() -> bool:
    """Check whether native code is used; loads the library if `build` compiled it."""
    with _State.lock:
        return _State.is_enabled and _register(compile=False)


def build() -> bool:
    """Compile the library unless this machine has it, and load it.

    Warns, once, if the compiler fails.

    Returns:
        Whether native code is available.
    """
    with _State.lock:
        return _State.is_enabled and _register(compile=True)


def is_built() -> bool:
    """Check whether `build` would find a compiled library, or cannot compile one."""
    with contextlib.suppress(OSError):
        return not _compiler() or _path().exists()
    return False


def enable(is_enabled: bool) -> None:
    """Allow or forbid native code in programs that are lowered from now on."""
    _State.is_enabled = is_enabled


def _compiler() -> list[str]:
    """Command of the compiler; empty if native code is disabled or unsupported."""
    asked = shlex.split(os.environ.get("CXX", ""))
    # Native code is untested on other platforms.
    is_known = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    if os.environ.get("LOPT_NATIVE") == "0" or not is_known:
        return []
    return asked or (["c++"] if shutil.which("c++") else [])


def _register(*, compile: bool) -> bool:
    compiler = _compiler()
    if _State.is_registered or _State.has_failed or not compiler:
        return _State.is_registered and bool(compiler)
    library = None
    with contextlib.suppress(OSError):  # Missing, corrupt, or not ours.
        library = _load(_path())
    if library is None and not compile:
        return False
    try:
        library = library or _compile(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        _State.has_failed = True
        said = getattr(error, "stderr", None) or str(error).encode()
        warnings.warn(
            f"Failed to compile the native kernels with `{shlex.join(compiler)}` into "
            f"{cache_folder('native')}: "
            f"{said.decode(errors='replace').strip()[-500:]}\n"
            "Falling back to XLA, which is slower. LOPT_NATIVE=0 avoids this warning.",
            stacklevel=3,
        )
        return False
    handler = jax.ffi.pycapsule(getattr(library, _SYMBOL))
    jax.ffi.register_ffi_target(_TARGET, handler, platform="cpu")
    _State.is_registered = True
    return True


def _load(path: Path) -> ctypes.CDLL:
    """Load the library, unless others could have written it.

    Raises:
        OSError: If it is missing, corrupt, or not private to this user.
    """
    for each in (path.parent.parent, path.parent, path):
        check_private(each)
    return ctypes.CDLL(str(path))


def _path() -> Path:
    """Path of the library.

    The name covers sources, flags, compiler command, JAX version and CPU features.

    Raises:
        OSError: If the user has no cache directory.
    """
    cpu = [x for x in Path("/proc/cpuinfo").read_text().split("\n") if "flags" in x]
    sources = [path.read_text() for path in (_SOURCE, *_HEADERS)]
    parts = [*sources, *_FLAGS, *_compiler(), jax.__version__, *cpu[:1]]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    folder = cache_folder("native")
    if folder is None:
        raise FileNotFoundError("there is no home directory; set XDG_CACHE_HOME")
    return folder / f"{name[:32]}.so"


def _compile(compiler: Sequence[str]) -> ctypes.CDLL:
    """Compile and load the library.

    Raises:
        OSError: If files cannot be read or written, or the library cannot be loaded.
        subprocess.SubprocessError: If the compiler fails or times out.
    """
    path = _path()
    make_private(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        include = f"-I{jax.ffi.include_dir()}"
        command = [*compiler, *_FLAGS, include, str(_SOURCE), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        made.replace(path)  # Atomic, for concurrent processes.
    return _load(path)


def call(
    program: Program,
    operands: Sequence[Float[Array, "..."]],
    *,
    num_arrays: int,
    num_batch: int,
    is_reduction: bool,
) -> Float[Array, "..."]:
    """Run a program in native code; `is_available` must have returned true.

    Args:
        program: Program from `compile_function`.
        operands: Arrays that are broadcastable to the tensor's shape, followed by
            weights. All are float32.
        num_arrays: Number of arrays among the operands.
        num_batch: Number of leading batch axes of each operand. Their sizes are 1 or
            those of the batch.
        is_reduction: Whether to compute the mean square of each result.

    Returns:
        An array of shape (*batch, *tensor shape), or (*batch, results) if
        `is_reduction`.
    """
    leads = [x.shape[:num_batch] for x in operands]
    batch = jnp.broadcast_shapes(*leads)
    is_batched = [math.prod(lead) > 1 for lead in leads]

    def as_members(x, is_batched):
        own = x.shape[num_batch:]
        if not is_batched:
            return x.reshape(own)
        return jnp.broadcast_to(x, (*batch, *own)).reshape(math.prod(batch), *own)

    shape = jnp.broadcast_shapes(*(x.shape[num_batch:] for x in operands[:num_arrays]))
    result = (len(program.results),) if is_reduction else shape

    def integers(values):
        return np.asarray(values, np.int64)

    def weights(indices):
        return integers([num_arrays + i for i in indices])

    return jax.ffi.ffi_call(
        _TARGET, jax.ShapeDtypeStruct((*batch, *result), jnp.float32)
    )(
        *map(as_members, operands, is_batched),
        shape=integers(shape),
        is_batched=integers(is_batched),
        scalars=weights(program.scalars),
        layers=weights(program.layers),
        instructions=integers(program.instructions),
        constants=np.asarray(program.constants, np.float32),
        results=integers(program.results),
        num_arrays=np.int64(num_arrays),
        num_places=np.int64(program.num_places),
        num_members=np.int64(math.prod(batch)),
        is_reduction=is_reduction,
    )
