//! How ranks form nodes and share their rounds.

use super::*;

#[test]
fn the_ranks_of_a_host_are_a_node() {
    let nodes = |hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        ranks_of_nodes(&hosts)
    };
    assert_eq!(nodes(&["a", "a"]), Ok(vec![vec![0, 1]]));
    let dealt = ["b", "a", "b", "a"];
    assert_eq!(nodes(&dealt), Ok(vec![vec![1, 3], vec![0, 2]]));
    let uneven = nodes(&["a", "a", "b"]).unwrap_err();
    assert!(uneven.contains("a has 2 ranks and b has 1"), "{uneven}");
    let alone = nodes(&["a", "b"]).unwrap_err();
    assert!(alone.contains("a has one rank"), "{alone}");
}

#[test]
fn a_rank_takes_part_in_the_rounds_of_its_node_only() {
    let shares = [vec![0, 3], vec![1], vec![]];
    let plane = DataPlane::default();
    assert_eq!(
        [0, 1, 2].map(|rank| plane.n_rounds(&shares, rank)),
        [2, 1, 0]
    );
}
