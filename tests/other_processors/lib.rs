//! The multiplication kernels alone, for a processor that this machine does not have.
//!
//! `scripts/test.sh` compiles these sources with their tests, and runs the tests in an emulator. The rest of the program needs
//! MPI and a BLAS for that processor; the kernels and the loops around them do not.

#![allow(dead_code)] // The engine that calls all of it is not here.

#[path = "../../src/kernels/"]
mod kernels {
    mod cache;
    mod micro;
    mod operands;
    mod packed;
    mod vector;
}
#[path = "../../src/base/"]
mod base {
    pub mod cores;
    pub mod new_thread;
    pub mod topology;
}
#[cfg(test)]
#[path = "../../src/testkit/"]
mod testkit {
    pub mod machine;
    pub mod pinning;
}
