//! Groups of positions that protect each other.
//!
//! Members of a group are on different failure domains. So if a node is lost, or a rack if the user names racks, each group loses
//! as few members as possible. If possible, members are neighbours, for speed, and groups have equal sizes. If the requested
//! groups are impossible, the error names a possible alternative.

use std::collections::BTreeMap;
use std::net::IpAddr;

use thiserror::Error;

use crate::parity::Spread;
use crate::shm::header::GROUP_MAX;

/// Default group size, if there are enough nodes. Larger groups save little more memory, and are more likely to lose several
/// members.
pub const GROUP_DEFAULT: usize = 16;

/// Maximum number of divisions into runs of neighbours that are tried. If no tried division gives groups of equal size, groups
/// are formed without regard to neighbours.
const CUTS_MAX: usize = 64;

/// Reason why the requested groups are impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GroupError {
    #[error(
        "surviving {} in each group{} needs at least {least} failure domains, and there {}; {best}",
        of_losses(*losses), with(*spread), count(*domains)
    )]
    TooFewDomains { losses: usize, spread: Spread, least: usize, domains: usize, best: String },
    #[error(
        "groups of {wanted} cannot be formed: {busiest} of the {positions} positions are in failure \
         domain {name:?}, so a group of positions from different domains has at most {most} members; {best}"
    )]
    TooLarge {
        wanted: usize,
        most: usize,
        positions: usize,
        busiest: usize,
        name: String,
        best: String,
    },
    #[error("a group of {size} cannot survive {}; it needs at least {least} members", of_losses(*losses))]
    TooSmall { size: usize, losses: usize, least: usize },
    #[error(
        "a group has at most {GROUP_MAX} members, but one would have {0} here: use a smaller --group"
    )]
    TooMany(usize),
    #[error(
        "failure domain {name:?} has {busiest} of the {positions} positions, which must all be in different groups: \
         the groups would then be too small to survive {}{}; {best}", of_losses(*losses), with(*spread)
    )]
    Lopsided {
        name: String,
        busiest: usize,
        positions: usize,
        losses: usize,
        spread: Spread,
        best: String,
    },
    #[error(
        "--parity-layout grid makes groups of the columns or of the rows of the {p} x {q} grid. Here neither kind of \
         group survives {}: {columns}; {rows}. Use another grid or --pmap, fewer ranks on a node, fewer --losses, or \
         --parity-layout striped",
        of_losses(*losses)
    )]
    NoLines { p: usize, q: usize, losses: usize, columns: String, rows: String },
    #[error(
        "--parity-layout dedicated makes {} of the {positions} grid positions, but {needed} groups are needed, so that \
         no two members of a group share a failure domain: {}",
        groups_of(*count), smaller(*most)
    )]
    NotSoFew { positions: usize, count: usize, needed: usize, most: usize },
    #[error(
        "--parity-layout dedicated: failure domain {name:?} has {here} ranks, one of which is at position {position} and keeps \
         only checksums. These ranks do not fit into {}, because no two members of a group may share a domain: put the \
         ranks that follow those of the grid on nodes of their own, or use a smaller --group", groups_of(*count)
    )]
    NoRoomApart { position: usize, name: String, here: usize, count: usize },
}

/// Advice in an error text, if groups are too large for the available nodes. `most` is the largest possible group size.
fn smaller(most: usize) -> String {
    match most {
        0 | 1 => "use fewer ranks on a node, or more nodes".into(),
        most => format!("use --group {most}, and start more ranks for checksums"),
    }
}

fn groups_of(count: usize) -> String {
    match count {
        1 => "one group".into(),
        n => format!("{n} groups"),
    }
}

fn of_losses(count: usize) -> String {
    match count {
        1 => "1 loss".into(),
        n => format!("{n} losses"),
    }
}

fn with(spread: Spread) -> &'static str {
    match spread {
        Spread::Rotated | Spread::Apart => "",
        Spread::Copied => " with --parity-layout localised",
    }
}

fn count(domains: usize) -> String {
    match domains {
        1 => "is 1".into(),
        n => format!("are {n}"),
    }
}

/// Groups as lists of their members. Every position is in exactly one group.
pub type Groups = Vec<Vec<usize>>;

/// Failure domains in the order of their first position, and the positions of each domain, in order.
struct Domains<'a> {
    order: Vec<&'a str>,
    of: BTreeMap<&'a str, Vec<usize>>,
    positions: usize,
}

impl<'a> Domains<'a> {
    fn new(domains: &'a [String]) -> Self {
        let mut order: Vec<&str> = Vec::new();
        let mut of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (position, domain) in domains.iter().enumerate() {
            let members = of.entry(domain).or_default();
            if members.is_empty() {
                order.push(domain);
            }
            members.push(position);
        }
        Self { order, of, positions: domains.len() }
    }

    /// Domain with the most positions, and the number of its positions.
    fn busiest(&self) -> (&'a str, usize) {
        let counts = self.of.iter().map(|(name, members)| (*name, members.len()));
        counts.max_by_key(|(_, n)| *n).unwrap_or(("", 0))
    }

    /// Deals the positions of these domains to `count` groups in turn, domain by domain.
    fn deal(&self, run: &[&'a str], count: usize) -> Groups {
        let mut dealt: Groups = vec![Vec::new(); count];
        for (turn, position) in run.iter().flat_map(|domain| &self.of[domain]).enumerate() {
            dealt[turn % count].push(*position);
        }
        dealt
    }

    /// Describes the best alternative if the requested groups cannot be formed.
    fn best(&self, spread: Spread) -> String {
        let members = (self.positions / self.busiest().1.max(1)).min(self.order.len());
        let bearable = |losses: &usize| spread.members_least(*losses) <= members;
        let most = (1..=members).take_while(bearable).last().unwrap_or(0);
        match most {
            0 => "no loss can be survived here: use more nodes, or run without --checkpoint; or name finer failure domains in a \
                  file for --domains FILE, with a line such as `rank:0 a` or `host7 rack2` for each rank or host (ranks of one \
                  machine as domains of their own are for trying only: if the machine is lost, all of them are lost)"
                .into(),
            n => format!("the largest possible value here is --losses {n}"),
        }
    }
}

/// Divides positions into groups. `domains[i]` names the failure domain of position i. `size` is the requested group size, or
/// None for the default. With the parity layout `spread`, every group survives the loss of `losses` domains.
pub fn divide(
    domains: &[String],
    size: Option<usize>,
    losses: usize,
    spread: Spread,
) -> Result<Groups, GroupError> {
    let positions = domains.len();
    let least = spread.members_least(losses).max(1);
    let domains = Domains::new(domains);
    check_size(size, losses, least)?;
    if domains.order.len() < least {
        let (domains, best) = (domains.order.len(), domains.best(spread));
        return Err(GroupError::TooFewDomains { losses, spread, least, domains, best });
    }
    let (name, busiest) = domains.busiest();
    // Every position of the busiest domain needs another group, because a group must not have two positions of one domain. So
    // there are at least `busiest` groups, and the other positions must suffice to fill them.
    let least_groups = busiest.max(1);
    if positions / least_groups < least {
        let (name, best) = (name.into(), domains.best(spread));
        return Err(GroupError::Lopsided { name, busiest, positions, losses, spread, best });
    }
    let most = positions.div_ceil(least_groups);
    let wanted = match (size, spread) {
        (Some(wanted), _) if wanted > most => {
            let (name, best) = (name.into(), format!("--group {most} is possible"));
            return Err(GroupError::TooLarge { wanted, most, positions, busiest, name, best });
        }
        (Some(wanted), _) => wanted,
        (None, Spread::Rotated | Spread::Apart) => GROUP_DEFAULT,
        // With copied parity, larger groups do not save memory.
        (None, Spread::Copied) => least,
    };
    let groups = count_of_even(positions, wanted, least, least_groups);

    // Divides the domains into runs of neighbours, and deals positions to the groups of each run in turn, domain by domain. So no
    // group gets two positions of a domain, as long as no domain has more positions than the run has groups.
    let mut result: Groups = Vec::new();
    for (run, share) in neighbours(&domains, groups, spread, least) {
        result.extend(domains.deal(run, share));
    }
    match result.iter().map(Vec::len).max() {
        Some(largest) if largest > GROUP_MAX => Err(GroupError::TooMany(largest)),
        _ => Ok(result),
    }
}

/// Returns the number of equal groups into which `members` are divided; at least `fewest`. No group has more than `wanted`
/// members, unless some group would then have fewer than `least` members.
pub fn count_of_even(members: usize, wanted: usize, least: usize, fewest: usize) -> usize {
    members.div_ceil(wanted.max(1)).min(members / least).max(fewest)
}

/// Rounds `groups`, a number of groups, up to a multiple of `each`. There are `nodes` nodes, with `each` positions on every node.
/// Returns `groups` unchanged if a group would then have fewer than `least` members. With copied parity, smaller groups need no
/// more memory, and are less likely to lose two members.
pub fn alike(groups: usize, nodes: usize, each: usize, least: usize) -> usize {
    let more = groups.div_ceil(each);
    if nodes / more >= least { more.saturating_mul(each) } else { groups }
}

/// Divides positions into `count` groups in turn, domain by domain, without regard to neighbours.
pub fn dealt(domains: &[String], count: usize) -> Result<Groups, GroupError> {
    let domains = Domains::new(domains);
    let (positions, (_, needed)) = (domains.positions, domains.busiest());
    if needed > count {
        let most = (positions / needed).max(1);
        return Err(GroupError::NotSoFew { positions, count, needed, most });
    }
    Ok(domains.deal(&domains.order, count))
}

/// Divides the domains into runs of neighbours, so that the members of a group are close to each other. Returns each run with its
/// number of groups. Returns a single run if domains have different numbers of positions, or if several runs would make groups
/// less equal in size.
fn neighbours<'a, 'o>(
    Domains { order, of, .. }: &'o Domains<'a>,
    groups: usize,
    spread: Spread,
    least: usize,
) -> Vec<(&'o [&'a str], usize)> {
    let order = &order[..];
    let each = of[order[0]].len();
    let nodes = order.len();
    if order.iter().any(|d| of[d].len() != each) {
        return vec![(order, groups)];
    }
    let groups = match spread {
        Spread::Copied => alike(groups, nodes, each, least),
        _ => groups,
    };
    let positions = nodes * each;
    let even = positions / groups..=positions.div_ceil(groups);
    let cut = |runs: usize| -> Option<Vec<(&'o [&'a str], usize)>> {
        let (mut from, mut dealt) = (0, 0);
        let run = |run: usize| {
            let share = groups / runs + usize::from(run < groups % runs);
            dealt += share;
            let all_even = |to: &usize| {
                let members = (to - from) * each;
                let sizes = [members / share, members.div_ceil(share)];
                sizes.iter().all(|size| even.contains(size))
            };
            let ends = [(nodes * dealt).div_ceil(groups), nodes * dealt / groups];
            let to = ends.into_iter().find(all_even)?;
            let run = &order[from..to];
            from = to;
            Some((run, share))
        };
        (0..runs).map(run).collect()
    };
    // Each domain has one position in each of `each` groups, so a run has at least this number of groups.
    let most = groups / each;
    let found = (1..=most).rev().take(CUTS_MAX).find_map(cut);
    found.unwrap_or_else(|| vec![(order, groups)])
}

/// Cuts `line` into `runs` runs of neighbours. The first runs may have one element more than the last runs.
pub(super) fn even_runs<T: Clone>(line: &[T], runs: usize) -> Vec<Vec<T>> {
    let (short, longer) = (line.len() / runs, line.len() % runs);
    let mut rest = line;
    (0..runs)
        .map(|run| {
            let (taken, behind) = rest.split_at(short + usize::from(run < longer));
            rest = behind;
            taken.to_vec()
        })
        .collect()
}

/// Returns an error if the requested group size is above the maximum, or below `least`, the minimum for a group that survives
/// `losses` losses.
pub(super) fn check_size(
    size: Option<usize>,
    losses: usize,
    least: usize,
) -> Result<(), GroupError> {
    match size {
        Some(size) if size > GROUP_MAX => Err(GroupError::TooMany(size)),
        Some(size) if size < least => Err(GroupError::TooSmall { size, losses, least }),
        _ => Ok(()),
    }
}

/// Returns the failure domains that have more members of one group than the group can lose, each with the number of these
/// members.
pub fn crowded(groups: &Groups, domains: &[String], losses: usize) -> Vec<(String, usize)> {
    let mut worst: BTreeMap<&str, usize> = BTreeMap::new();
    // A group with a single member has no parity, so it has nothing to rebuild.
    for group in groups.iter().filter(|group| group.len() > 1) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for &position in group {
            *counts.entry(&domains[position]).or_default() += 1;
        }
        for (domain, count) in counts.into_iter().filter(|(_, count)| *count > losses) {
            let most = worst.entry(domain).or_default();
            *most = count.max(*most);
        }
    }
    worst.into_iter().map(|(domain, count)| (domain.to_owned(), count)).collect()
}

/// Contents of a domain file. Each line is `host domain` or `rank:3 domain`; `#` begins a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainFile {
    hosts: BTreeMap<String, String>,
    ranks: BTreeMap<usize, String>,
}

impl DomainFile {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut file = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let at = number + 1;
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [who, domain] = fields[..] else {
                return Err(format!(
                    "line {at}: {line:?} is not `host domain` or `rank:NUMBER domain`"
                ));
            };
            let twice = match who.strip_prefix("rank:") {
                Some(rank) => {
                    let rank: usize = rank
                        .parse()
                        .map_err(|_| format!("line {at}: {rank:?} is no rank number"))?;
                    file.ranks.insert(rank, domain.into()).is_some()
                }
                None => file.hosts.insert(who.into(), domain.into()).is_some(),
            };
            if twice {
                return Err(format!("line {at}: {who} is given a domain for the second time"));
            }
        }
        Ok(file)
    }

    /// Returns the domain of a rank on a host. A host that is not listed is a domain of its own.
    pub fn domain(&self, rank: usize, host: &str) -> String {
        self.told(rank, host).unwrap_or(host).to_owned()
    }

    /// Returns true if the file names hosts, but names neither this host nor this rank.
    pub fn leaves_out(&self, rank: usize, host: &str) -> bool {
        !self.hosts.is_empty() && self.told(rank, host).is_none()
    }

    fn told(&self, rank: usize, host: &str) -> Option<&str> {
        let named = self.ranks.get(&rank).or_else(|| self.hosts.get(host));
        named.map(String::as_str).or_else(|| self.alike(host))
    }

    /// Returns the failure domain of a host in the file, if the name of that host may mean this host ([`are_alike`]). Returns
    /// None if the file has no such host, or has several in different failure domains.
    fn alike(&self, host: &str) -> Option<&str> {
        let listed = self.hosts.iter().filter(|(name, _)| are_alike(name, host));
        let mut found: Vec<&str> = listed.map(|(_, domain)| domain.as_str()).collect();
        found.dedup();
        if let [domain] = found[..] { Some(domain) } else { None }
    }
}

/// Returns true if two names may mean the same host: they differ only in capital letters, or one name is the other without its
/// network domain. IP addresses must be equal.
fn are_alike(one: &str, other: &str) -> bool {
    let bare = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let whole = [one, other].map(str::to_ascii_lowercase);
    let either_is_bare = !whole.iter().all(|name| name.contains('.'));
    let address = whole.iter().any(|name| name.parse::<IpAddr>().is_ok());
    whole[0] == whole[1] || either_is_bare && !address && bare(one) == bare(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(of: &[usize]) -> Vec<String> {
        of.iter().map(|d| format!("n{d}")).collect()
    }

    fn rotated(
        domains: &[String],
        size: Option<usize>,
        losses: usize,
    ) -> Result<Groups, GroupError> {
        divide(domains, size, losses, Spread::Rotated)
    }

    /// The error on a single machine explains how to try protection there.
    #[test]
    fn one_machine_is_told_how_to_try_it() {
        let domains = vec!["host".to_owned(); 4];
        let text = divide(&domains, None, 1, Spread::Rotated).unwrap_err().to_string();
        assert!(text.starts_with("surviving 1 loss in each group needs at least 2 fail"), "{text}");
        assert!(text.contains("for --domains FILE, with a line such as `rank:0 a`"), "{text}");
        assert!(text.contains("for trying only"), "{text}");
        let text = divide(&domains, None, 2, Spread::Rotated).unwrap_err().to_string();
        assert!(text.starts_with("surviving 2 losses in"), "{text}");
    }

    #[test]
    fn groups_of_sixteen_neighbours_where_there_are_enough_nodes() {
        // 64 nodes with two ranks each, numbered node by node.
        let domains: Vec<String> = (0..128).map(|r| format!("n{}", r / 2)).collect();
        let groups = rotated(&domains, None, 1).unwrap();
        assert_eq!(groups.len(), 8);
        assert!(groups.iter().all(|g| g.len() == 16));
        assert_eq!(groups[0], (0..16).map(|i| 2 * i).collect::<Vec<_>>());
        assert_eq!(groups[1], (0..16).map(|i| 2 * i + 1).collect::<Vec<_>>());
    }

    #[test]
    fn a_node_that_holds_more_of_a_group_than_it_survives_is_named() {
        let groups = vec![vec![0, 2, 4], vec![1, 3, 5]];
        assert_eq!(crowded(&groups, &names(&[0, 0, 1, 1, 2, 2]), 1), []);
        // Ranks on node 1 have taken the positions of node 0.
        let doubled = names(&[1, 1, 1, 1, 2, 2]);
        assert_eq!(crowded(&groups, &doubled, 1), [("n1".to_owned(), 2)]);
        assert_eq!(crowded(&groups, &doubled, 2), []);
    }

    #[test]
    fn four_nodes_of_one_rank_are_one_group_and_of_four_ranks_four() {
        let groups = rotated(&names(&[0, 1, 2, 3]), None, 1).unwrap();
        assert_eq!(groups, [[0, 1, 2, 3]]);
        let cyclic: Vec<usize> = (0..16).map(|r| r % 4).collect();
        let groups = rotated(&names(&cyclic), None, 2).unwrap();
        assert_eq!(groups.len(), 4);
        assert_eq!(crowded(&groups, &names(&cyclic), 1), []);
        let groups = rotated(&names(&[0, 1, 2, 3]), Some(2), 1).unwrap();
        assert_eq!(groups, [[0, 1], [2, 3]]);
    }

    #[test]
    fn impossible_groups_are_refused_with_the_best_possible() {
        let error = rotated(&names(&[0, 0, 0, 0]), None, 1).unwrap_err().to_string();
        assert!(error.contains("there is 1") && error.contains("no loss"), "{error}");
        let error = rotated(&names(&[0, 1, 2, 0, 1, 2]), None, 3).unwrap_err().to_string();
        assert!(error.contains("--losses 2"), "{error}");
        let error = rotated(&names(&[0, 0, 0, 1]), None, 1).unwrap_err().to_string();
        assert!(error.contains("\"n0\""), "{error}");
        let error = rotated(&names(&[0, 0, 1, 1]), Some(4), 1).unwrap_err().to_string();
        assert!(error.contains("--group 2"), "{error}");
        assert!(matches!(
            rotated(&names(&[0, 1, 2]), Some(2), 2),
            Err(GroupError::TooSmall { .. })
        ));
    }

    /// Checks that no group is larger than requested, unless more groups were impossible.
    fn as_small_as_asked(groups: &Groups, positions: usize, wanted: usize, least: usize) -> bool {
        let largest = groups.iter().map(Vec::len).max().unwrap_or(0);
        largest <= wanted || (groups.len() + 1) * least > positions
    }

    #[test]
    fn groups_are_no_larger_than_asked_with_several_ranks_a_node() {
        let sizes = |nodes: usize, each: usize, size| -> Vec<usize> {
            let domains: Vec<usize> = (0..nodes * each).map(|r| r / each).collect();
            rotated(&names(&domains), size, 1).unwrap().iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(7, 2, Some(3)), [3, 3, 2, 3, 3]);
        assert_eq!(sizes(33, 2, None), [14, 13, 13, 13, 13]);
        // Every cluster with these numbers of nodes and ranks, and every size that can be requested.
        for (nodes, each, size) in
            (2..26).flat_map(|n| (1..6).flat_map(move |e| (2..=n).map(move |s| (n, e, s))))
        {
            let sizes = sizes(nodes, each, Some(size));
            let (largest, count) = (sizes.iter().max().unwrap(), sizes.len());
            assert!(largest - sizes.iter().min().unwrap() <= 1, "{nodes} {each} {size}: {sizes:?}");
            let more = (count + 1) * 2 <= nodes * each;
            assert!(*largest <= size || !more, "{nodes} nodes of {each}, {size}: {sizes:?}");
        }
    }

    proptest! {
        #[test]
        fn every_position_is_in_one_group_of_different_domains(
            raw in proptest::collection::vec(0usize..12, 1..60), losses in 1usize..4,
            size in proptest::option::of(2usize..20),
        ) {
            let domains = names(&raw);
            if let Ok(groups) = rotated(&domains, size, losses) {
                let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
                all.sort_unstable();
                prop_assert!(all.iter().copied().eq(0..domains.len()));
                prop_assert_eq!(crowded(&groups, &domains, 1), []);
                let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
                prop_assert!(sizes.iter().all(|&s| s > losses), "{:?}", sizes);
                let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{:?}", sizes);
                let wanted = size.unwrap_or(GROUP_DEFAULT);
                prop_assert!(as_small_as_asked(&groups, raw.len(), wanted, losses + 1), "{:?}", sizes);
            }
        }

        /// With the same number of ranks on each node, every request succeeds for which there are enough nodes.
        #[test]
        fn regular_clusters_are_refused_only_for_want_of_nodes(
            nodes in 1usize..40, each in 1usize..5, losses in 1usize..4, cyclic: bool, copied: bool,
        ) {
            let spread = if copied { Spread::Copied } else { Spread::Rotated };
            let raw: Vec<usize> = (0..nodes * each)
                .map(|r| if cyclic { r % nodes } else { r / each }).collect();
            let least = spread.members_least(losses);
            let found = divide(&names(&raw), None, losses, spread);
            prop_assert_eq!(found.is_ok(), nodes >= least);
            if let Ok(groups) = found {
                let sizes = groups.iter().map(Vec::len);
                prop_assert!(sizes.clone().all(|size| size >= least), "{:?}", groups);
                prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{:?}", groups);
                prop_assert_eq!(crowded(&groups, &names(&raw), 1), []);
                prop_assert!(as_small_as_asked(&groups, raw.len(), GROUP_DEFAULT.max(least), least));
            }
        }
    }

    #[test]
    fn domain_files_name_hosts_and_ranks() {
        let file =
            DomainFile::parse("# racks\nn1 rackA\nn2 rackA # same\nrank:3 mine\n\n").unwrap();
        assert_eq!(file.domain(0, "n1"), "rackA");
        assert_eq!(file.domain(0, "n2.cluster.org"), "rackA");
        assert_eq!(file.domain(3, "n1"), "mine");
        assert_eq!(file.domain(0, "n7"), "n7");
        let left_out =
            [(0, "n7"), (0, "n1"), (3, "n7")].map(|(rank, host)| file.leaves_out(rank, host));
        assert_eq!(left_out, [true, false, false]);
        assert!(!DomainFile::parse("rank:0 a").unwrap().leaves_out(1, "n7"), "it names no host");
        for (text, says) in [("n1", "line 1"), ("a b\na c", "second time"), ("rank:x y", "no rank")]
        {
            assert!(DomainFile::parse(text).unwrap_err().contains(says));
        }
    }

    /// A domain file was written from the host file or from an inventory. A node uses another form of its name.
    #[test]
    fn a_host_is_found_in_a_domain_file_by_other_words_for_it() {
        let file = DomainFile::parse(
            "n1.site a\nN2 b\nn3.east c\nn3.west d\nn4.east e\nn4.west e\n10.0.0.5 f\n",
        )
        .unwrap();
        let of = |host: &str| file.domain(0, host);
        assert_eq!(["n1", "N1.Site", "n1.site"].map(of), ["a"; 3]);
        assert_eq!(["n2", "n2.site", "N2"].map(of), ["b"; 3]);
        assert_eq!(["n3.east", "n3.west"].map(of), ["c", "d"]);
        assert_eq!(["n4", "N4"].map(of), ["e"; 2], "whichever it is");
        // No domain is found for another host, or for a name that may mean several hosts.
        for host in ["n1.elsewhere", "n3", "n3.north", "10.0.0.6", "10", "10.site"] {
            assert_eq!(of(host), host);
            assert!(file.leaves_out(0, host));
        }
        assert_eq!(of("10.0.0.5"), "f");
    }
}
