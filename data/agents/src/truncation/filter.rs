//! Extracts the part of a value selected by a JMESPath expression.
//!
//! The crate `jmespath` parses and evaluates expressions, and passes the language's compliance
//! tests. This module adds three things: it rejects expressions that would overflow the crate's
//! stack or its 32-bit indices, limits the size of a result with shared parts before copying it,
//! and restores the order of keys, which the crate sorts.

use jmespath::ast::Ast;
use jmespath::{DEFAULT_RUNTIME, Expression, JmespathError, Variable};
use serde_json::Value;

use super::error::FilterError;
use super::key_order::KeyOrders;

/// Maximum number of operators and brackets; the parser recurses for each.
const MAX_OPERATORS: usize = 150;

/// Maximum absolute index or slice step.
const MAX_INDEX: u32 = 100_000_000;

/// Maximum number of values in a result.
const MAX_VALUES: usize = 1_000_000;

/// Maximum number of characters of an expression in an error.
const MAX_SHOWN: usize = 200;

/// Applies a JMESPath expression to a value.
///
/// Keys are ordered as in the expression if it constructs an object with these keys, otherwise as
/// in the first object in `value` with the same keys, otherwise alphabetically. JMESPath does not
/// define the order of `*`, `keys` and `values`; their results are ordered in the same way.
///
/// # Errors
///
/// - the expression does not parse, or a function in it is unknown or rejects its argument
/// - it has too many operators, or an index or step that is too large
/// - the result has more than a million values
pub fn filter(expression: &str, value: &Value) -> Result<Value, FilterError> {
    let (compiled, mut orders) = compile(expression)?;
    let result = compiled
        .search(value)
        .map_err(|error| refusal(expression, &error))?;
    check_size("values in its result", n_values(&result), MAX_VALUES)?;
    let result = serde_json::to_value(&*result).map_err(|error| FilterError::Refused {
        expression: shorten_expression(expression),
        reason: error.to_string(),
    })?;
    orders.add_all(value);
    Ok(orders.restore_order(result))
}

/// Checks an expression without a value.
///
/// # Errors
///
/// - the expression does not parse, has an unknown function, or a slice with step 0
/// - it has too many operators, or an index or step that is too large
pub fn check_filter(expression: &str) -> Result<(), FilterError> {
    let (compiled, _) = compile(expression)?;
    check_node(compiled.as_ast(), &mut |node| {
        let reason = match node {
            Ast::Function { name, .. } if DEFAULT_RUNTIME.get_function(name).is_none() => {
                format!("unknown function {name:?}")
            }
            Ast::Slice { step: 0, .. } => "a slice has step 0".to_owned(),
            _ => return Ok(()),
        };
        Err(FilterError::Refused {
            expression: shorten_expression(expression),
            reason,
        })
    })
}

/// The parsed expression, with the key orders of the objects that it constructs.
fn compile(expression: &str) -> Result<(Expression<'static>, KeyOrders), FilterError> {
    let is_operator = |c: &char| "([{!&|.<>=*?".contains(*c);
    check_size(
        "operators",
        expression.chars().filter(is_operator).count(),
        MAX_OPERATORS,
    )?;
    let compiled = jmespath::compile(expression).map_err(|error| refusal(expression, &error))?;
    let mut orders = KeyOrders::default();
    check_node(compiled.as_ast(), &mut |node| {
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

fn check_size(field: &'static str, n: usize, max: usize) -> Result<(), FilterError> {
    if n <= max {
        Ok(())
    } else {
        Err(FilterError::TooLarge {
            what: field,
            n,
            max,
        })
    }
}

fn refusal(expression: &str, error: &JmespathError) -> FilterError {
    FilterError::Refused {
        expression: shorten_expression(expression),
        reason: format!("column {}: {}", error.column + 1, error.reason),
    }
}

pub(super) fn shorten_expression(expression: &str) -> String {
    match expression.char_indices().nth(MAX_SHOWN) {
        None => expression.to_owned(),
        Some((end, _)) => format!("{}...", expression.split_at(end).0),
    }
}

/// Calls `check` for every node, until it rejects one.
fn check_node(
    node: &Ast,
    check: &mut impl FnMut(&Ast) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    check(node)?;
    match node {
        Ast::Comparison { lhs, rhs, .. }
        | Ast::Projection { lhs, rhs, .. }
        | Ast::And { lhs, rhs, .. }
        | Ast::Or { lhs, rhs, .. }
        | Ast::Subexpr { lhs, rhs, .. } => {
            check_node(lhs, check)?;
            check_node(rhs, check)
        }
        Ast::Condition {
            predicate, then, ..
        } => {
            check_node(predicate, check)?;
            check_node(then, check)
        }
        Ast::Expref { ast: node, .. }
        | Ast::Flatten { node, .. }
        | Ast::Not { node, .. }
        | Ast::ObjectValues { node, .. } => check_node(node, check),
        Ast::Function { args: nodes, .. }
        | Ast::MultiList {
            elements: nodes, ..
        } => nodes.iter().try_for_each(|node| check_node(node, check)),
        Ast::MultiHash { elements, .. } => elements
            .iter()
            .try_for_each(|pair| check_node(&pair.value, check)),
        Ast::Identity { .. }
        | Ast::Field { .. }
        | Ast::Index { .. }
        | Ast::Literal { .. }
        | Ast::Slice { .. } => Ok(()),
    }
}

/// Number of values in a result, counted up to a limit. Each step of `[@, @] | [@, @] | ...` doubles
/// the number without using memory, because both items are shared; only a copy would use it.
fn n_values(result: &Variable) -> usize {
    let mut n = 0;
    let mut remaining: Vec<&Variable> = vec![result];
    while let Some(value) = remaining.pop() {
        n += 1;
        if n > MAX_VALUES {
            break;
        }
        match value {
            Variable::Array(items) => remaining.extend(items.iter().map(|item| &**item)),
            Variable::Object(fields) => remaining.extend(fields.values().map(|field| &**field)),
            _ => {}
        }
    }
    n
}
