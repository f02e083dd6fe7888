//! Slurm's lists of hosts, such as `a[03-07,09],b1`.

use crate::budgets::HOSTS;

/// The hosts of a Slurm host list in order; `None` if it is not one, or has more than
/// [`HOSTS`] hosts.
///
/// A name may have several brackets; the last one varies fastest. Numbers keep their leading zeros.
pub fn expand_hostlist(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for name in split_outside_brackets(list)? {
        let expanded = expand_name(name)?;
        if hosts.len() + expanded.len() > HOSTS {
            return None;
        }
        hosts.extend(expanded);
    }
    Some(hosts)
}

/// Splits at commas that are not in brackets.
fn split_outside_brackets(list: &str) -> Option<Vec<&str>> {
    let mut names = Vec::new();
    let (mut first, mut is_inside) = (0, false);
    for (i, c) in list.char_indices() {
        match c {
            '[' if is_inside => return None,
            ']' if !is_inside => return None,
            '[' | ']' => is_inside = c == '[',
            ',' if !is_inside => {
                names.push(&list[first..i]);
                first = i + 1;
            }
            c if c.is_whitespace() || c.is_control() => return None,
            _ => {}
        }
    }
    names.push(&list[first..]);
    Some(names).filter(|_| !is_inside)
}

fn expand_name(name: &str) -> Option<Vec<String>> {
    if name.is_empty() {
        return None;
    }
    let mut hosts = vec![String::new()];
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']')?;
        let numbers = expand_ranges(ranges)?;
        if hosts.len().checked_mul(numbers.len())? > HOSTS {
            return None;
        }
        let join = |host: &String| {
            let begin = format!("{host}{before}");
            numbers
                .iter()
                .map(move |n| format!("{begin}{n}"))
                .collect::<Vec<_>>()
        };
        hosts = hosts.iter().flat_map(join).collect();
        rest = after;
    }
    for host in &mut hosts {
        host.push_str(rest);
    }
    Some(hosts)
}

/// The numbers of `03-07,09` as text.
fn expand_ranges(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let n = to.checked_sub(from)?;
        if n >= HOSTS as u64 || numbers.len() as u64 + n >= HOSTS as u64 {
            return None;
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_expanded_as_slurm_does() {
        let cases: [(&str, &[&str]); 9] = [
            ("node1", &["node1"]),
            ("a[03-05]", &["a03", "a04", "a05"]),
            ("a[9-11]", &["a9", "a10", "a11"]),
            ("a[098-100]", &["a098", "a099", "a100"]),
            ("a[1,3],b7", &["a1", "a3", "b7"]),
            ("a[1-2,07]-ib", &["a1-ib", "a2-ib", "a07-ib"]),
            ("r[1-2]n[3-4]", &["r1n3", "r1n4", "r2n3", "r2n4"]),
            ("gpu-a.example.org", &["gpu-a.example.org"]),
            ("x,y", &["x", "y"]),
        ];
        for (list, expected) in cases {
            assert_eq!(expand_hostlist(list).expect(list), expected, "{list}");
        }
    }

    #[test]
    fn other_text_is_not_a_list() {
        for list in [
            "",
            ",",
            "a,",
            "a[",
            "a]",
            "a[]",
            "a[1",
            "a[1-]",
            "a[-1]",
            "a[2-1]",
            "a[x]",
            "a[[1]]",
            "a b",
            "a[1,]",
            "a[1-2-3]",
            "a[0-99999999]",
            "a[0-65535],b",
            "a[0-999]b[0-999]",
            "a[99999999999999999999999]",
            "a\u{1b}",
        ] {
            assert_eq!(expand_hostlist(list), None, "{list:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_bounded(text in "[a0-9,\\[\\]\\-é ]{0,40}", other: String) {
            for list in [text, other] {
                if let Some(hosts) = expand_hostlist(&list) {
                    prop_assert!(!hosts.is_empty() && hosts.len() <= HOSTS);
                    prop_assert!(hosts.iter().all(|host| !host.contains(['[', ']', ','])));
                }
            }
        }

        #[test]
        fn a_written_list_is_read(
            names in prop::collection::vec(("[a-z]{1,5}", 0u32..2000, 0u32..20, 0usize..5), 1..5),
        ) {
            let mut list = Vec::new();
            let mut expected = Vec::new();
            for (name, first, n, width) in names {
                let last = first + n;
                list.push(format!("{name}[{first:0width$}-{last:0width$}]"));
                expected.extend((first..=last).map(|i| format!("{name}{i:0width$}")));
            }
            prop_assert_eq!(expand_hostlist(&list.join(",")), Some(expected));
        }
    }
}
