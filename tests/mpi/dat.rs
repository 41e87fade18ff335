//! HPL.dat as a user would write it, for tests: the codes of the reference, one per line.

/// Content of HPL.dat, 31 lines. Lists have the codes of the reference, such as 0 for left, 1 for Crout, 2 for right.
#[derive(Clone, Debug)]
pub struct Dat {
    pub file: String,
    pub device: usize,
    pub ns: Vec<usize>,
    pub nbs: Vec<usize>,
    pub pmap: usize,
    pub grids: Vec<(usize, usize)>,
    pub threshold: f64,
    pub pfacts: Vec<usize>,
    pub nbmins: Vec<usize>,
    pub ndivs: Vec<usize>,
    pub rfacts: Vec<usize>,
    pub bcasts: Vec<usize>,
    pub depths: Vec<usize>,
    pub swap: usize,
    pub swap_threshold: usize,
    pub l1: usize,
    pub u: usize,
    pub equil: usize,
    pub align: usize,
}

impl Default for Dat {
    fn default() -> Self {
        Self {
            file: "HPL.out".into(),
            device: 6,
            ns: vec![50],
            nbs: vec![8],
            pmap: 0,
            grids: vec![(1, 1)],
            threshold: 16.0,
            pfacts: vec![2],
            nbmins: vec![4],
            ndivs: vec![2],
            rfacts: vec![1],
            bcasts: vec![1],
            depths: vec![1],
            swap: 2,
            swap_threshold: 12,
            l1: 0,
            u: 0,
            equil: 1,
            align: 8,
        }
    }
}

impl Dat {
    /// Returns the number of ranks of the largest grid.
    pub fn ranks(&self) -> usize {
        self.grids.iter().map(|(p, q)| p * q).max().expect("there is a grid")
    }

    /// Returns the number of tests that the file asks for.
    pub fn tests(&self) -> usize {
        self.grids.len()
            * [&self.ns, &self.nbs, &self.pfacts, &self.nbmins, &self.ndivs, &self.rfacts]
                .iter()
                .map(|list| list.len())
                .product::<usize>()
            * self.bcasts.len()
            * self.depths.len()
    }

    pub fn text(&self) -> String {
        fn row<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
            values.into_iter().map(|v| v.to_string()).collect::<Vec<_>>().join(" ")
        }
        let mut lines = vec!["HPLinpack benchmark input file".into(), "for a test".into()];
        lines.push(format!("{} output file", self.file));
        lines.push(format!("{} device out", self.device));
        let mut list = |values: &[usize], what: &str| {
            lines.push(format!("{} number of {what}", values.len()));
            lines.push(format!("{} {what}", row(values)));
        };
        list(&self.ns, "Ns");
        list(&self.nbs, "NBs");
        lines.push(format!("{} PMAP", self.pmap));
        lines.push(format!("{} number of grids", self.grids.len()));
        lines.push(format!("{} Ps", row(self.grids.iter().map(|g| g.0))));
        lines.push(format!("{} Qs", row(self.grids.iter().map(|g| g.1))));
        lines.push(format!("{:e} threshold", self.threshold));
        let mut list = |values: &[usize], what: &str| {
            lines.push(format!("{} number of {what}", values.len()));
            lines.push(format!("{} {what}", row(values)));
        };
        list(&self.pfacts, "PFACTs");
        list(&self.nbmins, "NBMINs");
        list(&self.ndivs, "NDIVs");
        list(&self.rfacts, "RFACTs");
        list(&self.bcasts, "BCASTs");
        list(&self.depths, "DEPTHs");
        for (value, what) in [
            (self.swap, "SWAP"),
            (self.swap_threshold, "swapping threshold"),
            (self.l1, "L1"),
            (self.u, "U"),
            (self.equil, "Equilibration"),
            (self.align, "alignment"),
        ] {
            lines.push(format!("{value} {what}"));
        }
        assert_eq!(lines.len(), 31);
        lines.join("\n") + "\n"
    }
}
