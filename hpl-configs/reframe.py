"""ReFrame check: skt-hpl solves a problem, the residual passes, and the rate is reported.

    reframe -C SITE.py -c hpl-configs/reframe.py -r -S n=40000 -S p=2 -S q=2

The partition's launcher starts p x q ranks. `-S options='--checkpoint auto'` adds flags, `-S program=FILE` names the program.
"""

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class SktHpl(rfm.RunOnlyRegressionTest):
    descr = 'High-Performance Linpack with skt-hpl'
    valid_systems = ['*']
    valid_prog_environs = ['*']
    program = variable(str, value='skt-hpl')
    n = variable(int, value=4000)
    nb = variable(int, value=192)
    p = variable(int, value=1)
    q = variable(int, value=1)
    options = variable(str, value='')

    @run_before('run')
    def set_command(self):
        self.num_tasks = self.p * self.q
        self.executable = self.program
        size = ['-n', self.n, '--nb', self.nb, '-p', self.p, '-q', self.q]
        self.executable_opts = [str(word) for word in size] + self.options.split()

    @sanity_function
    def residual_passed(self):
        return sn.all([
            sn.assert_found(r'\b1 tests completed and passed residual checks', self.stdout),
            sn.assert_found(r'^End of Tests\.', self.stdout),
        ])

    @performance_function('Gflop/s')
    def rate(self):
        row = r'^W\S+' + 4 * r'\s+\d+' + r'\s+\S+\s+(\S+)$'
        return sn.extractsingle(row, self.stdout, 1, float)
