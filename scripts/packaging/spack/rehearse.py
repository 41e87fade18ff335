#!/usr/bin/env python3
"""Goes through the Spack recipe with a stand-in for Spack: which directives it gives, and which commands its steps run.

usage: rehearse.py PREFIX PROGRAM     (installs PROGRAM into PREFIX, in place of what the recipe would have built)

Spack itself does not come in a package that a test could fetch. This notices a recipe that is no Python any more, one that
depends on something it does not ask for, and one whose installation fails.
"""
import os
import subprocess
import sys
import types

CLONE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
told = []


def directive(name):
    return lambda *words, **options: told.append((name, words, options))


class Executable:
    def __init__(self, path):
        self.path = path

    def __call__(self, *words):
        command = [self.path, *map(str, words)]
        print("runs:", " ".join(command))
        if os.path.basename(self.path) == "cargo":
            assert "--locked" in words and "--release" in words, command
            return
        # The program is given, not built by cargo.
        command = [program if word == os.path.join("target", "release", "skt-hpl") else word for word in command]
        subprocess.run(command, check=True)


class Package:
    stage = types.SimpleNamespace(path="/stage", source_path=CLONE)


class Spec(dict):
    variants = {"blas": types.SimpleNamespace(value="openblas")}


prefix, program = sys.argv[1:]
spack = types.ModuleType("spack.package")
for name in ["version", "variant", "depends_on", "license"]:
    setattr(spack, name, directive(name))
spack.run_after = lambda step: lambda function: function
spack.which = lambda name, required=False: Executable(name)
spack.Executable = Executable
spack.join_path = os.path.join
spack.make_jobs = 2
generic = types.ModuleType("spack_repo.builtin.build_systems.generic")
generic.Package = Package
for name in ["spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"]:
    sys.modules[name] = types.ModuleType(name)
sys.modules["spack.package"] = spack
sys.modules[generic.__name__] = generic

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "packages/skt_hpl/package.py")) as file:
    recipe = {"__file__": os.path.abspath(file.name)}
    exec(compile(file.read(), file.name, "exec"), recipe)
assert recipe["CLONE"] == CLONE, recipe["CLONE"]
with open(os.path.join(CLONE, "Cargo.toml")) as file:
    oldest = next(line.split('"')[1] for line in file if line.startswith("rust-version"))
needs = [words[0] for name, words, _ in told if name == "depends_on"]
assert f"rust@{oldest}:" in needs and "mpi" in needs, needs

package = recipe["SktHpl"]()
package.prefix = types.SimpleNamespace(bin=os.path.join(prefix, "bin"))
package.spec = Spec(
    mpi=types.SimpleNamespace(mpicc="mpicc"),
    llvm=types.SimpleNamespace(prefix=types.SimpleNamespace(lib="/llvm/lib")),
)
variables = {}
package.setup_build_environment(types.SimpleNamespace(set=variables.__setitem__))
assert set(variables) == {"MPICC", "LIBCLANG_PATH", "CARGO_HOME"}, variables
package.install(package.spec, prefix)
package.it_runs()
