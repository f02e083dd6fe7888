//! Finds the keys that a JMESPath expression reads, without running it.
//!
//! The result is a list of key paths. Lists add no key to a path, as in the published projection of
//! a response to the keys of its program. A path that ends at an object or list stands for all of
//! it. The analysis may list more keys than needed, but omits none that can change the result.

use jmespath::ast::{Ast, KeyValuePair};

type Paths = Vec<Vec<String>>;

/// The key paths that an expression reads; the empty path, which stands for the whole value, if it
/// does not parse.
pub(super) fn read_keys(expression: &str) -> Paths {
    let Ok(ast) = jmespath::parse(expression) else {
        return vec![Vec::new()];
    };
    let mut reads = Reads::default();
    let result = reads.visit(&ast, &[Place::default()]);
    reads.consume(&result);
    without_covered(reads.paths)
}

/// Removes duplicates and paths whose beginning is also in the list.
pub(super) fn without_covered(mut paths: Paths) -> Paths {
    paths.sort();
    paths.dedup();
    let mut kept: Paths = Vec::new();
    for path in paths {
        // A beginning of a path sorts before it.
        if !kept.iter().any(|earlier| path.starts_with(earlier)) {
            kept.push(path);
        }
    }
    kept
}

/// Where a value of the expression comes from.
#[derive(Debug, Clone, Default, PartialEq)]
struct Place {
    keys: Vec<String>,
    /// Whether keys are no longer added, because the value was reached through `*` or is a
    /// constructed object.
    is_whole: bool,
}

#[derive(Default)]
struct Reads {
    paths: Paths,
}

impl Reads {
    fn consume(&mut self, places: &[Place]) {
        self.paths
            .extend(places.iter().map(|place| place.keys.clone()));
    }

    fn consume_node(&mut self, node: &Ast, context: &[Place]) {
        let places = self.visit(node, context);
        self.consume(&places);
    }

    /// The places of the result of `node`. Values that only influence the result are consumed.
    fn visit(&mut self, node: &Ast, context: &[Place]) -> Vec<Place> {
        match node {
            Ast::Identity { .. } => context.to_vec(),
            Ast::Literal { .. } => Vec::new(),
            Ast::Field { name, .. } => context
                .iter()
                .map(|place| {
                    let mut place = place.clone();
                    if !place.is_whole {
                        place.keys.push(name.clone());
                    }
                    place
                })
                .collect(),
            // The position depends on the number of items, which a projection to keys preserves.
            Ast::Index { .. } | Ast::Slice { .. } => context.to_vec(),
            Ast::Subexpr { lhs, rhs, .. } | Ast::Projection { lhs, rhs, .. } => {
                let left = self.visit(lhs, context);
                self.visit(rhs, &left)
            }
            Ast::Flatten { node, .. } => self.visit(node, context),
            Ast::ObjectValues { node, .. } => {
                let mut places = self.visit(node, context);
                places.iter_mut().for_each(|place| place.is_whole = true);
                places
            }
            Ast::Condition {
                predicate, then, ..
            } => {
                self.consume_node(predicate, context);
                self.visit(then, context)
            }
            Ast::Comparison { lhs, rhs, .. } => {
                self.consume_node(lhs, context);
                self.consume_node(rhs, context);
                Vec::new()
            }
            Ast::Not { node, .. } => {
                self.consume_node(node, context);
                Vec::new()
            }
            Ast::And { lhs, rhs, .. } | Ast::Or { lhs, rhs, .. } => {
                let mut places = self.visit(lhs, context);
                // Whether the left side is empty decides which side is the result.
                self.consume(&places);
                places.extend(self.visit(rhs, context));
                places
            }
            Ast::MultiList { elements, .. } => self.constructed(elements.iter(), context),
            Ast::MultiHash { elements, .. } => {
                let values = elements.iter().map(|KeyValuePair { value, .. }| value);
                self.constructed(values, context)
            }
            Ast::Function { name, args, .. } => self.function(name, args, context),
            Ast::Expref { ast, .. } => self.visit(ast, context),
        }
    }

    /// The places of a constructed list or object: later keys select among its elements.
    fn constructed<'a>(
        &mut self,
        elements: impl Iterator<Item = &'a Ast>,
        context: &[Place],
    ) -> Vec<Place> {
        let mut places = Vec::new();
        for element in elements {
            let mut element = self.visit(element, context);
            element.iter_mut().for_each(|place| place.is_whole = true);
            places.extend(element);
        }
        places
    }

    fn function(&mut self, name: &str, args: &[Ast], context: &[Place]) -> Vec<Place> {
        /// Functions whose result consists of elements of their arguments.
        const PASS_ON: [&str; 11] = [
            "sort_by", "max_by", "min_by", "reverse", "sort", "to_array", "not_null", "max", "min",
            "map", "values",
        ];
        let mut of_values = Vec::new();
        for arg in args.iter().filter(|arg| !matches!(arg, Ast::Expref { .. })) {
            of_values.extend(self.visit(arg, context));
        }
        let mut of_references = Vec::new();
        for arg in args.iter().filter(|arg| matches!(arg, Ast::Expref { .. })) {
            of_references.extend(self.visit(arg, &of_values));
        }
        match name {
            // The elements themselves are not part of the result.
            "map" => return of_references,
            "sort_by" | "max_by" | "min_by" => self.consume(&of_references),
            "values" => of_values.iter_mut().for_each(|place| place.is_whole = true),
            _ => {}
        }
        if PASS_ON.contains(&name) {
            return of_values;
        }
        self.consume(&of_values);
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(expression: &str) -> Vec<String> {
        read_keys(expression)
            .iter()
            .map(|keys| keys.join("."))
            .collect()
    }

    #[test]
    fn keys_are_found_in_every_kind_of_expression() {
        for (expression, expected) in [
            ("a.b", &["a.b"][..]),
            ("a[?b > `1`].c", &["a.b", "a.c"]),
            ("a[?b.x == c].d | [0]", &["a.b.x", "a.c", "a.d"]),
            ("max_by(a, &b).c", &["a.b", "a.c"]),
            ("sort_by(a[?k == 'x'], &b)[2].c", &["a.b", "a.c", "a.k"]),
            ("sum(a[].b)", &["a.b"]),
            ("map(&b.c, a)", &["a.b.c"]),
            ("length(a)", &["a"]),
            ("a.*.b", &["a"]),
            ("a || b.c", &["a", "b.c"]),
            ("!a && b", &["a", "b"]),
            ("a.{x: b, y: c}.x", &["a.b", "a.c"]),
            ("a[0].[b, c][1]", &["a.b", "a.c"]),
            ("a[1:3].b[]", &["a.b"]),
            ("keys(a)", &["a"]),
            ("`5`", &[]),
            ("@", &[""]),
            ("a[?contains(b, 'x')].a", &["a.a", "a.b"]),
        ] {
            assert_eq!(written(expression), expected, "{expression}");
        }
    }

    #[test]
    fn a_path_covers_longer_ones() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        let paths = vec![path("a.b"), path("c"), path("a"), path("a.b"), path("ab")];
        assert_eq!(without_covered(paths), [path("a"), path("ab"), path("c")]);
    }
}
