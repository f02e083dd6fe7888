//! The part of a value that a JMESPath expression names.
//!
//! The crate `jmespath` parses and evaluates, and passes the language's own compliance tests. Three
//! things are done around it: what would overflow its stack or its 32-bit indices is refused, a
//! result that shares parts of itself is bounded before it is copied out, and keys, which the
//! crate sorts, are put back into their order.

use jmespath::ast::Ast;
use jmespath::{DEFAULT_RUNTIME, Expression, JmespathError, Variable};
use serde_json::Value;

use super::error::FilterError;
use super::key_order::KeyOrders;

/// Operators and brackets of an expression; the parser calls itself for each.
const MAX_OPERATORS: usize = 150;

/// Largest index or slice step, up or down.
const MAX_INDEX: u32 = 100_000_000;

/// Values in a result.
const MAX_VALUES: usize = 1_000_000;

/// Characters of an expression that an error shows.
const MAX_SHOWN: usize = 200;

/// Applies a JMESPath expression to a value.
///
/// The keys of an object in the result stand as in the expression if it makes such an object, else
/// as in the first object of `value` with the same keys; failing both they are sorted. So are the
/// parts that `*`, `keys` and `values` give, whose order JMESPath leaves open.
///
/// # Errors
///
/// - the expression does not parse, or a function in it is unknown or refuses its argument
/// - it has too many operators, or an index or step that is too large
/// - the result has more than a million values
pub fn filter(expression: &str, value: &Value) -> Result<Value, FilterError> {
    let (compiled, mut orders) = compiled(expression)?;
    let result = compiled
        .search(value)
        .map_err(|error| refusal(expression, &error))?;
    check_size("values in its result", n_values(&result), MAX_VALUES)?;
    let result = serde_json::to_value(&*result).map_err(|error| FilterError::Refused {
        expression: shown(expression),
        reason: error.to_string(),
    })?;
    orders.add_all(value);
    Ok(orders.restored(result))
}

/// Checks an expression before there is a value to apply it to.
///
/// # Errors
///
/// - the expression does not parse, names an unknown function, or has a slice with the step 0
/// - it has too many operators, or an index or step that is too large
pub fn check_filter(expression: &str) -> Result<(), FilterError> {
    let (compiled, _) = compiled(expression)?;
    visit(compiled.as_ast(), &mut |node| {
        let reason = match node {
            Ast::Function { name, .. } if DEFAULT_RUNTIME.get_function(name).is_none() => {
                format!("no function is called {name:?}")
            }
            Ast::Slice { step: 0, .. } => "a slice has the step 0".to_owned(),
            _ => return Ok(()),
        };
        Err(FilterError::Refused {
            expression: shown(expression),
            reason,
        })
    })
}

/// The parsed expression, with the orders of the keys of objects that it makes.
fn compiled(expression: &str) -> Result<(Expression<'static>, KeyOrders), FilterError> {
    let is_operator = |c: &char| "([{!&|.<>=*?".contains(*c);
    check_size(
        "operators",
        expression.chars().filter(is_operator).count(),
        MAX_OPERATORS,
    )?;
    let compiled = jmespath::compile(expression).map_err(|error| refusal(expression, &error))?;
    let mut orders = KeyOrders::default();
    visit(compiled.as_ast(), &mut |node| {
        if let Ast::MultiHash { elements, .. } = node {
            orders.add(elements.iter().map(|pair| pair.key.as_str()));
        }
        let numbers = match node {
            Ast::Index { idx, .. } => [Some(*idx), None, None],
            Ast::Slice {
                start, stop, step, ..
            } => [*start, *stop, Some(*step)],
            _ => [None; 3],
        };
        let largest = numbers.into_iter().flatten().map(i32::unsigned_abs).max();
        check_size(
            "as an index",
            largest.unwrap_or(0) as usize,
            MAX_INDEX as usize,
        )
    })?;
    Ok((compiled, orders))
}

fn check_size(what: &'static str, n: usize, max: usize) -> Result<(), FilterError> {
    if n <= max {
        Ok(())
    } else {
        Err(FilterError::TooLarge { what, n, max })
    }
}

fn refusal(expression: &str, error: &JmespathError) -> FilterError {
    FilterError::Refused {
        expression: shown(expression),
        reason: format!("column {}: {}", error.column + 1, error.reason),
    }
}

pub(super) fn shown(expression: &str) -> String {
    match expression.char_indices().nth(MAX_SHOWN) {
        None => expression.to_owned(),
        Some((end, _)) => format!("{}...", expression.split_at(end).0),
    }
}

/// Calls `see` for every node, until one is refused.
fn visit(
    node: &Ast,
    see: &mut impl FnMut(&Ast) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    see(node)?;
    match node {
        Ast::Comparison { lhs, rhs, .. }
        | Ast::Projection { lhs, rhs, .. }
        | Ast::And { lhs, rhs, .. }
        | Ast::Or { lhs, rhs, .. }
        | Ast::Subexpr { lhs, rhs, .. } => {
            visit(lhs, see)?;
            visit(rhs, see)
        }
        Ast::Condition {
            predicate, then, ..
        } => {
            visit(predicate, see)?;
            visit(then, see)
        }
        Ast::Expref { ast: node, .. }
        | Ast::Flatten { node, .. }
        | Ast::Not { node, .. }
        | Ast::ObjectValues { node, .. } => visit(node, see),
        Ast::Function { args: nodes, .. }
        | Ast::MultiList {
            elements: nodes, ..
        } => nodes.iter().try_for_each(|node| visit(node, see)),
        Ast::MultiHash { elements, .. } => {
            elements.iter().try_for_each(|pair| visit(&pair.value, see))
        }
        Ast::Identity { .. }
        | Ast::Field { .. }
        | Ast::Index { .. }
        | Ast::Literal { .. }
        | Ast::Slice { .. } => Ok(()),
    }
}

/// Values of a result, counted until there are too many: `[@, @] | [@, @] | ...` doubles them
/// without taking memory, as both items are the same.
fn n_values(result: &Variable) -> usize {
    let mut n = 0;
    let mut open: Vec<&Variable> = vec![result];
    while let Some(value) = open.pop() {
        n += 1;
        if n > MAX_VALUES {
            break;
        }
        match value {
            Variable::Array(items) => open.extend(items.iter().map(|item| &**item)),
            Variable::Object(fields) => open.extend(fields.values().map(|field| &**field)),
            _ => {}
        }
    }
    n
}
