"""Many CPU kernels compiled as one source: the compiler reads the headers once."""

import subprocess
from pathlib import Path

from prism.codegen.cpu.manifest import CPU
from prism.codegen.cpu.printer import headers, kernels
from prism.measure.library import Library


class Entry(Library):
    """One kernel of a library of several."""

    def __init__(self, path: Path, number: int, threads: int):
        self.number = number
        super().__init__(path, threads)

    def entry(self, library):
        """Its function."""
        return library[f"prism_run_{self.number}"]


def compiled(tiles, folder: Path, threads: int = 2, flags: tuple[str, ...] = ()) -> list[Entry]:
    """The tile programs as the CPU backend prints and compiles them; `flags` come last."""
    parts = [headers(), "#include <algorithm>"]
    for number, tile in enumerate(tiles):
        text = kernels(tile).replace("int prism_run(", f"int prism_run_{number}(")
        parts.append(f"namespace number_{number} {{\n{text}\n}}")
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text("\n".join(parts))
    command = CPU.build([(source, library)], None, 1, 600.0)
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [Entry(library, number, threads) for number in range(len(tiles))]
