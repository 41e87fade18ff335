"""How Spack builds and installs skt-hpl: from the clone that this file is part of, with Spack's MPI and BLAS.

Not tried with Spack itself yet: docs/INSTALLING.md says what was.
"""

import os

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *

# scripts/packaging/spack/packages/skt_hpl/package.py, from the top of the clone.
CLONE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 5))


class SktHpl(Package):
    """High-Performance Linpack that survives the loss of nodes: takes HPL.dat and prints what HPL prints."""

    homepage = "https://www.netlib.org/benchmark/hpl/"
    git = "file://" + CLONE

    license("MIT OR Apache-2.0")

    version("main", branch="main")

    variant(
        "blas",
        default="blis",
        values=("blis", "openblas"),
        multi=False,
        description="The BLAS to link; another one can be loaded at the start",
    )

    depends_on("c", type="build")
    depends_on("rust@1.89:", type="build")
    depends_on("pkgconfig", type="build")
    # MPI's headers are read by libclang.
    depends_on("llvm+clang", type="build")
    depends_on("mpi")
    depends_on("blis+cblas libs=shared", when="blas=blis")
    depends_on("openblas", when="blas=openblas")

    def setup_build_environment(self, env):
        env.set("MPICC", self.spec["mpi"].mpicc)
        env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)
        # Crates and what is built of them stay in the stage.
        env.set("CARGO_HOME", os.path.join(self.stage.path, "cargo"))

    def install(self, spec, prefix):
        features = []
        if spec.variants["blas"].value == "openblas":
            features = ["--no-default-features", "--features", "openblas"]
        cargo = which("cargo", required=True)
        cargo("build", "--locked", "--release", "-j", str(make_jobs), *features)
        installer = Executable(join_path(self.stage.source_path, "scripts", "install.sh"))
        installer("--prefix", prefix, "--binary", join_path("target", "release", "skt-hpl"))

    @run_after("install")
    def it_runs(self):
        Executable(join_path(self.prefix.bin, "skt-hpl"))("--version")
