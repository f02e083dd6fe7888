//! Limits of a template before compilation: its length, its depth, and the size of its literals.
//!
//! The engine's parser, its compiler and the drop of its syntax trees recurse over the levels of an
//! expression. A chain of operators has as many levels as operators. Depth is therefore computed
//! from the tokens, before there is a tree. Constant expressions are evaluated at compile time,
//! before any other limit applies.

use minijinja::Value;
use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Macro, Stmt};
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::budget::{Exceeded, ITEM, TemplateBudgetError};
use crate::budgets::{
    TEMPLATE_BLOCKS, TEMPLATE_LITERAL_BYTES, TEMPLATE_NAME_BYTES, TEMPLATE_NESTING,
};

/// Rejects a template that nests too deeply. Invalid tokens are left to the parser.
pub(super) fn check_nesting(source: &str, syntax: SyntaxConfig) -> Result<(), TemplateBudgetError> {
    let mut depth = Depth::default();
    let (mut open_branches, mut n_blocks) = (vec![0], 0);
    let mut is_first = false;
    for (token, span) in tokenize(source, false, syntax).map_while(Result::ok) {
        let line = usize::from(span.start_line);
        let too_much = |excess: String, limit: usize, constant| TemplateBudgetError {
            line,
            exceeded: Exceeded::new(excess, limit.to_string(), constant),
        };
        let too_deep = |what: &str| {
            let excess = format!("{what} are nested more than {TEMPLATE_NESTING} levels deep");
            too_much(excess, TEMPLATE_NESTING, "TEMPLATE_NESTING")
        };
        match &token {
            Token::Ident("if") if is_first => open_branches.push(0),
            Token::Ident("endif") if is_first && open_branches.len() > 1 => {
                open_branches.pop();
            }
            Token::Ident("elif") if is_first => {
                if let Some(last) = open_branches.last_mut() {
                    *last += 1;
                }
                if open_branches.iter().sum::<usize>() > TEMPLATE_NESTING {
                    return Err(too_deep("branches (elif)"));
                }
            }
            Token::Ident("block") if is_first => {
                n_blocks += 1;
                if n_blocks > TEMPLATE_BLOCKS {
                    let excess = format!("it has more than {TEMPLATE_BLOCKS} blocks");
                    return Err(too_much(excess, TEMPLATE_BLOCKS, "TEMPLATE_BLOCKS"));
                }
            }
            Token::Ident(name) if name.len() > TEMPLATE_NAME_BYTES => {
                let excess = format!("a name has {} bytes", name.len());
                return Err(too_much(excess, TEMPLATE_NAME_BYTES, "TEMPLATE_NAME_BYTES"));
            }
            _ => {}
        }
        is_first = matches!(token, Token::BlockStart);
        if depth.add_token(&token) > TEMPLATE_NESTING {
            return Err(too_deep("the parts of an expression"));
        }
    }
    Ok(())
}

/// Computes an upper bound on the depth of an expression's tree: the number of its tokens since the
/// last comma, including the tokens of closed brackets.
#[derive(Debug)]
struct Depth {
    /// For each open bracket, the number of tokens since its last comma, and the largest such
    /// number between its earlier commas.
    open: Vec<(usize, usize)>,
}

impl Default for Depth {
    fn default() -> Self {
        Self { open: vec![(0, 0)] }
    }
}

impl Depth {
    fn add_token(&mut self, token: &Token<'_>) -> usize {
        match token {
            Token::VariableStart | Token::BlockStart => *self = Self::default(),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => self.open.push((0, 0)),
            Token::BracketClose | Token::ParenClose | Token::BraceClose if self.open.len() > 1 => {
                if let Some((last, most)) = self.open.pop() {
                    self.add(1 + last.max(most));
                }
            }
            Token::Comma => {
                if let Some((last, most)) = self.open.last_mut() {
                    *most = (*most).max(*last);
                    *last = 0;
                }
            }
            _ => self.add(1),
        }
        self.open
            .iter()
            .map(|(last, most)| last.max(most) + 1)
            .sum()
    }

    fn add(&mut self, n_tokens: usize) {
        if let Some((last, _)) = self.open.last_mut() {
            *last += n_tokens;
        }
    }
}

/// Rejects a template whose literals create large strings or lists at compile time.
pub(super) fn check_literals(template: &Stmt<'_>) -> Result<(), Exceeded> {
    let mut sum = 0;
    statement(template, &mut sum)
}

type Sum = usize;

fn statements(all: &[Stmt<'_>], sum: &mut Sum) -> Result<(), Exceeded> {
    all.iter().try_for_each(|each| statement(each, sum))
}

fn statement(all: &Stmt<'_>, sum: &mut Sum) -> Result<(), Exceeded> {
    match all {
        Stmt::Template(t) => statements(&t.children, sum),
        Stmt::EmitExpr(e) => literal(&e.expr, sum).map(drop),
        Stmt::ForLoop(l) => {
            literal(&l.iter, sum)?;
            optional(&l.filter_expr, sum)?;
            statements(&l.body, sum)?;
            statements(&l.else_body, sum)
        }
        Stmt::IfCond(i) => {
            literal(&i.expr, sum)?;
            statements(&i.true_body, sum)?;
            statements(&i.false_body, sum)
        }
        Stmt::WithBlock(w) => {
            for (_, value) in &w.assignments {
                literal(value, sum)?;
            }
            statements(&w.body, sum)
        }
        Stmt::Set(s) => literal(&s.expr, sum).map(drop),
        Stmt::SetBlock(s) => {
            optional(&s.filter, sum)?;
            statements(&s.body, sum)
        }
        Stmt::AutoEscape(a) => {
            literal(&a.enabled, sum)?;
            statements(&a.body, sum)
        }
        Stmt::FilterBlock(f) => {
            literal(&f.filter, sum)?;
            statements(&f.body, sum)
        }
        Stmt::Block(b) => statements(&b.body, sum),
        Stmt::Import(i) => literal(&i.expr, sum).map(drop),
        Stmt::FromImport(i) => literal(&i.expr, sum).map(drop),
        Stmt::Extends(e) => literal(&e.name, sum).map(drop),
        Stmt::Include(i) => literal(&i.name, sum).map(drop),
        Stmt::Macro(m) => declaration(m, sum),
        Stmt::CallBlock(c) => {
            literal(&c.call.expr, sum)?;
            arguments(&c.call.args, sum)?;
            declaration(&c.macro_decl, sum)
        }
        Stmt::Do(d) => {
            literal(&d.call.expr, sum)?;
            arguments(&d.call.args, sum)
        }
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Ok(()),
    }
}

fn declaration(declared: &Macro<'_>, sum: &mut Sum) -> Result<(), Exceeded> {
    expressions(&declared.defaults, sum)?;
    statements(&declared.body, sum)
}

fn expressions(all: &[Expr<'_>], sum: &mut Sum) -> Result<(), Exceeded> {
    all.iter().try_for_each(|each| literal(each, sum).map(drop))
}

fn optional(expression: &Option<Expr<'_>>, sum: &mut Sum) -> Result<(), Exceeded> {
    expression
        .as_ref()
        .map_or(Ok(()), |each| literal(each, sum).map(drop))
}

fn arguments(all: &[CallArg<'_>], sum: &mut Sum) -> Result<(), Exceeded> {
    all.iter().try_for_each(|each| match each {
        CallArg::Pos(value)
        | CallArg::Kwarg(_, value)
        | CallArg::PosSplat(value)
        | CallArg::KwargSplat(value) => literal(value, sum).map(drop),
    })
}

/// Returns the size in bytes of a constant expression's value; `None` for any other expression.
fn literal(expression: &Expr<'_>, sum: &mut Sum) -> Result<Option<usize>, Exceeded> {
    match expression {
        Expr::Const(constant) => {
            return Ok(Some(match constant.value.as_str() {
                Some(text) => text.len(),
                None => ITEM,
            }));
        }
        Expr::List(list) => expressions(&list.items, sum)?,
        Expr::Tuple(tuple) => expressions(&tuple.items, sum)?,
        Expr::Map(map) => {
            expressions(&map.keys, sum)?;
            expressions(&map.values, sum)?;
        }
        Expr::UnaryOp(operation) => return literal(&operation.expr, sum),
        Expr::BinOp(operation) => {
            let left = literal(&operation.left, sum)?;
            let right = literal(&operation.right, sum)?;
            let (Some(left), Some(right)) = (left, right) else {
                return Ok(None);
            };
            let n_bytes = match operation.op {
                BinOpKind::Mul => {
                    let times = |other: &Expr<'_>| {
                        let number = other.as_const().filter(Value::is_integer);
                        number.map(|number| usize::try_from(number).unwrap_or(0))
                    };
                    match (times(&operation.left), times(&operation.right)) {
                        (Some(_), Some(_)) => ITEM,
                        (Some(n), None) => right.saturating_mul(n),
                        (None, Some(n)) => left.saturating_mul(n),
                        (None, None) => ITEM,
                    }
                }
                BinOpKind::Add | BinOpKind::Concat => left.saturating_add(right),
                BinOpKind::ScAnd | BinOpKind::ScOr => left.max(right),
                _ => ITEM,
            };
            *sum = sum.saturating_add(n_bytes);
            if *sum > TEMPLATE_LITERAL_BYTES {
                return Err(Exceeded::new(
                    format!("operators between its literals create {sum} bytes"),
                    format!("{TEMPLATE_LITERAL_BYTES} bytes"),
                    "TEMPLATE_LITERAL_BYTES",
                ));
            }
            return Ok(Some(n_bytes));
        }
        Expr::Compare(compare) => {
            literal(&compare.expr, sum)?;
            for operation in &compare.ops {
                literal(&operation.expr, sum)?;
            }
        }
        Expr::IfExpr(choice) => {
            literal(&choice.test_expr, sum)?;
            literal(&choice.true_expr, sum)?;
            optional(&choice.false_expr, sum)?;
        }
        Expr::Filter(filter) => {
            optional(&filter.expr, sum)?;
            arguments(&filter.args, sum)?;
        }
        Expr::Test(test) => {
            literal(&test.expr, sum)?;
            arguments(&test.args, sum)?;
        }
        Expr::GetAttr(attribute) => return literal(&attribute.expr, sum).map(|_| None),
        Expr::GetItem(item) => {
            literal(&item.expr, sum)?;
            literal(&item.subscript_expr, sum)?;
        }
        Expr::Slice(slice) => {
            literal(&slice.expr, sum)?;
            for bound in [&slice.start, &slice.stop, &slice.step] {
                optional(bound, sum)?;
            }
        }
        Expr::Call(call) => {
            literal(&call.expr, sum)?;
            arguments(&call.args, sum)?;
        }
        Expr::Var(_) => {}
    }
    Ok(match expression {
        Expr::List(list) => Some(list.items.len().saturating_add(1).saturating_mul(ITEM)),
        Expr::Tuple(tuple) => Some(tuple.items.len().saturating_add(1).saturating_mul(ITEM)),
        _ => None,
    })
}
